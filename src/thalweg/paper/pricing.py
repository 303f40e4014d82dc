"""The cost of a list of entries, shown before it starts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..bench import Bench, Timing
from ..inputs import Inputs
from ..runtime.cuda_graphs import aside
from .entries import Entry
from .workshop import Wanted, Workshop, missing

TOGETHER = 0.7  # time of three interleaved networks on a GPU, relative to one after another (docs/results.md)


def price(runs: Sequence[tuple[Entry, Workshop]], seeds: int) -> str:
    """What has to be trained and what will be measured, in a sentence."""
    wanted = [item for entry, shop in runs for item in entry.wanted(shop, seeds)]
    left = missing(wanted)
    epochs, steps = (
        sum(shop.epochs(need) for shop, need in left),
        sum(shop.epochs(n) * len(shop.train) for shop, n in left),
    )
    listed = ", ".join(f"{number} x {kind}" for kind, number in Counter(need.kind for _, need in left).items())
    before = len({(shop.folder, need) for shop, need in wanted}) - len(left)
    disk = sum(shop.size_on_disk(need) for shop, need in left) / 1e9
    parts = [
        f"to train: {listed}, {epochs} epochs, {steps} steps" if left else "nothing to train",
        f"{before} trained before" if before else "",
        f"{disk:.1f} GB on disk" if disk > 0.1 else "",
        f"to measure: {points} points" if (points := sum(entry.points(shop.scale) for entry, shop in runs)) else "",
        _duration(left, runs),
        *(entry.more for entry, _ in runs),
    ]
    return "; ".join(part for part in parts if part)


def _duration(left: Wanted, runs: Sequence[tuple[Entry, Workshop]]) -> str:
    """An estimate of the time it takes here, from a few steps of each network, of which a forward pass is a third."""
    points = [(shop, number) for entry, shop in runs if (number := entry.points(shop.scale))]
    shops = {shop.folder: shop for shop, _ in (*left, *points)}
    if not shops or runs[0][1].scale.name == "smoke":
        return ""
    pace = {folder: _seconds_per_step(shop) for folder, shop in shops.items()}
    training = sum(pace[shop.folder] * shop.epochs(need) * len(shop.train) for shop, need in left)
    if len(left) > 1 and left[0][0].device.type == "cuda":
        training *= TOGETHER
    measuring = sum(number * shop.batches_per_point() * pace[shop.folder] / 3 for shop, number in points)
    parts = [
        f"{_rounded(training)} of training" if left else "",
        f"{_rounded(measuring)} of measuring" if points else "",
    ]
    return f"about {' and '.join(part for part in parts if part)} here"


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def _seconds_per_step(shop: Workshop) -> float:
    inputs = Inputs(shop.form, shop.task, shop.train, None, {"train": shop.train})
    timer = Bench(inputs, replace(shop.compute, compile=False), rounds=3)
    with aside(shop.device):
        step = timer.plain()
        return (
            Timing(timer.alternate({"step": lambda: [step() for _ in range(timer.steps)]})["step"]).median / timer.steps
        )
