"""Figures of docs/align.md: loss along lines and short curves between two networks, as they are and aligned; errors of
VGG-16 against the epochs of a curve.

The first trains two convolutional networks on handwritten digits, and curves of 8 epochs: about a minute on one core.
The second is drawn from the table in docs/results.md.
"""

import re
from pathlib import Path

from matplotlib.figure import Figure
from torch import nn

import thalweg as tw
from thalweg.runtime.rng import seeded

HERE = Path(__file__).parent


def make(seed: int) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128),
            nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip


def epochs() -> None:
    """Write `images/align-epochs.png`: the means over three pairs of networks, at the recipe's rate."""
    row = r"^\| (-|weights|activations) \| (\d+)[^|]*\| 0\.015 \| ([\d.]+) [^|]*\| ([\d.]+) "
    found = re.findall(row, (HERE / "results.md").read_text(), flags=re.MULTILINE)
    figure = Figure(figsize=(10, 4), layout="constrained")
    for column, what, ax in zip((2, 3), ("mean", "max"), figure.subplots(1, 2), strict=True):
        series = {}
        for by, name in (("-", "as they are"), *((by, f"aligned by {by}") for by in ("weights", "activations"))):
            own = [row for row in found if row[0] == by]
            series[name] = [float(row[1]) for row in own], [float(row[column]) for row in own]
        tw.figures.lines(series, "epochs of the curve", f"{what} test error along it (%)", ax).set_xscale("log")
        ax.set_xticks((ticks := [10, 25, 50, 100, 200, 600]), map(str, ticks))
        ax.minorticks_off()
    figure.savefig(HERE / "images" / "align-epochs.png", dpi=110)


def main() -> None:
    """Write `images/align.png`, and print what the page says."""
    train_set, test_set = tw.data.digits()
    train, test = tw.data.DeviceBatches(*train_set, 64, shuffle=True), tw.data.DeviceBatches(*test_set, 500)
    task, data = tw.classification(), {"test": test}
    a, b = (tw.fit(make(seed), task, train, epochs=20, lr=0.05, seed=seed) for seed in (1, 2))
    aligned = tw.align(make(0), a, b, task, train)
    print(aligned.symmetries, aligned, sep="\n")
    scans = {}
    for name, end in (("", b), ("aligned ", aligned)):
        curve = tw.connect(make(0), tw.Bezier(a, end), task, train, epochs=8, lr=0.02)
        for path in (tw.Segment(a, end), curve):
            scans[f"{name}{type(path).__name__}"] = tw.scan(make(0), path, task, data, points=41)
    for name, scan in scans.items():
        print(name, scan.table(), sep="\n")
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    tw.figures.profile(scans, "test", "loss", figure.subplots())
    figure.savefig(HERE / "images" / "align.png", dpi=110)


if __name__ == "__main__":
    epochs()
    main()
