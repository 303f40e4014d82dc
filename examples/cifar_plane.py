"""The plane of a curve between two networks on CIFAR, from the files that cifar_curve.py wrote.

$ python examples/cifar_plane.py cifar-curve --data ~/data

Draws train loss and test error in the plane through both networks and the bend of the curve between them, in which the
whole curve lies, as in the paper's first figure. To resume an interrupted scan, run the same command again.

After cifar_curve.py with its default settings, 21 x 21 points show a valley bent like the curve, with train losses down
to 0.23, and 2.7 on its inner side, where the straight line is. On its outer side the loss doubles with every unit of
distance, where the networks are 51 units apart: it is about 2,000 at the bend itself.

99 s, 2026-11-15: one NVIDIA H200 shared with another run, bf16, Python 3.12, torch 2.11.0.
"""

import argparse
import time
from pathlib import Path

import torch

import thalweg as tw

DECAY = 5e-4
COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the --out of cifar_curve.py")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with cifar-10-batches-bin or cifar-100-binary"
    )
    parser.add_argument("--grid", type=int, default=21, help="points along each side")
    parser.add_argument("--images", type=int, default=None, help="use only this many of each set, to try it out")
    return parser.parse_args()


def main() -> None:
    settings = arguments()
    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    curve = tw.Curve.load(settings.folder / "bezier" / "curve.safetensors")
    classes = len(list(curve.start.state_dict().values())[-1])  # the bias of the last layer
    network = tw.models.vgg16(classes).to(device)
    read = tw.data.cifar10 if classes == 10 else tw.data.cifar100
    sets = zip(("train", "test"), read(settings.data), strict=True)
    data = {
        name: tw.data.DeviceBatches(images[: settings.images], labels[: settings.images], 128, device=device, **COLOURS)
        for name, (images, labels) in sets
    }

    scan = tw.scan(
        network,
        tw.Plane(curve.start, curve.end, curve.bends[0]),
        tw.classification(),
        data,
        grid=(settings.grid, settings.grid),
        weight_decay=DECAY,
        overlay={"Bezier": curve},
        compute=tw.Compute("bf16" if device == "cuda" else "fp32"),
        run=settings.folder / "plane",
    )
    print(scan.table())
    scan.save(settings.folder / "plane.json")
    for name, quantity in (("train", "loss"), ("test", "error")):
        tw.figures.save(tw.figures.surface(scan, name, quantity).figure, settings.folder / f"plane-{name}-{quantity}")
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {where}; see {settings.folder}")


if __name__ == "__main__":
    main()
