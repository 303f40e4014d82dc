"""Continue training under a cyclic learning rate, and collect networks on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import Batches, count
from ..errors import Diverged, ThalwegError, whole
from ..evaluation.ensemble import Ensemble
from ..evaluation.measure import Measurement, prove_measuring
from ..results import Trace, Walk
from ..runtime.accelerated import Accelerated
from ..runtime.compute import Call, Compute, StoredResult
from ..runtime.rng import seeded
from ..store import files
from ..store.files import TRACE
from ..store.runs import MEMBERS, Run
from ..tasks import Task
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights
from .loop import Observer, Settings, train
from .motion import Network
from .optimizers import OptimizerFactory
from .question import walk_question
from .walk_methods import Method, Plan

Start = Weights | Checkpoint
Story = tuple[list[Weights], Trace]  # the networks collected from one start, and what happened on the way
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
    seed: int = 0,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
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
        optimizer: Makes a torch optimizer from flat vectors; it must not apply weight decay itself. SGD by default.
        clip: Clip the gradient of the data loss to this norm.
        seed: Seed of shuffling, augmentation and dropout. The caller's random state is left untouched.
        compute: How to compute; see `Compute`.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.

    Returns:
        The collected networks in `.members`, on the CPU, and one `Trace` per start in `.traces`.
    """
    single = start is None or isinstance(start, Weights | Checkpoint) or not isinstance(start, Sequence)
    starts: list[Any] = [start] if single else list(start)  # type: ignore[arg-type]
    given = [(here.weights, here) if isinstance(here, Checkpoint) else (here, None) for here in starts]
    epochs, seed = whole(epochs, "epochs", least=1), whole(seed, "seed")
    _check(starts, method)
    plan = method.plan(count(batches), epochs)
    common = Settings(epochs, None, momentum, weight_decay, plan.rate, optimizer, clip, seed)
    call = Call(compute or Compute(), progress)
    asking = partial(walk_question, module, task, method, plan, starts, watch or {}, call.compute)
    question = cache(partial(asking, settings=common, batches=batches, processes=call.processes))
    pooled: list[Story] = []

    def walked(number: int, folder: Run | None) -> Story:
        made = {"by": "walk", "method": str(method), "start": number, "seed": seed}
        observer, (weights, state) = WalkObserver(plan, task, watch or {}, made, folder, call), given[number]
        label = f"walking ({type(method).__name__}{f', start {number + 1}' if len(given) > 1 else ''})"
        settings = replace(common, seed=seed + number * APART)
        try:
            motion = Network(Probe(module, weights, call.compute))
            train(motion, task, batches, settings, call, label, observer, state, folder)
        except Diverged as error:
            error.members = [member for members, _ in pooled for member in members] + observer.members
            raise
        return observer.members, observer.trace()

    def all_walked(_: Run | None) -> Walk:
        for number in range(len(given)):
            own = Run.of(run, f"start-{number + 1}")
            pooled.append(call.resumed(own, "walk", question, STORY, partial(walked, number)))
        return _joined(pooled)

    def load(folder: Path) -> Walk:
        return _joined([STORY.load(folder / f"start-{number + 1}") for number in range(len(given))])

    stored = StoredResult(f"trace-{len(given)}.json", load, partial(_save, module))
    return call.resumed(run, "walk", question, stored, all_walked)


def _joined(stories: Sequence[Story]) -> Walk:
    return Walk(tuple(member for members, _ in stories for member in members), tuple(trace for _, trace in stories))


def _load_story(folder: Path) -> Story:
    trace = Trace.load(folder / TRACE)
    return [Weights.load(_collected(folder, i)) for i in trace.collected], trace


def _collected(folder: Path, i: int) -> Path:
    return files.no_link(folder / f"collected-{i:d}.safetensors")


STORY = StoredResult[Story](TRACE, _load_story, lambda made, folder: made[1].save(folder / TRACE))  # of one start


