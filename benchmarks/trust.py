"""What it costs to check that a network is measured with its own weights: the share of a scan of 61 points that the
checks take, and what they add to a training step.

Run with `python benchmarks/trust.py`. The parts of a scan are timed while it runs, in processor time, so that all see
the same machine load: the pass that is watched, what watching adds to the first batch of the last point, measuring that
point again, and saving and restoring at every point the state that a network keeps in addition to its weights. Steps
are timed with the watch and without it, interleaved.
"""

import time
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest.mock import patch

import torch
from torch import nn

import thalweg as tw
from thalweg.demo import digits
from thalweg.evaluation import scan as scanning
from thalweg.evaluation.measure import Measurement
from thalweg.paper.models import preresnet164
from thalweg.runtime import accelerated
from thalweg.weightspace.proof import Proof
from thalweg.weightspace.state import ModuleState

ROUNDS, POINTS = 15, 61
PROVING = ((scanning, "prove_measuring"), (Proof, "again"), (scanning, "_look_again"), (scanning, "probe_at"))
KEEPING = ((ModuleState, "__init__"), (ModuleState, "renewed"), (ModuleState, "restore"))


@contextmanager
def clocked(places, spent, outer=()):
    """Note the processor time inside these functions, once where one calls another, and not where something `outer`
    does.
    """
    inside = []

    def timed(function):
        def call(*args, **kwargs):
            begun = time.process_time()
            inside.append(function)
            try:
                return function(*args, **kwargs)
            finally:
                inside.pop()
                if not inside and not outer:
                    spent.append(time.process_time() - begun)

        return call

    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        yield inside


def scanned(module, data, refresh, points):
    """Seconds of a scan without proving, seconds of proving, and of keeping in a point."""
    curve = tw.Segment(tw.Weights.of(module), tw.Weights.of(module))
    proving, keeping, usual, observed = [], [], [], []

    def add(measurement, drawn, add=Measurement._add):
        begun, kind = time.process_time(), usual if measurement.proof is None else observed
        add(measurement, drawn)
        kind.append(time.process_time() - begun)

    begun = time.process_time()
    with (
        clocked(PROVING, proving) as inside,
        clocked(KEEPING, keeping, inside),
        patch.object(Measurement, "_add", add),
    ):
        tw.scan(module, curve, tw.classification(), data, points=points, bn_batches=refresh)
    first = proving.pop(0)  # the first copy of the network, which there would be anyway
    total = time.process_time() - begun
    added = sum(proving) + observed[0] - median(usual)
    return (total - added - first) / points, added, sum(keeping) / points


def trained(module, batches, steps, watched):
    """Seconds of a step after the first."""
    times = []

    def note(step):
        def call(self, *args, **kwargs):
            begun = time.process_time()
            loss = step(self, *args, **kwargs)
            times.append(time.process_time() - begun)
            return loss

        return call

    with ExitStack() as stack:
        stack.enter_context(patch.object(accelerated.Accelerated, "__call__", note(accelerated.Accelerated.__call__)))
        if not watched:
            stack.enter_context(patch.object(accelerated, "watched", lambda probe, work: (None, work())))
        tw.fit(module, tw.classification(), batches, epochs=-(-steps // len(batches)), lr=1e-3)
    return times[1:]


def batches(count, size, *shape):
    return [(torch.randn(size, *shape), torch.randint(10, (size,))) for _ in range(count)]


def convolutions():
    layers = [
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def cases():
    """Name, network, data, batches for batch-norm statistics, and points to measure; the rest is extrapolated."""
    demo, images, large = digits(0), batches(8, 64, 3, 16, 16), batches(10, 8, 3, 32, 32)
    dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    yield "two layers, 10 batches of 128", dense, {"test": batches(10, 128, 64)}, None, POINTS
    yield (
        "two layers, 40 and 10 batches of 128",
        dense,
        {"train": batches(40, 128, 64), "test": batches(10, 128, 64)},
        None,
        POINTS,
    )
    yield "the demo's, refreshed", demo["model"], demo["data"], demo["bn_batches"], POINTS
    yield (
        "two convolutions with batch norm, 8 batches of 64, refreshed",
        convolutions(),
        {"test": images},
        images,
        POINTS,
    )
    yield "PreResNet-164, 10 batches of 8, refreshed", preresnet164(), {"test": large}, large, 4


def show_scans():
    for name, module, data, refresh, points in cases():
        scanned(module, data, refresh, 2)
        found = [scanned(module, data, refresh, points) for _ in range(ROUNDS if points == POINTS else 2)]
        plain, proving, keeping = (median(column) for column in zip(*found, strict=True))
        total = plain * POINTS
        print(
            f"{name}: {total:.2f} s, proving {1e3 * proving:.1f} ms a call, {100 * proving / total:.2f} %; "
            f"keeping {1e3 * keeping:.2f} ms a point, {100 * keeping / plain:.2f} %",
            flush=True,
        )


def show_steps():
    dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for name, module, data, steps in (
        ("two layers, batch 128", dense, batches(10, 128, 64), 400),
        ("two convolutions with batch norm, batch 64", convolutions(), batches(8, 64, 3, 16, 16), 48),
    ):
        times = {True: [], False: []}
        for _ in range(ROUNDS):
            for watched, found in times.items():
                found += trained(module, data, steps, watched)
        with_it, without = (median(times[watched]) for watched in (True, False))
        print(f"a step, {name}: {1e3 * without:.3f} ms, {1e3 * with_it:.3f} ms where the first was watched", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    show_scans()
    show_steps()
