"""VGG-16 on CIFAR: two networks, the Bezier curve between them, and what lies along it and along the straight line.

$ python examples/cifar_curve.py --data ~/data --out cifar-curve

40 epochs for each network and 100 for the curve; other settings are those of the paper's public code, which trains for
200 and 600 epochs (`--epochs 200 --curve-epochs 600`, or `thalweg paper run curves`). To resume an interrupted run, run
the same command again.

For comparison, the highest train loss and test error for CIFAR-10 in the paper's table of curves are 2.569 and 90 % on
the straight line, 0.040 and 7.01 % on its Bezier curve. Its public code gives 0.24 and 7.75 % for the latter.

What 61 points showed on CIFAR-10, where the two networks have train losses of 0.397 and 0.400 and test errors of 8.77
and 8.53 %:

                                 train loss: lowest, mean, highest    test error: lowest, mean, highest
    segment                                   0.391, 1.922, 2.697               8.50, 63.09, 90.00 %
    Bezier, 1.17 times as long                0.228, 0.274, 0.400               8.06,  8.70,  9.64 %

209 s, 2026-11-15: one NVIDIA H200 shared with another run, bf16, Python 3.12, torch 2.11.0.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thalweg as tw

DECAY = 5e-4
COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with cifar-10-batches-bin or cifar-100-binary"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("cifar-curve"), help="where networks, curve and figure are kept"
    )
    parser.add_argument("--classes", type=int, choices=(10, 100), default=10, help="CIFAR-10 or CIFAR-100")
    parser.add_argument("--epochs", type=int, default=40, help="of each network")
    parser.add_argument("--curve-epochs", type=int, default=100)
    parser.add_argument("--points", type=int, default=61, help="measured along each path")
    parser.add_argument("--images", type=int, default=None, help="use only this many of each set, to try it out")
    return parser.parse_args()


def main() -> None:
    settings = arguments()
    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    common: dict[str, Any] = {"compute": tw.Compute("bf16" if device == "cuda" else "fp32"), "weight_decay": DECAY}

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return tw.models.vgg16(settings.classes).to(device)

    read = tw.data.cifar10 if settings.classes == 10 else tw.data.cifar100
    (images, labels), (test_images, test_labels) = (
        [part[: settings.images] for part in pair] for pair in read(settings.data)
    )
    train = tw.data.DeviceBatches(images, labels, 128, shuffle=True, crop=4, flip=True, device=device, **COLOURS)
    data = {
        "train": train.clean(),
        "test": tw.data.DeviceBatches(test_images, test_labels, 128, device=device, **COLOURS),
    }
    task = tw.classification()

    def trained(seed: int) -> tw.Weights:
        run = settings.out / f"network-{seed}"
        return tw.fit(network(seed), task, train, epochs=settings.epochs, lr=0.05, seed=seed, run=run, **common)

    a, b = tw.together(lambda: trained(1), lambda: trained(2))  # interleaved on the GPU
    run = settings.out / "bezier"
    curve = tw.connect(
        network(1), tw.Bezier(a, b), task, train, epochs=settings.curve_epochs, lr=0.015, run=run, **common
    )

    scans = {}
    for path in (tw.Segment(a, b), curve):
        name = type(path).__name__
        run = settings.out / f"scan-{name.lower()}"
        scans[name] = tw.scan(network(1), path, task, data, points=settings.points, run=run, **common)
        scans[name].save(settings.out / f"{name.lower()}.json")
    print(*(scan.table() for scan in scans.values()), sep="\n\n")
    tw.figures.save(tw.figures.profile(scans, "test", "error").figure, settings.out / "profile")
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {where}; see {settings.out}")


if __name__ == "__main__":
    main()
