"""The cost of a list of entries, shown before it starts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..bench import Bench, Timing
from ..loading import Inputs
from ..runtime.cuda_graphs import aside
from .entries import Entry
from .experiment import Experiment, Wanted, missing

TOGETHER = 0.7  # time of three interleaved networks on a GPU, relative to one after another (docs/results.md)


def price(runs: Sequence[tuple[Entry, Experiment]], seeds: int) -> str:
    """What has to be trained and what will be measured, in a sentence."""
    wanted = [item for entry, experiment in runs for item in entry.wanted(experiment, seeds)]
    left = missing(wanted)
    epochs, steps = (
        sum(experiment.epochs(need) for experiment, need in left),
        sum(experiment.epochs(n) * len(experiment.train) for experiment, n in left),
    )
    listed = ", ".join(f"{number} x {kind}" for kind, number in Counter(need.kind for _, need in left).items())
    before = len({(experiment.folder, need) for experiment, need in wanted}) - len(left)
    disk = sum(experiment.size_on_disk(need) for experiment, need in left) / 1e9
    parts = [
        f"to train: {listed}, {epochs} epochs, {steps} steps" if left else "nothing to train",
        f"{before} trained before" if before else "",
        f"{disk:.1f} GB on disk" if disk > 0.1 else "",
        f"to measure: {points} points"
        if (points := sum(entry.points(experiment.scale) for entry, experiment in runs))
        else "",
        _duration(left, runs),
        *(entry.more for entry, _ in runs),
    ]
    return "; ".join(part for part in parts if part)


def _duration(left: Wanted, runs: Sequence[tuple[Entry, Experiment]]) -> str:
    """An estimate of the time it takes here, from a few steps of each network, of which a forward pass is a third."""
    points = [(experiment, number) for entry, experiment in runs if (number := entry.points(experiment.scale))]
    shops = {experiment.folder: experiment for experiment, _ in (*left, *points)}
    if not shops or runs[0][1].scale.name == "smoke":
        return ""
    pace = {folder: _seconds_per_step(experiment) for folder, experiment in shops.items()}
    training = sum(
        pace[experiment.folder] * experiment.epochs(need) * len(experiment.train) for experiment, need in left
    )
    if len(left) > 1 and left[0][0].device.type == "cuda":
        training *= TOGETHER
    measuring = sum(
        number * experiment.batches_per_point() * pace[experiment.folder] / 3 for experiment, number in points
    )
    parts = [
        f"{_rounded(training)} of training" if left else "",
        f"{_rounded(measuring)} of measuring" if points else "",
    ]
    return f"about {' and '.join(part for part in parts if part)} here"


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def _seconds_per_step(experiment: Experiment) -> float:
    inputs = Inputs(experiment.form, experiment.task, experiment.train, None, {"train": experiment.train})
    timer = Bench(inputs, replace(experiment.compute, compile=False), rounds=3)
    with aside(experiment.device):
        step = timer.plain()
        return (
            Timing(timer.alternate({"step": lambda: [step() for _ in range(timer.steps)]})["step"]).median / timer.steps
        )
