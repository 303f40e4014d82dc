"""A fine-tuned network mixed with the one it came from (WiSE-FT), on the old task and on the new one.

$ python examples/wise_ft.py

A small network on handwritten digits, fine-tuned with 200 images to say whether a digit that lies on its side is odd.
The straight line between both networks is measured at 21 values of alpha, of which the one with the lowest sum of both
errors on 400 held-out images is chosen. Errors on 597 other images, of which one is 0.17 %:

    as it came   alpha = 0      old task  9.55 %, new task 15.41 %
    chosen       alpha = 0.65   old task 12.56 %, new task  8.54 %
    fine-tuned   alpha = 1      old task 18.59 %, new task  6.70 %

The head of the new task exists at one end only. Both ends of a line must have the same parameters, so it is first
trained on the original body, and fine-tuning starts from there. The head of the old task is then frozen, and so is the
same at both ends.

5 s, 2026-11-16: one thread of 2 CPU cores, Python 3.11, torch 2.13.0 CPU.
"""

import argparse
import time

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import thalweg as tw


class TwoHeads(nn.Module):
    """A body with a head for each task; batches say which head they are for."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.digit, self.parity = nn.Linear(64, 10), nn.Linear(64, 2)

    def forward(self, images: Tensor, head: str) -> Tensor:
        return {"digit": self.digit, "parity": self.parity}[head](self.body(images))


def batches(images: Tensor, labels: Tensor, head: str) -> list[dict[str, object]]:
    """Dict batches: everything but the labels is passed to the network by name."""
    if head == "parity":  # the new task: of images turned by a right angle, whether the digit is odd
        images, labels = images.rot90(1, (-2, -1)), labels % 2
    parts = zip(images.float().split(64), labels.split(64), strict=True)
    return [{"images": x / 255 - 0.5, "labels": y, "head": head} for x, y in parts]


def trained(
    module: TwoHeads, start: tw.Weights | None, moving: str, train: list[dict[str, object]], epochs: int
) -> tw.Weights:
    """Train the parameters whose names start with one of the words in `moving`; the others are frozen."""
    if start is not None:
        start.load_into(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.split(".")[0] in moving.split())
    return tw.fit(module, tw.classification(), train, epochs=epochs, lr=0.1, weight_decay=1e-4, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each training")
    parser.add_argument("--points", type=int, default=21, help="how many values of alpha")
    settings = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(0)
    images, labels = (torch.cat(part) for part in zip(*tw.data.digits(), strict=True))
    parts = {"train": slice(0, 600), "new": slice(600, 800), "held-out": slice(800, 1200), "test": slice(1200, None)}
    data = {
        f"{head}, {name}": batches(images[parts[name]], labels[parts[name]], head)
        for head in ("digit", "parity")
        for name in ("held-out", "test")
    }

    # 1. The network to come from: body and old head. The new head is still random.
    module = TwoHeads()
    old = batches(images[parts["train"]], labels[parts["train"]], "digit")
    origin = trained(module, None, "body digit", old, settings.epochs)

    # 2. A head that exists at one end only: train it on the body as it is, so that it exists at both.
    new = batches(images[parts["new"]], labels[parts["new"]], "parity")
    probed = trained(module, origin, "parity", new, settings.epochs)

    # 3. Fine-tune body and new head. The old head is frozen, so that it is the same at both ends, as it must be.
    tuned = trained(module, probed, "body parity", new, settings.epochs)
    probed.load_into(module)
    start = tw.Weights.of(module)  # with the body moving, as in `tuned`

    # 4. The line from one to the other, on both tasks.
    scan = tw.scan(module, tw.Segment(start, tuned), tw.classification(), data, points=settings.points)
    print(scan.table())
    old_error, new_error = (100 * scan.values[f"{head}, test"]["error"] for head in ("digit", "parity"))
    chosen = int(sum(scan.values[f"{head}, held-out"]["error"] for head in ("digit", "parity")).argmin())
    places = {"as it came": 0, "chosen": chosen, "fine-tuned": settings.points - 1}
    for name, k in places.items():
        print(f"{name:10} alpha = {scan.t[k]:.2f}: old task {old_error[k]:5.2f} %, new task {new_error[k]:5.2f} %")

    # 5. One score against the other: what a step of alpha gains on one task and costs on the other.
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    ax = figure.subplots()
    tw.figures.lines({"line": (old_error, new_error)}, "test error, old task (%)", "test error, new task (%)", ax)
    for name, k in places.items():
        ax.plot(old_error[k], new_error[k], "o", color="#d55e00")
        spot, aside = (old_error[k], new_error[k]), {"xytext": (6, 8), "textcoords": "offset points"}
        ax.annotate(
            f"{name}, alpha = {scan.t[k]:.2f}", spot, ha="right" if k == settings.points - 1 else "left", **aside
        )
    ax.margins(0.12)
    figure.savefig("wise_ft.png", dpi=150)
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
