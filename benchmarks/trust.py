"""What proving costs: scans of 61 points with and without the first pass being watched and the last point measured again.

Run with `python benchmarks/trust.py`; both ways take turns, and the median of their times is shown.
"""

import time
from contextlib import ExitStack
from statistics import median
from unittest.mock import patch

import torch
from torch import nn

import thalweg as tw
from thalweg.demo import digits
from thalweg.evaluation import scan as scanning

ROUNDS, POINTS = 7, 61


def timed(module, data, refresh, proven):
    curve = tw.Segment(tw.Weights.of(module), tw.Weights.of(module))
    with ExitStack() as without:
        if not proven:
            for name in ("prove_measuring", "_look_again", "prove_on"):
                without.enter_context(patch.object(scanning, name, lambda *args, **kwargs: None))
        begun = time.process_time()
        tw.scan(module, curve, tw.classification(), data, points=POINTS, refresh=refresh)
        return time.process_time() - begun


def batches(count, size, *shape):
    return [(torch.randn(size, *shape), torch.randint(10, (size,))) for _ in range(count)]


def cases():
    demo = digits(0)
    dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    yield "digits of the demo", demo["model"], demo["data"], demo.get("refresh")
    yield "two layers, 10 batches", dense, {"test": batches(10, 128, 64)}, None
    yield "two layers, 40 and 10 batches", dense, {"train": batches(40, 128, 64), "test": batches(10, 128, 64)}, None


if __name__ == "__main__":
    for name, module, data, refresh in cases():
        times = {proven: [] for proven in (True, False)}
        timed(module, data, refresh, True)
        for _ in range(ROUNDS):
            for proven, found in times.items():
                found.append(timed(module, data, refresh, proven))
        with_it, without = (median(times[proven]) for proven in (True, False))
        print(f"{name}: {without:.3f} s, {with_it:.3f} s proven: {100 * (with_it / without - 1):+.1f} %")
