"""The figure of docs/align.md: loss along lines and short curves between two networks, as they are and aligned.

Two convolutional networks on handwritten digits, 8 epochs for each curve; about a minute on one core.
"""

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
    main()
