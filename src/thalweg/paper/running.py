"""Running entries: estimating their cost, training the networks they need, and measuring."""

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

import torch

from ..errors import Stopped, ThalwegError
from ..reporting.result import FILE, Result
from ..runtime.streams import on_side_stream
from ..store import files
from ..store.runs import versions
from .drawing import draw
from .entries import Entry
from .experiment import Experiment, Unusable, missing, prepare

Runs = list[tuple[Entry, Experiment]]
INTERLEAVED = 0.7  # time of three interleaved networks on a GPU, relative to one after another (docs/results.md)
Work = list[tuple[Experiment, int]]


def perform(experiment: Experiment, entry: Entry, seeds: int) -> Result:
    """Run one entry, after training the networks and curves it needs if they are missing."""
    began = time.perf_counter()
    prepare(entry.wanted(experiment, seeds))
    out = experiment.results / entry.name
    out.mkdir(parents=True, exist_ok=True)
    files.sweep(out)
    rows, claims = entry.run(experiment, out, seeds)
    about = {
        "scale": experiment.scale.name,
        "seeds": list(experiment.seeds) or seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": torch.cuda.get_device_name(experiment.device) if experiment.device.type == "cuda" else "CPU",
        "seconds of training": round(sum(owner.seconds(need) for owner, need in entry.wanted(experiment, seeds)), 1),
        "recipe": asdict(experiment.recipe),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "precision": experiment.compute.precision,
    }
    result = Result(entry.name, experiment.recipe.label, rows, claims, about)
    result.save(out / FILE)
    draw(out)
    return result


def perform_all(runs: Runs, seeds: int, say: Callable[[str], object]) -> None:
    """Train everything needed, then measure; a run that fails does not stop the others."""
    failed = []
    try:
        with suppress(Unusable):  # the entries that need it say so below, and the others go on
            prepare([item for entry, experiment in runs for item in entry.wanted(experiment, seeds)])
        for entry, experiment in runs:
            try:
                say(f"\n{perform(experiment, entry, seeds)}\nwrote {experiment.results / entry.name}")
            except ThalwegError as error:
                failed.append(f"{entry.name}: {error}")
    except KeyboardInterrupt as error:  # Stopped, if it came in a loop that saves its state
        number = error.signal if isinstance(error, Stopped) else signal.SIGINT
        raise Stopped("stopped; everything trained and measured so far is kept", number) from None
    if failed:
        raise ThalwegError("; ".join(failed))


def train_part(runs: Runs, seeds: int, shard: str) -> str:
    """What can be trained now, divided among shards; the next stage once all shards have finished this one."""
    i, _, n = shard.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise ThalwegError(f"a shard is part i of n, such as 1/4; got '{shard}'")
    wanted = list(dict.fromkeys(item for entry, experiment in runs for item in entry.wanted(experiment, seeds)))
    stages = {need.stage for _, need in missing(wanted)}
    # the same division on every machine
    own = [item for item in wanted if item[1].stage == min(stages, default=0)][int(i) - 1 :: int(n)]
    todo = missing(own)
    prepare(todo)
    again = "more can be trained once all shards are done: run the command again"
    following = again if len(stages) > 1 else "then run it without --shard"
    return f"trained {len(todo)} of the {len(own)} of this shard; {following}"


def price(runs: Runs, seeds: int) -> str:
    """What has to be trained and what will be measured, in a sentence."""
    wanted = [item for entry, experiment in runs for item in entry.wanted(experiment, seeds)]
    left = missing(wanted)
    costs = [experiment.cost(need) for experiment, need in left]
    epochs, disk = (sum(cost[k] for cost in costs) for k in (0, 1))
    steps = [(experiment, cost[0] * len(experiment.train)) for (experiment, _), cost in zip(left, costs, strict=True)]
    points = _to_measure(runs, seeds)
    listed = ", ".join(f"{number} x {kind}" for kind, number in Counter(need.kind for _, need in left).items())
    before = len({experiment.folder_of(need) for experiment, need in wanted}) - len(left)
    parts = [
        f"to train: {listed}, {epochs} epochs, {sum(n for _, n in steps)} steps" if left else "nothing to train",
        f"{before} trained before" if before else "",
        f"{disk / 1e9:.1f} GB on disk" if disk > 1e8 else "",
        f"to measure: {sum(n for _, n in points)} points" if points else "",
        _duration(steps, points),
        *(entry.more for entry, _ in runs),
    ]
    return "; ".join(filter(None, parts))


def _to_measure(runs: Runs, seeds: int) -> Work:
    """The points of what is not stored yet, of what several entries need once."""
    once = {
        (owner.results, stored): (owner, number)
        for entry, experiment in runs
        for owner, stored, number in entry.points(experiment, seeds)
    }
    return [work for (folder, stored), work in once.items() if not any(folder.glob(stored))]


def _duration(steps: Work, points: Work) -> str:
    """An estimate of the time it takes here, from a few steps of each network, of which a forward pass is a third."""
    used = {experiment.folder: experiment for experiment, _ in (*steps, *points)}
    if all(experiment.scale.name == "smoke" for experiment in used.values()):
        return ""
    pace = {folder: _seconds_per_step(experiment) for folder, experiment in used.items()}
    training = sum(pace[experiment.folder] * number for experiment, number in steps)
    if len(steps) > 1 and steps[0][0].device.type == "cuda" and steps[0][0].interleaved > 1:
        training *= INTERLEAVED
    measuring = sum(pace[experiment.folder] / 3 * experiment.batches_per_point() * n for experiment, n in points)
    parts = [
        f"{f'{seconds / 60:.0f} minutes' if seconds > 90 else f'{seconds:.0f} seconds'} of {part}"
        for part, seconds in {"training": training, "measuring": measuring}.items()
        if seconds
    ]
    return f"about {' and '.join(parts)} here"


def _seconds_per_step(experiment: Experiment) -> float:
    timer = experiment.timer(replace(experiment.compute, compile=False), rounds=3)
    with on_side_stream(experiment.device):
        step = timer.plain_step()
        return timer.alternate({"steps": lambda: [step() for _ in range(timer.steps)]}, per=timer.steps)["steps"].median
