"""The figure and numbers of docs/averaging.md: barriers between three independent networks and three of one walk.

Convolutional networks on handwritten digits, and soups of each three; about a minute on one core.
"""

import warnings
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
    """Write `images/averaging.png`, and print what the page says."""
    (images, labels), test_set = tw.data.digits()
    train = tw.data.DeviceBatches(images[:-200], labels[:-200], 64, shuffle=True)
    held_out = tw.data.DeviceBatches(images[-200:], labels[-200:], 200)
    test = tw.data.DeviceBatches(*test_set, 500)
    task = tw.classification()
    alone = {f"seed {k}": tw.fit(make(k), task, train, epochs=15, lr=0.05, seed=k) for k in (1, 2, 3)}
    method = tw.FGE(cycle=2, lr_max=0.1, lr_min=0.005)
    walk = tw.walk(make(3), task, train, method, epochs=6, start=alone["seed 3"])
    walked = {f"walk {k}": member for k, member in enumerate(walk.members, start=1)}
    found = tw.barriers(make(0), {**alone, **walked}, task, {"test": test}, align=True)
    print(found.table())
    first, *others = alone.values()
    matched = tw.align(make(0), first, others, task, train)
    aligned = dict(zip(alone, [first, *matched], strict=True))
    for networks in (alone, aligned, walked):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            soup = tw.soup(make(0), networks, task, held_out)
        print(soup, *(warning.message for warning in seen), sep="\n")
        for name, members in (("soup", [soup]), ("ensemble", list(networks.values()))):
            print(
                name, {key: round(value, 4) for key, value in tw.Ensemble(make(0), members).score(task, test).items()}
            )
    figure = Figure(figsize=(9.6, 4), layout="compressed")
    tw.figures.barriers(found, "test", "loss", figure.subplots(1, 2))
    figure.savefig(HERE / "images" / "averaging.png", dpi=110)


if __name__ == "__main__":
    main()
