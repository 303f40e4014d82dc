"""Handwritten digits: networks with batch norm, the curve between two, its plane, and an ensemble of its points.

$ python examples/digits.py

Three networks with 5,082 weights, 1,297 training images with random crops, 500 test images, measured at 61 points of
each path:

                             train loss: lowest, mean, highest    test error: lowest, mean, highest
    segment                               0.085, 0.424, 1.415               1.00, 15.14, 56.00 %
    Bezier, 1.11 times as long            0.076, 0.082, 0.094               0.80,  1.76,  3.60 %

    test error, nll: one network 2.60 %, 0.066; both ends 1.40 %, 0.048; five points of the curve 1.20 %, 0.046;
    three networks 1.40 %, 0.054. One test image is 0.20 %.

36 s, 2026-11-18: one thread of 2 CPU cores next to other work, Python 3.11, torch 2.13.0 CPU.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import thalweg as tw

DECAY = 1e-3


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=40, help="of each network; the curve gets twice as many")
    parser.add_argument("--points", type=int, default=61, help="measured along each path")
    parser.add_argument("--grid", type=int, default=21, help="points along each side of the plane")
    parser.add_argument("--out", type=Path, default=Path("digits"), help="the folder for the figures")
    settings = parser.parse_args()
    began = time.perf_counter()

    train_set, test_set = tw.data.digits()
    train = tw.data.DeviceBatches(*train_set, 64, shuffle=True, crop=1)
    clean, test = train.clean(433), tw.data.DeviceBatches(*test_set, 500)
    task, training = tw.classification(), {"lr": 0.05, "weight_decay": DECAY}

    a, b, c = (tw.fit(network(s), task, train, epochs=settings.epochs, seed=s, **training) for s in (1, 2, 3))
    curve = tw.connect(network(1), tw.Bezier(a, b), task, train, epochs=2 * settings.epochs, **training)

    # No point between two networks has batch-norm statistics of its own: bn_batches= makes them, from batches as in
    # training.
    measuring = {"data": {"train": clean, "test": test}, "weight_decay": DECAY, "bn_batches": train}
    scans = {
        type(path).__name__: tw.scan(network(1), path, task, points=settings.points, **measuring)
        for path in (tw.Segment(a, b), curve)
    }
    print(*(scan.table() for scan in scans.values()), sep="\n\n", end="\n\n")

    along = [tw.update_bn(network(1), curve.point(t), train) for t in (0, 0.25, 0.5, 0.75, 1)]
    for name, members in {
        "one network": [a],
        "both ends": [a, b],
        "five points of the curve": along,
        "three networks": [a, b, c],
    }.items():
        scores = tw.Ensemble(network(1), members).score(task, test)
        print(f"{name:24} test error {100 * scores['error']:.2f} %, nll {scores['nll']:.3f}")

    plane = tw.scan(
        network(1),
        tw.Plane(a, b, curve.bends[0]),
        task,
        grid=(settings.grid, settings.grid),
        overlay={"Bezier": curve},
        **measuring,
    )
    settings.out.mkdir(exist_ok=True)
    tw.figures.save(tw.figures.profile(scans, "test", "error").figure, settings.out / "profile")
    tw.figures.save(tw.figures.surface(plane, "train", "loss").figure, settings.out / "plane")
    print(
        f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {torch.get_num_threads()} threads; see "
        f"{settings.out}"
    )


if __name__ == "__main__":
    main()
