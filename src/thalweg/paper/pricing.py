"""The cost of a list of entries, shown before it starts."""

from collections import Counter
from dataclasses import replace

from ..runtime.cuda_graphs import aside
from .entries import Runs
from .experiment import Experiment, missing

TOGETHER = 0.7  # time of three interleaved networks on a GPU, relative to one after another (docs/results.md)
Work = list[tuple[Experiment, int]]


def price(runs: Runs, seeds: int) -> str:
    """What has to be trained and what will be measured, in a sentence."""
    wanted = [item for entry, experiment in runs for item in entry.wanted(experiment, seeds)]
    left = missing(wanted)
    costs = [experiment.cost(need) for experiment, need in left]
    epochs, disk = (sum(cost[k] for cost in costs) for k in (0, 1))
    steps = [(experiment, cost[0] * len(experiment.train)) for (experiment, _), cost in zip(left, costs, strict=True)]
    points = [(experiment, entry.points(experiment, seeds)) for entry, experiment in runs]
    listed = ", ".join(f"{number} x {kind}" for kind, number in Counter(need.kind for _, need in left).items())
    before = len({experiment.place(need) for experiment, need in wanted}) - len(left)
    parts = [
        f"to train: {listed}, {epochs} epochs, {sum(n for _, n in steps)} steps" if left else "nothing to train",
        f"{before} trained before" if before else "",
        f"{disk / 1e9:.1f} GB on disk" if disk > 1e8 else "",
        f"to measure: {sum(n for _, n in points)} points" if any(n for _, n in points) else "",
        _duration(steps, [(experiment, number) for experiment, number in points if number]),
        *(entry.more for entry, _ in runs),
    ]
    return "; ".join(filter(None, parts))


def _duration(steps: Work, points: Work) -> str:
    """An estimate of the time it takes here, from a few steps of each network, of which a forward pass is a third."""
    used = {experiment.folder: experiment for experiment, _ in (*steps, *points)}
    if all(experiment.scale.name == "smoke" for experiment in used.values()):
        return ""
    pace = {folder: _seconds_per_step(experiment) for folder, experiment in used.items()}
    training = sum(pace[experiment.folder] * number for experiment, number in steps)
    if len(steps) > 1 and steps[0][0].device.type == "cuda":
        training *= TOGETHER
    measuring = sum(pace[experiment.folder] / 3 * experiment.batches_per_point() * n for experiment, n in points)
    parts = {"training": training, "measuring": measuring}
    return f"about {' and '.join(f'{_rounded(time)} of {part}' for part, time in parts.items() if time)} here"


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def _seconds_per_step(experiment: Experiment) -> float:
    timer = experiment.timer(replace(experiment.compute, compile=False), rounds=3)
    with aside(experiment.device):
        step = timer.plain_step()
        return timer.alternate({"steps": lambda: [step() for _ in range(timer.steps)]}, per=timer.steps)["steps"].median
