"""The cost of a step, a scanned point and a checkpoint with your network, on this machine."""

import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thalweg as tw

from .batches import count
from .evaluation.scan import Measurer
from .loading import Inputs
from .results import grid
from .runtime.accelerated import Accelerated
from .runtime.compute import LONG, Call, Context, present
from .runtime.streams import on_side_stream
from .runtime.transfer import source
from .store.packing import packed
from .store.runs import Run, versions
from .training.checkpoint import state_of
from .training.sgd import make_optimizer
from .training.step import Network, Step, Trainable, UniformBends
from .training.walk import WalkObserver
from .training.walk_methods import Plan
from .weightspace.layout import batch_norms
from .weightspace.probe import Probe

MOMENTUM, DECAY, RATE = 0.9, 5e-4, 1e-3
PATIENCE = 30.0  # seconds for one part
WARM = 4  # steps before anything is timed: eager, watched, captured, replayed


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing, timed repeatedly; each time processes `images` examples, and `memory` bytes were needed."""

    seconds: list[float]
    images: int | None = None
    memory: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high

    def to_dict(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "quartiles": self.quartiles,
            "images_per_second": self.images / self.median if self.images else None,
            "memory": self.memory,
            "times": len(self.seconds),
        }


class Bench:
    """Times the parts of thalweg with one network and its data.

    Args:
        inputs: The network, task and data.
        compute: How to compute.
        rounds: How often each part is timed.
        steps: Training steps per timing; more on a GPU, where one is short.
    """

    def __init__(self, inputs: Inputs, compute: tw.Compute, rounds: int = 15, steps: int | None = None):
        self.inputs, self.rounds = inputs, rounds
        self.device = next(inputs.model.parameters()).device
        self.compute = replace(compute, compile=compute.compiles(self.device, LONG, inputs.model))
        self.steps = steps or (20 if self.device.type == "cuda" else 1)
        passes, make_batch = source(inputs.train, self.device)
        self.batch = make_batch(next(passes()))
        predictions = inputs.task.predictions(Probe(inputs.model).module, self.batch)
        self.size = int(inputs.task.losses(*predictions, self.batch)[1])
        end = tw.Weights.of(inputs.model).bare()
        self.curve = tw.Bezier(end, end)

    def run(self, number: int = 0) -> dict[str, Timing]:
        """Everything; with `number` networks interleaved, if given."""
        with on_side_stream(self.device):
            return {
                **self.training(),
                "data pipeline": self.pipeline(),
                **self.scanning(),
                "checkpoint": self.checkpoint(),
                **(self.interleaved(number) if number > 1 else {}),
            }

    def training(self, others: Mapping[str, Callable[[], Callable[[], object]]] | None = None) -> dict[str, Timing]:
        """Plain, curve and walk steps on one batch, and others by name, interleaved so that all see the same load."""
        if self.compute.compile:
            _repeat(self.plain_step(), 2)  # so that no peak of memory below includes the compiler's trial
        works, memory = {}, {}
        steps = {
            "plain step": self.plain_step,
            "curve step": self.curve_step,
            "walk step": self.walk_step,
            **(others or {}),
        }
        for name, make in steps.items():
            before = self._memory()
            works[name] = make()
            _repeat(works[name], WARM)
            memory[name] = None if before is None else torch.cuda.max_memory_allocated(self.device) - before
        repeated = {name: partial(_repeat, work, self.steps) for name, work in works.items()}
        found = self.alternate(repeated, per=self.steps, images=self.size)
        return {name: replace(timing, memory=memory[name]) for name, timing in found.items()}

    def step(self, trainable: Trainable) -> Accelerated:
        trainable.probe.module.train()
        optimizer = make_optimizer(trainable.vectors, MOMENTUM)
        return Accelerated(Step(trainable, self.inputs.task, optimizer, DECAY), Context(), self.compute)

    def plain_step(self) -> Callable[[], object]:
        return partial(self.step(Network(Probe(self.inputs.model, None, self.compute))), self.batch, RATE)

    def curve_step(self) -> Callable[[], object]:
        trainable = UniformBends(Probe(self.inputs.model, self.curve.start, self.compute), self.curve)
        return partial(self.step(trainable), self.batch, RATE)

    def walk_step(self) -> Callable[[], object]:
        step = self.step(Network(Probe(self.inputs.model, None, self.compute)))
        plan = Plan(lambda i: RATE, lambda i: False, 1)
        observer = WalkObserver(plan, self.inputs.task, {}, {}, None, Call(self.compute))
        observer.begin(step, 1)
        return lambda: observer.after_step(1, RATE, step(self.batch, RATE))

    def pipeline(self) -> Timing:
        """One pass over the training data, per batch."""
        passes, make_batch = source(self.inputs.train, self.device)
        replay = self.compute.repeated(make_batch, nn.Identity(), self.device)
        works = {"pass": lambda: [replay(drawn) for drawn in passes()]}
        return self.alternate(works, 5, per=count(self.inputs.train), images=self.size)["pass"]

    def scanning(self) -> dict[str, Timing]:
        """A point of a scan, and the forward passes in it alone."""
        probe = Probe(self.inputs.model, None, self.compute)
        bn_batches = self.inputs.bn_batches if any(batch_norms(probe.module)) else None
        at = Measurer(probe, self.inputs.task, self.inputs.data, bn_batches, DECAY, self.compute)
        places = cycle(k / 60 for k in range(61))
        works: dict[str, Callable[[], object]] = {
            "scan point": lambda: at(self.curve.point(next(places))),
            "its forward passes": _forwards(at, self.inputs.task, self.compute),
        }
        for work in works.values() if self.device.type == "cuda" else ():
            _repeat(work, 2)  # in which the last of all kinds of batches is captured
        return self.alternate(works, 5)

    def interleaved(self, number: int = 3) -> dict[str, Timing]:
        """Steps of several networks interleaved, and of the same networks one after another, per step of one."""
        steps = max(self.steps, WARM)
        jobs = [partial(self._take_steps, self.plain_step(), steps) for _ in range(number)]
        works: dict[str, Callable[[], object]] = {
            f"{number} together": lambda: tw.together(*jobs),
            "one by one": lambda: [tw.together(job) for job in jobs],
        }
        for work in reversed(works.values()):
            work()
        return self.alternate(works, per=steps * number, images=self.size)

    def _take_steps(self, step: Callable[[], object], times: int) -> None:
        job = present.get().job
        with on_side_stream(self.device, present.get().stream):
            for _ in range(times):
                step()
                if job is not None:
                    job.switch()

    def checkpoint(self) -> Timing:
        """Saving everything that plain training needs to be resumed."""
        step = self.step(Network(Probe(self.inputs.model, None, self.compute)))
        step(self.batch, RATE)
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder))
            return self.alternate({"save": lambda: run.save(*packed(state_of(step.plain)))}, 7)["save"]

    def alternate(
        self, works: Mapping[str, Callable[[], object]], most: int = 10**6, *, per: int = 1, images: int | None = None
    ) -> dict[str, Timing]:
        """Time each, alternating in both orders; the first round does not count, and none starts after half a minute.

        Args:
            works: What to time, by name.
            most: The most rounds.
            per: The number of steps or batches in each, of which one is reported.
            images: Examples in one of them.
        """
        found: dict[str, list[float]] = {name: [] for name in works}
        begun = time.perf_counter()
        for number in range(min(self.rounds, most) + 1):
            if number > 1 and time.perf_counter() - begun > PATIENCE:
                break
            for name in list(works)[:: 1 if number % 2 else -1]:
                self._wait()
                start = time.perf_counter()
                works[name]()
                self._wait()
                found[name].append(time.perf_counter() - start)
        return {name: Timing([t / per for t in seconds[1:]], images) for name, seconds in found.items()}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _memory(self) -> int | None:
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)


def _forwards(at: Measurer, task: tw.Task, compute: tw.Compute) -> Callable[[], None]:
    """The forward passes of a scanned point and nothing else: no weights placed, no statistics pooled, nothing
    measured.
    """
    module, device = at.probe.module, at.probe.device
    pool = torch.cuda.graph_pool_handle() if compute.captures(device) else None

    def work(make_batch: Callable[[Any], Any], drawn: Any) -> None:
        with compute.casting(device):
            task.predictions(module, make_batch(drawn))

    statistics, parts = at.points.statistics, []
    with_statistics = [] if statistics is None or not statistics.layers else [(True, statistics.batches)]
    for learning, batches in [*with_statistics, *((False, measure.used) for measure in at.measures.values())]:
        passes, make_batch = source(batches, device)
        parts.append((learning, passes, compute.repeated(partial(work, make_batch), module, device, pool)))

    @torch.no_grad()
    def forwards() -> None:
        for learning, passes, replay in parts:
            module.eval()
            for _, layer in batch_norms(module):
                layer.training = learning
            for drawn in passes():
                replay(drawn)
        module.eval()

    return forwards


def table(timings: dict[str, Timing]) -> str:
    """
    >>> print(table({"plain step": Timing([0.1, 0.1, 0.1, 0.1], 128, 5_000_000)}))
                median ms      quartiles ms  examples / s  memory MB
    ----------------------------------------------------------------
    plain step     100.00  100.00 to 100.00         1,280          5
    """
    rows = [
        [
            name,
            f"{1e3 * timing.median:.2f}",
            " to ".join(f"{1e3 * seconds:.2f}" for seconds in timing.quartiles),
            f"{timing.images / timing.median:,.0f}" if timing.images else "-",
            "-" if timing.memory is None else f"{timing.memory / 1e6:,.0f}",
        ]
        for name, timing in timings.items()
    ]
    return grid(["", "median ms", "quartiles ms", "examples / s", "memory MB"], rows)


def ratios(timings: dict[str, Timing]) -> dict[str, float]:
    """The cost of each part relative to its lower bound.

    >>> ratios({"plain step": Timing([2.0, 2.0, 2.2]), "curve step": Timing([2.1, 2.2, 2.3])})
    {'curve step / plain step': 1.1}
    """
    together = next((name for name in timings if name.endswith("together")), "")
    pairs = {
        "curve step": "plain step",
        "walk step": "plain step",
        "scan point": "its forward passes",
        together: "one by one",
    }
    return {
        f"{one} / {two}": timings[one].median / timings[two].median
        for one, two in pairs.items()
        if {one, two} <= timings.keys()
    }


def machine(device: torch.device) -> dict[str, Any]:
    return {
        **versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _images(make: Callable[[], nn.Module], seed: int) -> dict[str, Any]:
    """A network and random images of CIFAR's size (on a GPU also as many): for timing, not for learning."""
    device, share = ("cuda", 1) if torch.cuda.is_available() else ("cpu", 50)

    def batches(images: int, **settings: Any) -> tw.data.DeviceBatches:
        pixels, labels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (images,))
        settings |= {"mean": (0.5,) * 3, "std": (0.25,) * 3, "device": device}
        return tw.data.DeviceBatches(pixels, labels, 128, **settings)

    train = batches(50_000 // share, shuffle=True, crop=4, flip=True)
    return {
        "model": make(),
        "task": tw.classification(),
        "train": train,
        "bn_batches": train.clean(),
        "data": {"train": train.clean(), "test": batches(10_000 // share)},
    }


# task factories for `thalweg bench`
vgg16 = partial(_images, tw.models.vgg16)
preresnet164 = partial(_images, tw.models.preresnet)
wrn28_10 = partial(_images, tw.models.wrn28_10)
