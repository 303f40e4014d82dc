"""Continue training under a cyclic learning rate, and collect networks on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import Diverged, ThalwegError, whole_number
from ..evaluation.ensemble import Ensemble
from ..evaluation.fingerprint import Facts, measured_fingerprint
from ..evaluation.measure import Measurement, prove_measuring
from ..results import Trace, Walk
from ..runtime.accelerated import Accelerated
from ..runtime.compute import Call, Compute, StoredResult
from ..runtime.rng import MEASURING, seeded
from ..store import facts, files
from ..store.content import digest_of
from ..store.runs import MEMBERS, Run
from ..tasks import Task
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights, got
from .fingerprint import method_table, training_fingerprint
from .loop import Observer, OnEpoch, Settings, train, updates
from .sgd import OptimizerFactory
from .step import Network
from .walk_methods import Method, Plan

Start = Weights | Checkpoint
APART = 1_000_003  # between the seeds of several starts, which should not see the data in the same order


def walk(
    module: nn.Module,
    task: Task,
    batches: Batches,
    method: Method,
    *,
    epochs: int,
    start: Start | Sequence[Start] | None = None,
    watch: Mapping[str, Batches] | None = None,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    optimizer: OptimizerFactory | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    seed: int = 0,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
) -> Walk:
    """Continue training under a method's learning rate and collect networks on the way.

    Examples:
        >>> import thalweg as tw
        >>> batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(6)]
        >>> fge = tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01)
        >>> walk = tw.walk(nn.Linear(4, 3), tw.classification(), batches, fge, epochs=5)
        >>> len(walk.members), walk.traces[0].collected
        (3, [6, 18, 30])

    Args:
        module: The network. The walk starts from its weights unless `start` is given; it is left as it was.
        task: The loss to minimise.
        batches: The training data, an iterable of batches with a length.
        method: `FGE`, `Snapshot` or `SWA`.
        epochs: Passes over `batches`.
        start: Weights, or a checkpoint of `fit(keep=)` with its optimizer state. With several, one walk starts from
            each, and all collected networks are pooled.
        watch: Data by name, on which to measure at the start, after each epoch and at each collected network.
        momentum: Momentum of the default SGD.
        weight_decay: L2 penalty: adds `weight_decay * weights` to the gradient.
        optimizer: A torch optimizer class, a partial of one, or a function of named parameters, a list of pairs, that
            returns an optimizer or parameter groups for SGD; SGD with momentum by default. The learning rate is that of
            the first group; others keep the ratio of their own rate to it. It may have a weight decay of its own
            instead of `weight_decay`.
        clip: Clip the gradient of the data loss to this norm.
        accumulate: Batches per update, whose gradients are averaged over all their examples or tokens before they are
            clipped. Iterations, which schedules and cycles count, are updates.
        seed: Seed of shuffling, augmentation and dropout. The caller's random state is left untouched.
        compute: How to compute; see `Compute`.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
        on_epoch: Called after every epoch with a dict: `epoch`, `iteration`, `loss` (its mean over iterations), `rate`,
            `seconds`, and with several starts `start`. Random numbers that it draws do not affect the training. A
            resumed run calls it for the remaining epochs; with several processes, only rank 0 calls it.

    Returns:
        The collected networks in `.members`, on the CPU, and one `Trace` per start in `.traces`.

    Raises:
        Diverged: If the loss stops being finite; the networks collected until then are in `.members`.

    Warns:
        Stalled: If the network still predicts the same for every input after a tenth of the training.
    """
    starts: list[Any] = list(start) if isinstance(start, Sequence) and not isinstance(start, str) else [start]
    if not starts:
        raise ThalwegError("walk needs at least one start; got an empty list")
    if odd := [here for here in starts if here is not None and not isinstance(here, Weights | Checkpoint)]:
        raise ThalwegError(f"a walk starts from Weights, or from a checkpoint of fit(keep=); got {got(odd[0])}")
    if not isinstance(method, Method):
        raise ThalwegError(f"walk needs a method, such as FGE(cycle=2, lr_max=0.01, lr_min=0.0005); got {method!r}")
    steps = updates(batches, whole_number(accumulate, "accumulate", least=1))
    plan = method.plan(steps, whole_number(epochs, "epochs", least=1))
    common = Settings(epochs, None, momentum, weight_decay, plan.rate, optimizer, clip, seed, on_epoch, accumulate)
    call, watch = Call.of(compute, progress), watch or {}
    names = [f"start-{number}" for number in range(1, len(starts) + 1)]
    pooled: list[Walk] = []  # one from each start

    @cache
    def fingerprint() -> Facts:
        points = [here.weights if isinstance(here, Checkpoint) else here or Weights.of(module) for here in starts]
        states = {
            f"start {k}": digest_of([here.optimizer, here.kind, here.extra]) if isinstance(here, Checkpoint) else None
            for k, here in enumerate(starts, start=1)
        }
        return {
            **training_fingerprint(common, module, points[0], task, batches, call.compute, call.processes),
            "the method's": method_table(method, plan),
            "the starts": facts.sequence([point.digest() for point in points], "the walk", "start", list(states)),
            **{f"the optimizer state of {name}": facts.content(digest) for name, digest in states.items()},
            "watch": sorted(map(str, watch)),
            **measured_fingerprint(module, points[0], task, watch, call.compute),
        }

    def walked(number: int, folder: Run | None) -> Walk:
        made = {"by": "walk", "method": str(method), "start": number, "seed": common.seed}
        observer, here = WalkObserver(plan, task, watch, made, folder, call, starts[number]), starts[number]
        label = f"walking ({type(method).__name__}{f', start {number + 1}' if len(starts) > 1 else ''})"
        settings = replace(common, seed=common.seed + number * APART)
        if on_epoch is not None and len(starts) > 1:
            settings = replace(settings, on_epoch=lambda entry: on_epoch({"start": number + 1, **entry}))
        try:
            at = here.weights if isinstance(here, Checkpoint) else here
            trainable = Network(Probe(module, at, call.compute, share=True))
            train(trainable, task, batches, settings, call, label, observer, folder)
        except Diverged as error:
            error.members = [*_joined(pooled).members, *observer.members]
            raise
        return Walk(tuple(observer.members), (observer.trace(),))

    def all_walked(_: Run | None) -> Walk:
        for number, name in enumerate(names):
            pooled.append(call.resumed(Run.of(run, name), "walk", fingerprint, FROM_ONE_START, partial(walked, number)))
        return _joined(pooled)

    stored = StoredResult(f"trace-{len(starts)}.json", partial(_load, names), partial(_save, module))
    return call.resumed(run, "walk", fingerprint, stored, all_walked)


def _joined(walks: Sequence[Walk]) -> Walk:
    """What was collected from several starts."""
    return Walk(
        tuple(member for walk in walks for member in walk.members),
        tuple(trace for walk in walks for trace in walk.traces),
    )


def _load(names: Sequence[str], folder: Path) -> Walk:
    return _joined([FROM_ONE_START.load(folder / name) for name in names])


def _save(module: nn.Module, found: Walk, folder: Path) -> None:
    """The members as an ensemble, then the traces; the last one marks the walk as finished."""
    if found.members:
        Ensemble(module, found.members).save(files.no_link(folder / MEMBERS))
    for number, trace in enumerate(found.traces, start=1):
        trace.save(folder / f"trace-{number}.json")


def _load_one(folder: Path) -> Walk:
    trace = Trace.load(folder / files.TRACE)
    return Walk(tuple(Weights.load(_collected(folder, i)) for i in trace.collected), (trace,))


def _collected(folder: Path, i: int) -> Path:
    return files.no_link(folder / f"collected-{i:d}.safetensors")


FROM_ONE_START = StoredResult[Walk](
    files.TRACE, _load_one, lambda found, folder: found.traces[0].save(folder / files.TRACE)
)


@dataclass(eq=False)
class WalkObserver(Observer):
    """Collects the networks of the plan, and records every iteration."""

    plan: Plan
    task: Task
    watch: Mapping[str, Batches]
    made: dict[str, Any]
    run: Run | None
    call: Call
    start: Start | None = None
    members: list[Weights] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)  # loss and distance from the start, of each iteration
    watched_at: list[int] = field(default_factory=list)
    watched: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def begin(self, step: Accelerated, steps: int) -> None:
        self.probe, self.steps = step.plain.probe, steps
        if isinstance(self.start, Checkpoint):
            step.restore(self.start)
        self.measures = {
            name: Measurement(self.probe.module, self.task, batches, self.probe.device, self.call.compute, step.pool)
            for name, batches in self.watch.items()
        }
        self.origin = self.probe.point.clone()
        if self.watch:
            with self.probe.preserved():
                prove_measuring(self.probe, self.task, next(iter(self.watch.values())), self.call.compute).again()
            self._measure_watched(0)

    def after_step(self, i: int, lr: float, loss: Tensor) -> None:
        self.seen.append(torch.stack([loss, torch.dist(self.probe.point, self.origin)]))
        if self.plan.collects(i):
            self.members.append(self.probe.weights({**self.made, "iteration": i}).to("cpu"))
            if self.run is not None:
                self.members[-1].save(_collected(self.run.folder, i), apart=True)
        if self.watch and (self.plan.collects(i) or i % self.steps == 0):
            self._measure_watched(i)

    def state(self) -> dict[str, Any]:
        return {
            "origin": self.probe.to_layout_order(self.origin),
            "seen": torch.stack(self.seen) if self.seen else [],
            "watched_at": self.watched_at,
            "watched": self.watched,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.origin = self.probe.from_layout_order(state["origin"]).to(self.probe.device)
        self.seen = list(torch.as_tensor(state["seen"], device="cpu").to(self.probe.device))
        self.watched_at, self.watched = state["watched_at"], state["watched"]
        folder = self.run.folder if self.run is not None else Path()
        done = [i for i in self.plan.collected if i <= len(self.seen)]
        self.members = self.call.processes.once(lambda: [Weights.load(_collected(folder, i)) for i in done])

    def trace(self) -> Trace:
        lr = np.array([float(self.plan.rate(i)) for i in range(1, len(self.seen) + 1)])
        loss, distance = torch.stack(self.seen).double().cpu().numpy().T
        collected, units = self.plan.collected, dict(self.task.units)
        return Trace(lr, loss, distance, collected, self.steps, self.watched_at, self.watched, units)

    def _measure_watched(self, i: int) -> None:
        self.watched_at.append(i)
        with self.probe.preserved(), seeded(MEASURING, *self.watch.values()):
            self.probe.drop_caches()
            self.probe.module.eval()
            for name, measure in self.measures.items():
                measure()
                for quantity, value in measure.means().items():
                    self.watched.setdefault(name, {}).setdefault(quantity, []).append(value)