def _save(module: nn.Module, found: Walk, folder: Path) -> None:
    """The members as an ensemble, then the traces; the last one marks the walk as finished."""
    if found.members:
        Ensemble(module, found.members).save(files.no_link(folder / MEMBERS))
    for number, trace in enumerate(found.traces, start=1):
        trace.save(folder / f"trace-{number}.json")


def _check(starts: Sequence[Start | None], method: Method) -> None:
    if not starts:
        raise ThalwegError("walk needs at least one start; got an empty list")
    if odd := [here for here in starts if here is not None and not isinstance(here, Weights | Checkpoint)]:
        raise ThalwegError(f"a walk starts at Weights, or at a checkpoint of fit(keep=); got {type(odd[0]).__name__}")
    if not isinstance(method, Method):
        raise ThalwegError(f"walk needs a method, such as FGE(cycle=2, lr_max=0.01, lr_min=0.0005); got {method!r}")


class WalkObserver(Observer):
    """Collects the networks of the plan, and records every iteration."""

    def __init__(
        self, plan: Plan, task: Task, watch: Mapping[str, Batches], made: dict[str, Any], run: Run | None, call: Call
    ):
        self.plan, self.task, self.watch, self.made, self.run, self.call = plan, task, watch, made, run, call
        self.members: list[Weights] = []
        self.collected: list[int] = []
        self.lr: list[float] = []
        self.seen: list[Tensor] = []
        self.watched_at: list[int] = []
        self.watched: dict[str, dict[str, list[float]]] = {name: {} for name in watch}

    def begin(self, step: Accelerated, steps: int) -> None:
        self.probe, self.steps = step.plain.probe, steps
        self.measures = {
            name: Measurement(self.probe.module, self.task, batches, self.probe.device, self.call.compute, step.pool)
            for name, batches in self.watch.items()
        }
        self.origin = self.probe.point.clone()
        if self.watch:
            with self.probe.kept():
                prove_measuring(self.probe, self.task, next(iter(self.watch.values())), self.call.compute).again()
        self._look(0)

    def after_step(self, i: int, lr: float, loss: Tensor) -> None:
        self.lr.append(lr)
        self.seen.append(torch.stack([loss, torch.dist(self.probe.point, self.origin)]))
        if self.plan.collects(i):
            self.collected.append(i)
            self.members.append(self.probe.weights({**self.made, "iteration": i}).to("cpu"))
            if self.run is not None:
                self.members[-1].save(_collected(self.run.folder, i), apart=True)
        if self.plan.collects(i) or i % self.steps == 0:
            self._look(i)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        seen = {"seen": torch.stack(self.seen)} if self.seen else {}
        story = {key: getattr(self, key) for key in ("collected", "lr", "watched_at", "watched")}
        return {"origin": self.probe.canonical(self.origin), **seen}, story

    def set_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        self.origin = self.probe.native(tensors["origin"]).to(self.probe.device)
        self.seen = list(tensors["seen"].to(self.probe.device)) if "seen" in tensors else []
        for key in ("collected", "lr", "watched_at", "watched"):
            setattr(self, key, about[key])
        folder = self.run.folder if self.run is not None else Path()
        self.members = self.call.processes.once(lambda: [Weights.load(_collected(folder, i)) for i in self.collected])

    def trace(self) -> Trace:
        loss, distance = torch.stack(self.seen).double().cpu().numpy().T
        story = (
            {"watched_at": self.watched_at, "watched": self.watched, "units": dict(self.task.units)}
            if self.watch
            else {}
        )
        return Trace(np.array(self.lr), loss, distance, self.collected, self.steps, **story)  # type: ignore[arg-type]

    def _look(self, i: int) -> None:
        if not self.watch:
            return
        self.watched_at.append(i)
        with self.probe.kept(), seeded(0, *self.watch.values()):
            self.probe.drop_caches()
            self.probe.module.eval()
            for name, measure in self.measures.items():
                measure()
                for quantity, value in measure.means().items():
                    self.watched[name].setdefault(quantity, []).append(value)
