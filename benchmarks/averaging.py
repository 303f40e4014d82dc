"""Barriers between networks of several runs, as they are and aligned, and their soups against ensembles.

    python benchmarks/averaging.py RUN... --out FOLDER [--task FILE:FACTORY] [--members 3] [--points 11]

RUN are folders of `thalweg fit` (one network each: independent ones) and `thalweg walk` (of which the last few members
are taken). For VGG-16 on CIFAR-100, with the data in THALWEG_DATA, the default task:

    thalweg paper run ensembles --data-set cifar100 --model vgg16 --out paper
    python benchmarks/averaging.py paper/full/cifar100-vgg16/{network-0,network-1,network-2,fge-0} --out averaging

Writes `barriers.json`, `soups.json` and both as PNG and PDF; soups are chosen on the data called held-out, and
everything is scored on those called test. An interrupted matrix is resumed by the same command.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import thalweg as tw
from thalweg.loading import load_inputs, load_members
from thalweg.paper.experiment import Experiment
from thalweg.paper.recipes import RECIPES, SCALES
from thalweg.reporting.axes import STYLES
from thalweg.results import grid
from thalweg.store.files import save_json

Networks = dict[str, tw.Weights]
COLUMNS = ("best", "soup", "uniform", "ensemble")


def vgg16(seed: int, scale: str = "full") -> dict[str, Any]:
    """The paper's VGG-16 on CIFAR-100; half of the test images are there to choose by, the other half to score on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own = Experiment(Path(), RECIPES["cifar100", "vgg16"], SCALES[scale], device=device)
    (images, labels), half = own.images[1], len(own.images[1][0]) // 2
    held_out, test = (own.batches((images[part], labels[part]), 1000) for part in (slice(half), slice(half, None)))
    data = {"train": own.data["train"], "held-out": held_out, "test": test}
    return {"model": own.model(seed), "task": own.task, "train": own.train, "bn_batches": own.train, "data": data}


def smoke(seed: int) -> dict[str, Any]:
    """The same with a small network on a few random images, to try this script."""
    return vgg16(seed, "smoke")


def groups(paths: list[Path], model: torch.nn.Module, members: int) -> dict[str, Networks]:
    """Single networks together, and the last members of each walk."""
    found: dict[str, Networks] = {}
    for path in paths:
        loaded = [each.to(next(model.parameters()).device) for each in load_members(path, model)][-members:]
        if len(loaded) == 1:
            found.setdefault("independent", {})[path.name] = loaded[0]
        else:
            found[path.name] = {f"{path.name} {k}": each for k, each in enumerate(loaded, start=1)}
    return found


def compared(inputs: Any, networks: Networks) -> dict[str, Any]:
    """Error and NLL on the test data of the best network, a greedy soup, the average of all, and the ensemble."""
    model, task, bn_batches = inputs.model, inputs.task, inputs.bn_batches
    held_out, test = inputs.data["held-out"], inputs.data["test"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        greedy, uniform = (
            tw.soup(model, networks, task, held_out, how=how, bn_batches=bn_batches) for how in ("greedy", "uniform")
        )
    print(greedy, *(warning.message for warning in seen), sep="\n")
    best = networks[next(iter(greedy.alone))]
    pools = {"best": [best], "soup": [greedy], "uniform": [uniform], "ensemble": list(networks.values())}
    scores = {name: tw.Ensemble(model, pool).score(task, test) for name, pool in pools.items()}
    kept = {name: {key: own[key] for key in ("error", "nll")} for name, own in scores.items()}
    return {"scores": kept, "members": list(greedy.members), "warnings": [str(warning.message) for warning in seen]}


def draw(rows: dict[str, Any], out: Path) -> None:
    """Error and NLL of each group; the average of all, where it is far above the others, as a number at the top."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = (("error", 100, "test error (%)"), ("nll", 1, "test NLL"))
    for ax, (key, factor, label) in zip(figure.subplots(1, 2), panels, strict=True):
        values = {c: [factor * row["scores"][c][key] for row in rows.values()] for c in COLUMNS}
        low, high = (f([v for c in COLUMNS if c != "uniform" for v in values[c]]) for f in (min, max))
        top = high + max(0.4 * (high - low), 0.02 * high)
        for k, (column, marker, (colour, _)) in enumerate(zip(COLUMNS, "os^D", STYLES, strict=False)):
            for place, value in enumerate(values[column]):
                x = place + 0.12 * (k - 1.5)  # side by side
                ax.plot(x, min(value, top), marker, color=colour, clip_on=False, label=None if place else column)
                if value > top:
                    ax.annotate(f"{value:.3g}", (x, top), xytext=(0, 6), textcoords="offset points", ha="center")
        ax.set_xticks(range(len(rows)), rows)
        ax.set(ylabel=label, ylim=(low - 0.1 * (top - low), top), xlim=(-0.5, len(rows) - 0.5))
        ax.grid(alpha=0.3)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(COLUMNS), frameon=False)
    tw.figures.save(figure, out / "soups")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--task", default=f"{__file__}:vgg16", help="as for thalweg, with data held-out and test")
    parser.add_argument("--members", type=int, default=3, help="how many of each walk")
    parser.add_argument("--points", type=int, default=11, help="on each line")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    settings = parser.parse_args()
    began, inputs = time.perf_counter(), load_inputs(settings.task, 0, None)
    found = groups(settings.runs, inputs.model, settings.members)
    everything = {name: each for networks in found.values() for name, each in networks.items()}
    data = {name: batches for name, batches in inputs.data.items() if name != "held-out"}
    matrix = tw.barriers(
        inputs.model,
        everything,
        inputs.task,
        data,
        align=True,
        points=settings.points,
        bn_batches=inputs.bn_batches,
        compute=tw.Compute(precision=settings.precision),
        run=settings.out,
    )
    print(matrix.table())
    for quantity in ("loss", "error"):
        figure = Figure(figsize=(10, 4.2), layout="compressed")
        tw.figures.barriers(matrix, "test", quantity, figure.subplots(1, 2))
        tw.figures.save(figure, settings.out / f"barriers-{quantity}")
    print(f"barriers: {time.perf_counter() - began:.0f} s")
    if len(found.get("independent", {})) > 1:
        first, *others = found["independent"].values()
        matched = tw.align(inputs.model, first, others, inputs.task, inputs.train)
        found["aligned"] = dict(zip(found["independent"], [first, *matched], strict=True))
    rows = {name: compared(inputs, networks) for name, networks in found.items()}
    save_json(settings.out / "soups.json", "soups", rows)
    draw(rows, settings.out)
    cells = [
        [name, *(f"{100 * row['scores'][c]['error']:.2f} %, {row['scores'][c]['nll']:.3f}" for c in COLUMNS)]
        for name, row in rows.items()
    ]
    print(grid(["", *COLUMNS], cells))
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {next(inputs.model.parameters()).device}")


if __name__ == "__main__":
    main()
