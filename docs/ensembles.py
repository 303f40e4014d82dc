"""The figures and numbers of docs/ensembles.md: what ensembles of small networks on digits are worth and cost.

300 handwritten digits to train on, with random crops, 500 to fit temperatures on and 997 to test on, drawn at random;
six seeds of 60 epochs for each method; about three minutes on one core.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import thalweg as tw
from thalweg.runtime.rng import seeded

HERE = Path(__file__).parent
METHODS = (
    tw.Independent(),
    tw.Snapshot(cycles=4, lr_max=0.05),
    tw.FGE(cycle=1, lr_max=0.05, lr_min=0.0025),
    tw.SWA(lr=0.05),
)
TRAINING = {"lr": 0.05, "weight_decay": 1e-3}


def make(seed: int) -> nn.Module:
    with seeded(seed):
        return tw.models.digits_net()


def parts() -> list[tw.data.DeviceBatches]:
    """Training, held-out and test data."""
    images, labels = (torch.cat(part) for part in zip(*tw.data.digits(), strict=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    train = tw.data.DeviceBatches(images[:300], labels[:300], 50, shuffle=True, crop=1)
    rest = (tw.data.DeviceBatches(images[part], labels[part], 500) for part in (slice(300, 800), slice(800, None)))
    return [train, *rest]


def main() -> None:
    """Write `images/equivalents.png` and `images/reliability.png`, and print what the page says."""
    (train, held_out, test), task = parts(), tw.classification()
    data = {"budget": 60, "multiples": (1, 2, 3, 4, 5, 6), "seeds": range(6), "bn_batches": train}
    found = tw.compare(make, task, train, test, METHODS, **data, held_out=held_out, **TRAINING)
    print(found.table())
    figure = Figure(figsize=(6, 4.4), layout="constrained")
    tw.figures.equivalents(found, ax=figure.subplots())
    figure.savefig(HERE / "images" / "equivalents.png", dpi=110)

    walk = tw.walk(make(0), task, train, METHODS[1], epochs=20, weight_decay=1e-3, seed=0)
    ensemble = tw.Ensemble(make(0), walk.members)
    print(f"temperature {ensemble.calibrate(task, held_out):.3f}")
    report = ensemble.report(task, test, bn_batches=train)
    print(report.table())
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    tw.figures.reliability(report, figure.subplots())
    figure.savefig(HERE / "images" / "reliability.png", dpi=110)

    start = tw.fit(make(0), task, train, epochs=45, **TRAINING)
    swa = tw.walk(make(0), task, train, METHODS[3], epochs=15, start=start, weight_decay=1e-3)
    swag = tw.SWAG(swa.members)
    drawn = [tw.update_bn(make(0), sample, train) for sample in swag.sample(20, seed=1)]
    for name, members in (("SWA's mean", [swag.mean]), ("SWAG, 20 networks", drawn)):
        members = [tw.update_bn(make(0), member, train) for member in members]
        score = tw.Ensemble(make(0), members).score(task, test, held_out=held_out)
        print(f"{name}: error {100 * score['error']:.2f} %, calibrated nll {score['calibrated_nll']:.3f}")


if __name__ == "__main__":
    main()
