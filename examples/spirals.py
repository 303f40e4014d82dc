"""Two spirals: the straight line between two networks crosses a barrier, a trained curve does not.

$ python examples/spirals.py

Two networks with 1,218 weights, the segment between them, and a Bezier curve with one bend, measured at 61 points each:

                             train loss: lowest, mean, highest    train error: highest
    segment                               0.018, 0.627, 1.204                  37.40 %
    Bezier, 1.15 times as long            0.018, 0.024, 0.029                   0.60 %

13 s, 2026-11-15: one thread of an AMD EPYC, Python 3.11, torch 2.13.0 CPU. `plane.png` shows the valley that the curve
runs through.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import thalweg as tw


def spirals(count: int = 1000) -> tuple[Tensor, Tensor]:
    """Two arms, one and a half turns each, the second half a turn behind the first."""
    labels = torch.arange(count) % 2
    along = torch.rand(count)
    angles = 3 * torch.pi * along.sqrt() + torch.pi * labels
    places = along.sqrt()[:, None] * torch.stack([angles.cos(), angles.sin()], dim=1)
    return places + 0.02 * torch.randn(count, 2), labels


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=200, help="of each network; the curve gets twice as many")
    parser.add_argument("--points", type=int, default=61, help="measured along each path")
    parser.add_argument("--grid", type=int, default=21, help="points along each side of the plane")
    parser.add_argument("--out", type=Path, default=Path("spirals"), help="the folder for the figures")
    settings = parser.parse_args()
    began = time.perf_counter()

    torch.manual_seed(0)
    places, labels = spirals()
    train = list(zip(places.split(50), labels.split(50), strict=True))
    task, decay = tw.classification(), 1e-4

    a, b = (
        tw.fit(network(s), task, train, epochs=settings.epochs, lr=0.05, weight_decay=decay, seed=s) for s in (1, 2)
    )
    curve = tw.connect(
        network(1), tw.Bezier(a, b), task, train, epochs=2 * settings.epochs, lr=0.05, weight_decay=decay
    )

    common = {"weight_decay": decay, "data": {"train": train}}
    scans = {
        type(path).__name__: tw.scan(network(1), path, task, points=settings.points, **common)
        for path in (tw.Segment(a, b), curve)
    }
    print(*(scan.table() for scan in scans.values()), sep="\n\n")

    plane = tw.scan(
        network(1),
        tw.Plane(a, b, curve.bends[0]),
        task,
        grid=(settings.grid, settings.grid),
        overlay={"Bezier": curve},
        **common,
    )
    settings.out.mkdir(exist_ok=True)
    tw.figures.save(tw.figures.profile(scans).figure, settings.out / "profile")
    tw.figures.save(tw.figures.surface(plane).figure, settings.out / "plane")
    print(
        f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {torch.get_num_threads()} threads; see "
        f"{settings.out}"
    )


if __name__ == "__main__":
    main()
