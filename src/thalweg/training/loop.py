"""The training loop: epochs, learning rate, and what happens when the loss is not finite."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..batches import Batches, count, not_finite
from ..errors import Diverged, ThalwegError, number, whole
from ..runtime.compute import Call
from ..tasks import Task, check_task
from ..weightspace.layout import batch_norms
from .motion import Motion
from .optimizers import OptimizerFactory, Schedule, decay, make_optimizer
from .step import Step

if TYPE_CHECKING:
    from ..runtime.accelerated import Accelerated
    from ..store.runs import Run
    from ..weightspace.checkpoint import Checkpoint


class Observer:
    """Called after everything the loop does; does nothing by default."""

    def begin(self, step: "Accelerated", steps: int) -> None:
        """Before the first step, with `steps` to come in each epoch."""

    def after_step(self, i: int, lr: float, loss: Tensor) -> None:
        """After the update of iteration i."""

    def after_epoch(self, epoch: int) -> None:
        """After an epoch, counted from 1, once its loss is known to be finite."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What it needs to be resumed: tensors, and what JSON can hold."""
        return {}, {}

    def set_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


@dataclass(frozen=True)
class Settings:
    """Length and optimizer of a training: the arguments that `fit`, `connect` and `walk` share."""

    epochs: int
    lr: float | None
    momentum: float
    weight_decay: float
    schedule: Schedule | None
    optimizer: OptimizerFactory | None
    clip: float | None
    seed: int

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay", "clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(getattr(self, name), name))
        object.__setattr__(self, "seed", whole(self.seed, "seed"))
        object.__setattr__(self, "epochs", whole(self.epochs, "epochs", least=1))
        for name in ("schedule", "optimizer"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ThalwegError(f"{name} must be a function (see help(thalweg.fit)); got {getattr(self, name)!r}")
        if not 0 <= self.momentum < 1:
            raise ThalwegError(f"momentum must be at least 0 and below 1; got {self.momentum!r}")
        if self.schedule is not None and self.lr is not None:
            raise ThalwegError(
                f"schedule= gives every rate, so that lr= would be ignored; got lr = {self.lr!r}: leave one of them out"
            )
        if self.schedule is None and (self.lr is None or not self.lr > 0):
            raise ThalwegError(f"lr must be above 0, or a schedule given; got {self.lr!r}")
        if not self.weight_decay >= 0:
            raise ThalwegError(f"weight_decay must be 0 or more; got {self.weight_decay!r}")
        if self.clip is not None and not self.clip > 0:
            raise ThalwegError(f"clip must be above 0, the largest norm of the gradient; got {self.clip!r}")

    def rate(self, steps: int) -> Schedule:
        """The schedule, or the default decay of `lr`, given the steps per epoch."""
        schedule = self.schedule or decay(self.lr or 0.0, self.epochs, steps)
        return lambda i: number(schedule(i), f"the learning rate of iteration {i}")


def train(
    motion: Motion,
    task: Task,
    batches: Batches,
    settings: Settings,
    call: Call,
    label: str,
    observer: Observer | None = None,
    start: "Checkpoint | None" = None,
    run: "Run | None" = None,
) -> None:
    """Train `motion` for the epochs in `settings`, with the optimizer state of `start` if given."""
    check_task(task)
    steps = count(batches)
    schedule = settings.rate(steps)
    optimizer = make_optimizer(motion.vectors, settings.momentum, settings.optimizer)
    passes, make = call.source(batches, motion.probe.device)
    step = Step(motion, task, optimizer, settings.weight_decay, settings.clip, make)
    observer = observer or Observer()
    with call.running(step, batches, settings.seed, steps * settings.epochs, label, run) as live:
        if start is not None:
            live.step.restore(start)
        motion.probe.module.train()
        observer.begin(live.step, steps)
        course = live.resume(batches, passes, observer)
        lr = schedule(course.done) if course.done else 0.0
        while course.epoch <= settings.epochs:
            watch = _Watch(motion)
            for batch in course.rest_of_epoch():
                lr = schedule(course.done + 1)
                loss = live.step(batch, lr)
                course.count(loss)
                watch.see(course.done, loss, lr, batch)
                observer.after_step(course.done, lr, loss)
                live.after_step(loss)
            watch.end(course.done, lr)
            live.after_epoch()
            observer.after_epoch(course.epoch)
            call.warn_if_stalled(step, batches, course.epoch, settings.epochs)
            course.after_epoch(lr)


class _Watch:
    """Checks that the loss is finite: after every step on the CPU, after every epoch where checking would stall the
    device.
    """

    def __init__(self, motion: Motion):
        self.motion, self.last_good = motion, motion.snapshot()
        self.seen: list[tuple[int, float | Tensor | None, float, Tensor]] = []

    def see(self, step: int, loss: Tensor, lr: float, batch: Any) -> None:
        t = self.motion.t
        self.seen.append((step, t.clone() if isinstance(t, Tensor) else t, lr, loss))
        if loss.device.type == "cpu":
            self.check(batch)
            self.seen.clear()

    def check(self, batch: Any = ()) -> None:
        if self.seen and not bool(torch.isfinite(torch.stack([loss for *_, loss in self.seen])).all()):
            step, place, lr, loss = next(entry for entry in self.seen if not isfinite(float(entry[-1])))
            t = None if place is None else float(place)
            where = "" if t is None else f" at t = {t:.4f}"
            self._stop(
                f"the loss became {float(loss)} in step {step}{where} with learning rate {lr:.4g}", step, t, lr, batch
            )

    def end(self, step: int, lr: float) -> None:
        """After an epoch: its last update may have broken weights whose losses were all finite so far."""
        self.check()
        statistics = (layer.get_buffer("running_var") for _, layer in batch_norms(self.motion.probe.module))
        if not all(bool(values.isfinite().all()) for values in (*self.motion.vectors, *statistics)):
            what = "the weights or their batch-norm statistics are no longer finite"
            self._stop(f"{what} after step {step} with learning rate {lr:.4g}", step, None, lr)
        self.motion.probe.check()

    def _stop(self, what: str, step: int, t: float | None, lr: float, batch: Any = ()) -> None:
        data, rate = "look for bad values in the data", "try a smaller learning rate or clipping"
        advice = f"{data}, or {rate}" if step == 1 else f"{rate}, and {data}"
        if bad := not_finite([batch]):
            advice = f"{bad.replace('batch 1', 'the batch of that step')}, so clean the data"
        message = f"{what}: {advice}; the weights from before that epoch are in .last_good"
        raise Diverged(message, step=step, t=t, lr=lr, last_good=self.last_good)
