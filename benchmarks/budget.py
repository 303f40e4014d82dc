"""Independent networks, Snapshot, FGE and SWA on Fashion-MNIST at one training budget, in paired runs.

    python benchmarks/budget.py FOLDER [--images N] [--budget EPOCHS] [--seeds N] [--out FILE]

FOLDER holds the four idx files of Fashion-MNIST (in Debian: the package dataset-fashion-mnist,
/usr/share/datasets/fashion-mnist). All methods of one seed start from the same weights and share the plain run.
"""

import argparse
import platform
import statistics
import time

import torch
from torch import nn

import thalweg as tw
from thalweg.paper.data import DeviceBatches, mnist


def network(seed: int) -> nn.Module:
    """A small convolutional network with batch norm, 20,522 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--images", type=int, default=10_000, help="how many of the training images to use")
    parser.add_argument("--budget", type=int, default=40, help="epochs of one run")
    parser.add_argument("--seeds", type=int, default=5, help="how many paired runs")
    parser.add_argument("--validate", action="store_true", help="score on the last 10,000 training images")
    parser.add_argument("--lr-max", type=float, default=0.02, help="highest rate of FGE")
    parser.add_argument("--out", help="where to save the comparison as JSON")
    settings = parser.parse_args()
    (images, labels), test = mnist(settings.folder)
    if settings.validate:
        test = images[-10_000:], labels[-10_000:]
    train = DeviceBatches(images[: settings.images], labels[: settings.images], 100, shuffle=True)
    methods = [
        tw.Independent(),
        tw.Snapshot(cycles=4, lr_max=0.1),
        tw.FGE(cycle=1, lr_max=settings.lr_max, lr_min=settings.lr_max / 20),
        tw.SWA(lr=0.05),
    ]
    began = time.perf_counter()
    result = tw.compare(
        network,
        tw.classification(),
        train,
        DeviceBatches(*test, 1000),
        methods,
        budget=settings.budget,
        seeds=range(settings.seeds),
        multiples=[k for k in (1, 2, 3) if k <= settings.seeds],
        bn_batches=train.clean(1000),
        lr=0.1,
        weight_decay=5e-4,
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
    print(f"{settings}, {time.perf_counter() - began:.0f} s")
    for name in ("error", "nll", "ece"):
        print(result.table(name), end="\n\n")
    alone = [run["error"] for run in result.entries["Independent"]["runs"]]
    for method, entry in result.entries.items():
        differences = [run["error"] - other for run, other in zip(entry["runs"], alone, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
        print(
            f"{method} - Independent: {100 * statistics.mean(differences):+.2f} points of error, standard error "
            f"{100 * error:.2f}"
        )
    if settings.out:
        result.save(settings.out)


if __name__ == "__main__":
    main()
