"""The figures of docs/planes.md: a training run with its walk, a plane around a network, and a band over three seeds.

Small convolutional networks on handwritten digits; a few minutes on two cores.
"""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import thalweg as tw
from thalweg.demo import digits

IMAGES = Path(__file__).parent / "images"
RUNS = Path(__file__).parent.parent / "build" / "planes"  # resumed when this is run again
DECAY = 1e-3
CURVES = ((1, 2), (3, 4), (5, 6))  # seeds of the ends


def training() -> None:
    """The main plane of one training run, start to end, and of a walk that leaves it; then a plane around its end."""
    made = digits(1)
    how: dict[str, Any] = {"weight_decay": DECAY, "seed": 1}
    start = tw.Weights.of(made["model"])
    end = tw.fit(
        made["model"], made["task"], made["train"], epochs=30, lr=0.05, keep=range(1, 30), run=RUNS / "fit", **how
    )
    method = tw.FGE(cycle=2, lr_max=0.05, lr_min=0.0025)
    how |= {"start": end.kept[24], "run": RUNS / "walk"}
    walk = tw.walk(made["model"], made["task"], made["train"], method, epochs=12, **how)
    networks = [start, *(end.kept[epoch].weights for epoch in sorted(end.kept)), end]
    plane = tw.Plane.fit([*networks, *walk.members])
    drawn = {"training": networks, "FGE": walk.members}
    draw("planes-training", plane, made, points="adaptive", grid=(41, 41), overlay=drawn)
    draw("planes-around", tw.Plane.around(end), made)


def draw(name: str, plane: tw.Plane, made: dict[str, Any], **how: Any) -> None:
    own: Any = {"bn_batches": made["bn_batches"], "weight_decay": DECAY, "run": RUNS / name, **how}
    scan = tw.scan(made["model"], plane, made["task"], made["data"], **own)
    print(name, f"{scan.measured.sum():.0f} points" if scan.measured is not None else "", scan.table(), sep="\n")
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    tw.figures.surface(scan, "train", "loss", left)
    tw.figures.surface(scan, "test", "error", right)
    figure.savefig(IMAGES / f"{name}.png", dpi=100)


def seeds() -> None:
    """The line and a curve between three pairs of networks."""
    found: dict[str, list[tw.Scan]] = {"Segment": [], "Bezier": []}
    for pair in CURVES:
        made = [digits(seed) for seed in pair]
        task, train = made[0]["task"], made[0]["train"]
        a, b = (
            tw.fit(each["model"], task, train, epochs=30, lr=0.05, weight_decay=DECAY, seed=seed, run=RUNS / f"{seed}")
            for seed, each in zip(pair, made, strict=True)
        )
        how: Any = {"epochs": 60, "lr": 0.05, "weight_decay": DECAY, "run": RUNS / f"curve-{pair[0]}"}
        curve = tw.connect(made[0]["model"], tw.Bezier(a, b), task, train, **how)
        for path in (tw.Segment(a, b), curve):
            own: Any = {"bn_batches": made[0]["bn_batches"], "weight_decay": DECAY, "points": "adaptive"}
            scan = tw.scan(made[0]["model"], path, task, made[0]["data"], **own)
            found[scan.name].append(scan)
            print(pair, scan, scan.table(), sep="\n")
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    tw.figures.profile(found, "train", "loss", left)
    tw.figures.profile(found, "test", "error", right)
    figure.savefig(IMAGES / "planes-seeds.png", dpi=100)


if __name__ == "__main__":
    training()
    seeds()
