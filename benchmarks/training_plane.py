"""The main plane of one training run and of a walk that leaves it: VGG-16 on CIFAR-100, with the paper's settings.

    python benchmarks/training_plane.py --out FOLDER [--data DATA] [--seeds 1,2,3] [--every 5] [--grid 61]

For each seed, trains the network into FOLDER/seed-1/training, keeping the weights of every few epochs, and walks by FGE
from the first start of the paper's recipe into FOLDER/seed-1/walk; these, and the scan, are resumed or read from their
folders if they are there. Writes the plane as FOLDER/seed-1/plane/scan.json and, with train loss and test error, as PNG
and PDF; prints the numbers of all seeds as one line of JSON at the end, where a network that did not begin to learn,
like that of seed 0, has a message instead. `--scale smoke --every 1 --grid 11` tries all of it on a CPU, with a small
network on random images. To draw the plane alone, from the same folders:

    thalweg plane FOLDER/seed-1/training FOLDER/seed-1/walk --task benchmarks/averaging.py:vgg16 --grid 61 --adaptive \
        --out plane
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import thalweg as tw
from thalweg.paper.experiment import Experiment
from thalweg.paper.recipes import RECIPES, SCALES


def trained(own: Experiment, seed: int, out: Path, every: int) -> tuple[list[tw.Weights], tuple[tw.Weights, ...]]:
    """The networks of a training, from its start to its end, and the members of a walk."""
    recipe, steps = own.recipe, own.recipe.walk
    assert steps is not None
    model, start = own.model(seed), steps.starts[0]
    keep = sorted({start, *range(1, recipe.epochs, every)})
    common: Any = {"seed": seed, **own.settings}
    end = tw.fit(
        model, own.task, own.train, epochs=recipe.epochs, lr=recipe.lr, keep=keep, run=out / "training", **common
    )
    method = tw.FGE(cycle=steps.cycle, lr_max=steps.lr_max, lr_min=steps.lr_min)
    walk = tw.walk(
        model, own.task, own.train, method, epochs=steps.epochs, start=end.kept[start], run=out / "walk", **common
    )
    return [tw.Weights.of(model), *(end.kept[epoch].weights for epoch in keep), end], walk.members


def plane_of(own: Experiment, seed: int, out: Path, every: int, grid: int) -> dict[str, Any]:
    """What the plane of one training holds; its figure is written next to the scan."""
    training, members = trained(own, seed, out, every)
    plane = tw.Plane.fit([*training, *members])
    scan = tw.scan(
        own.model(seed),
        plane,
        own.task,
        {"train": own.clean, "test": own.test},
        points="adaptive",
        grid=(grid, grid),
        bn_batches=own.train,
        overlay={"training": training, "FGE": members},
        run=out / "plane",
        **own.settings,
    )
    print(f"seed {seed}: {plane}", scan.table(), sep="\n")
    figure = Figure(figsize=(11, 5), layout="constrained")
    for ax, (name, quantity) in zip(figure.subplots(1, 2), (("train", "loss"), ("test", "error")), strict=True):
        tw.figures.surface(scan, name, quantity, ax)
    tw.figures.save(figure, out / "plane" / "surface")
    away = {name: [round(far, 3) for far in each] for name, each in scan.away.items()}
    shares = [round(share, 4) for share in plane.shares or ()]
    return {"shares": shares, "off the plane": away, "points": 0 if scan.measured is None else int(scan.measured.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--data", type=Path, default=None, help="the folder of the data; or THALWEG_DATA")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--every", type=int, default=5, help="how many epochs between kept checkpoints")
    parser.add_argument("--grid", type=int, default=61, help="points along each side; those needed are measured")
    given = parser.parse_args()
    began, cuda, found = time.perf_counter(), torch.cuda.is_available(), dict[str, Any]()
    how = {"device": "cuda" if cuda else "cpu", "compute": tw.Compute(precision="bf16" if cuda else "fp32")}
    own = Experiment(given.out, RECIPES["cifar100", "vgg16"], SCALES[given.scale], given.data, **how)
    warnings.simplefilter("error", tw.Stalled)
    for seed in given.seeds:
        try:
            found[f"seed {seed}"] = plane_of(own, seed, given.out / f"seed-{seed}", given.every, given.grid)
        except tw.Stalled as error:
            found[f"seed {seed}"] = str(error)
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    about = {"seconds": round(time.perf_counter() - began), "torch": torch.__version__, "on": where}
    print(json.dumps({**found, **about}))


if __name__ == "__main__":
    main()
