"""Measure speed and memory on a CUDA GPU as in docs/results.md, in one run.

    python benchmarks/gpu.py OUT.json [--networks vgg16 preresnet164 wrn28_10] [--rounds N]

For each network, in the fastest mode (bf16, compiled, captured): plain, curve and walk steps of `thalweg bench`, and a
plain step written by hand, all interleaved on one batch of 128; whole epochs with augmentation; a scanned point and its
forward passes; three interleaved networks, also without the compiler; memory. Ratios are ratios of medians.
"""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional as F

from thalweg import bench
from thalweg.loading import load_inputs
from thalweg.paper import models
from thalweg.runtime.compute import Call, Compute
from thalweg.runtime.streams import on_side_stream
from thalweg.training.loop import Observer, Settings, train
from thalweg.training.step import Network
from thalweg.weightspace.probe import Probe
from thalweg.weightspace.weights import Weights


def by_hand(make, batch, compiled):
    """What you would write by hand to make this one network fast."""
    network = make().cuda().to(memory_format=torch.channels_last).train()
    rate = torch.tensor(bench.RATE, device="cuda")
    optimizer = torch.optim.SGD(
        network.parameters(), rate, momentum=bench.MOMENTUM, weight_decay=bench.DECAY, fused=True
    )
    function = torch.compile(network, dynamic=False) if compiled else network
    x, y = (tensor.clone() for tensor in batch)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(function(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        step()

    def replay():
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()

    return replay


class Clock(Observer):
    def __init__(self):
        self.ends = []

    def after_epoch(self, epoch):
        self.ends.append(time.perf_counter())


def epochs_of(timer, epochs):
    """Whole epochs of training, per step, as `fit` runs them; the first two, in which steps are captured, do not
    count.
    """
    inputs, clock = timer.inputs, Clock()
    settings = Settings(epochs, bench.RATE, bench.MOMENTUM, bench.DECAY, None, None, None, 0)
    trainable = Network(Probe(inputs.model, None, timer.compute))
    train(trainable, inputs.task, inputs.train, settings, Call(timer.compute, False), "bench", clock)
    return bench.Timing([(b - a) / len(inputs.train) for a, b in pairwise(clock.ends[1:])], timer.size)


def figures(name, compute, rounds):
    torch.cuda.empty_cache()
    inputs = load_inputs(f"thalweg.bench:{name}", 0, "cuda")
    make = {"vgg16": models.vgg16, "preresnet164": models.preresnet, "wrn28_10": models.wrn28_10}[name]
    timer = bench.Bench(inputs, compute, rounds, 20 if name == "vgg16" else 10)
    timings = {}
    with on_side_stream(timer.device):
        timings |= timer.training({"plain step by hand": partial(by_hand, make, timer.batch, timer.compute.compile)})
        timings["data pipeline"] = timer.pipeline()
        print(bench.table(timings), flush=True)
        timings |= timer.scanning()
        timings["checkpoint"] = timer.checkpoint()
    print(bench.table(timings), flush=True)
    timings["epoch, per step"] = epochs_of(timer, 5 if name == "vgg16" else 4)
    with on_side_stream(timer.device):
        fast = timer.interleaved()
    timings |= {f"{kind} (fastest mode)": timing for kind, timing in fast.items()}
    plain = bench.Bench(inputs, replace(compute, compile=False), rounds, timer.steps)
    with on_side_stream(timer.device):
        slow = plain.interleaved()
    timings |= {f"{kind} (not compiled)": timing for kind, timing in slow.items()}

    def ratio(one, two):
        return timings[one].median / timings[two].median

    vector = 4 * Weights.of(inputs.model).vector.numel()
    ratios = {
        "curve step / plain step": ratio("curve step", "plain step"),
        "plain step / by hand": ratio("plain step", "plain step by hand"),
        "walk step / plain step": ratio("walk step", "plain step"),
        "curve step, ms": 1e3 * timings["curve step"].median,
        "epoch / (steps x step)": ratio("epoch, per step", "plain step"),
        "scan point / its forward passes": ratio("scan point", "its forward passes"),
        "3 together / one by one, fastest mode": ratio("3 together (fastest mode)", "one by one (fastest mode)"),
        "3 together / one by one, not compiled": ratio("3 together (not compiled)", "one by one (not compiled)"),
        "memory of a curve, vectors beyond plain": (timings["curve step"].memory - timings["plain step"].memory)
        / vector,
    }
    print(f"\n{name}\n{bench.table(timings)}")
    for key, value in ratios.items():
        print(f"  {key:42s} {value:.3f}", flush=True)
    return {"timings": {key: timing.to_dict() for key, timing in timings.items()}, "ratios": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", nargs="+", default=["vgg16", "preresnet164", "wrn28_10"])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    found = {"machine": bench.machine(torch.device("cuda", 0))}
    for name in arguments.networks:
        found[name] = figures(name, Compute("bf16", compile=True, graph=True), arguments.rounds)
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
