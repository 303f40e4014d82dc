"""The main plane of one training and of a walk that leaves it: VGG-16 on CIFAR-100, with the paper's settings.

    python benchmarks/training_plane.py --out FOLDER [--data DATA] [--scale smoke] [--every 5] [--grid 61]

Trains the network into FOLDER/training, keeping the weights of every few epochs, and walks by FGE from the first start
of the paper's recipe into FOLDER/walk; both, and the scan, are resumed or read from these folders if they are there.
Writes the plane as FOLDER/plane/scan.json and, with train loss and test error, as PNG and PDF. `--scale smoke --every 1
--grid 11` tries all of it on a CPU, with a small network on random images. Drawing alone, from the same folders, is

    thalweg plane FOLDER/training FOLDER/walk --task benchmarks/averaging.py:vgg16 --grid 61 --adaptive --out plane
"""

import argparse
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

import thalweg as tw
from thalweg.paper.experiment import Experiment
from thalweg.paper.recipes import RECIPES, SCALES


def trained(own: Experiment, out: Path, every: int) -> tuple[list[tw.Weights], tuple[tw.Weights, ...]]:
    """The networks of a training, from its start to its end, and the members of a walk."""
    recipe, steps = own.recipe, own.recipe.walk
    assert steps is not None
    model, start = own.model(0), steps.starts[0]
    keep = sorted({start, *range(1, recipe.epochs, every)})
    end = tw.fit(
        model, own.task, own.train, epochs=recipe.epochs, lr=recipe.lr, keep=keep, run=out / "training", **own.settings
    )
    method = tw.FGE(cycle=steps.cycle, lr_max=steps.lr_max, lr_min=steps.lr_min)
    walk = tw.walk(
        model, own.task, own.train, method, epochs=steps.epochs, start=end.kept[start], run=out / "walk", **own.settings
    )
    return [tw.Weights.of(model), *(end.kept[epoch].weights for epoch in keep), end], walk.members


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--data", type=Path, default=None, help="the folder of the data; or THALWEG_DATA")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--every", type=int, default=5, help="how many epochs between kept checkpoints")
    parser.add_argument("--grid", type=int, default=61, help="points along each side; those needed are measured")
    settings = parser.parse_args()
    began, cuda = time.perf_counter(), torch.cuda.is_available()
    how = {"device": "cuda" if cuda else "cpu", "compute": tw.Compute(precision="bf16" if cuda else "fp32")}
    own = Experiment(settings.out, RECIPES["cifar100", "vgg16"], SCALES[settings.scale], settings.data, **how)
    training, members = trained(own, settings.out, settings.every)
    plane = tw.Plane.fit([*training, *members])
    scan = tw.scan(
        own.model(0),
        plane,
        own.task,
        {"train": own.clean, "test": own.test},
        points="adaptive",
        grid=(settings.grid, settings.grid),
        bn_batches=own.clean,
        overlay={"training": training, "FGE": members},
        run=settings.out / "plane",
        **own.settings,
    )
    print(plane, scan.table(), sep="\n")
    for k, far in enumerate(scan.away["training"]):
        print(f"network {k} of the training: {far:.3g} off the plane")
    figure = Figure(figsize=(11, 5), layout="constrained")
    for ax, (name, quantity) in zip(figure.subplots(1, 2), (("train", "loss"), ("test", "error")), strict=True):
        tw.figures.surface(scan, name, quantity, ax)
    tw.figures.save(figure, settings.out / "plane" / "surface")
    measured = 0 if scan.measured is None else scan.measured.sum()
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"{measured:.0f} points, {time.perf_counter() - began:.0f} s, torch {torch.__version__}, {where}")


if __name__ == "__main__":
    main()
