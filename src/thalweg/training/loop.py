"""The one training loop: epochs, learning rate, seed, progress, and what happens when the loss is not finite."""

from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..batches import Batches, count, not_finite, source, tensors_in
from ..crew import Crew
from ..errors import Diverged, ThalwegError
from ..explaining import explained
from ..modes import Mode, check_mode
from ..progress import Progress
from ..randomness import seeded
from ..replay import aside
from ..store.files import digest
from ..store.runs import Interrupts, Run
from ..tasks import Task, check_task
from ..turns import turn
from ..values import number, whole
from ..weightspace.modules import batch_norms
from ..weightspace.weights import Checkpoint
from .engine import Engine, OptimizerFactory, make_optimizer
from .motion import Motion
from .saver import Observer, Saver
from .schedules import Schedule, decay


@dataclass(frozen=True)
class Settings:
    """How long and how hard to train; what `fit` and `connect` share."""

    epochs: int
    lr: float | None
    momentum: float
    weight_decay: float
    schedule: Schedule | None
    optimizer: OptimizerFactory | None
    clip: float | None
    seed: int
    mode: Mode
    progress: bool | None

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay", "clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(getattr(self, name), name))
        object.__setattr__(self, "seed", whole(self.seed, "seed"))
        object.__setattr__(self, "epochs", whole(self.epochs, "epochs", least=1))
        for name in ("schedule", "optimizer"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ThalwegError(f"{name} must be a function (see help(thalweg.fit)); got {getattr(self, name)!r}")
        check_mode(self.mode)
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
        """The schedule, or the decay that stands for `lr`, with so many steps in an epoch."""
        schedule = self.schedule or decay(self.lr or 0.0, self.epochs, steps)
        return lambda i: number(schedule(i), f"the learning rate of iteration {i}")


def train(
    motion: Motion,
    task: Task,
    batches: Batches,
    settings: Settings,
    description: str,
    observer: Observer | None = None,
    start: Checkpoint | None = None,
    run: Run | None = None,
) -> None:
    """Move `motion` for the epochs asked for, with the optimizer's state of `start` if there is one.

    run: where to save the state, and from where to go on if there is one already.
    """
    check_task(task)
    settings.mode.check(motion.probe.device)
    steps, crew = count(batches), Crew.present
    schedule = settings.rate(steps)
    optimizer = make_optimizer(motion.vectors, settings.momentum, settings.optimizer)
    passes, make = source(batches, motion.probe.device)
    total = steps * settings.epochs
    engine = Engine(motion, task, optimizer, settings.weight_decay, settings.clip, settings.mode, total, make)
    if start is not None:
        engine.restore(start)
    motion.probe.module.train()
    observer = observer or Observer()
    with (
        seeded(settings.seed, batches),
        aside(motion.probe.device),
        closing(engine.replay),
        Progress(description, total, settings.progress if crew.first else False) as bar,
        Interrupts(crew.first_does(lambda: run is not None)) as interrupts,
    ):
        observer.begin(engine, steps)
        saver = Saver(run, engine, observer, batches, passes)
        bar.done = saver.done
        lr = schedule(saver.done) if saver.done else 0.0
        while saver.epoch <= settings.epochs:
            watch = _Watch(motion)
            for batch in saver.rest_of_epoch():
                lr = schedule(saver.done + 1)
                part, counts = crew.share(batch)
                _check_part(part, motion)
                saver.before_step(interrupts)
                with crew.apart(settings.seed, saver.done), explained(motion.probe.module, part):
                    loss = engine.step(part, lr, counts)
                saver.count(loss)
                watch.see(saver.done, loss, lr, part)
                observer.after_step(saver.done, lr, loss)
                bar.advance(f"loss {float(loss):.4f}" if bar.due() else "")
                saver.after_step(interrupts)
                turn()
            watch.end(saver.done, lr)
            observer.after_epoch(saver.epoch)
            saver.after_epoch(lr)


def _check_part(part: Any, motion: Motion) -> None:
    if Crew.present.size == 1 or not any(batch_norms(motion.probe.module)):
        return
    if max(len(tensor) for tensor in tensors_in(part) if tensor.ndim) == 1:
        raise ThalwegError(
            f"batch norm cannot learn from the single example that process {Crew.present.rank} has of a batch: use larger "
            "batches, and leave out a short last one (drop_last=True)"
        )


def _check_buffers(motion: Motion) -> None:
    """What several processes average are the statistics of batch norm; all else must be the same by itself."""
    if Crew.present.size > 1:
        found = {name: digest("buffer", {name: b}, "")[:8] for name, b in motion.probe.weights().bare().buffers.items()}
        Crew.present.agree({f"after an epoch, the buffer '{name}'": short for name, short in found.items()})


class _Watch:
    """Looks for a loss that is not finite: at once on the CPU, after the epoch where looking would stall the device."""

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
            self._stop(f"the loss became {float(loss)} in step {step}{where} with learning rate {lr:.4g}", step, t, lr, batch)

    def end(self, step: int, lr: float) -> None:
        """After an epoch: its last update may have broken what every loss so far found in order."""
        self.check()
        statistics = (layer.get_buffer("running_var") for _, layer in batch_norms(self.motion.probe.module))
        if not all(bool(values.isfinite().all()) for values in (*self.motion.vectors, *statistics)):
            what = "the weights or their batch-norm statistics are no longer finite"
            self._stop(f"{what} after step {step} with learning rate {lr:.4g}", step, None, lr)
        self.motion.probe.check()
        _check_buffers(self.motion)

    def _stop(self, what: str, step: int, t: float | None, lr: float, batch: Any = ()) -> None:
        data, rate = "look for bad values in the data", "try a smaller learning rate or clipping"
        advice = f"{data}, or {rate}" if step == 1 else f"{rate}, and {data}"
        if bad := not_finite([batch]):
            advice = f"{bad.replace('batch 1', 'the batch of that step')}, so clean the data"
        message = f"{what}: {advice}; the weights from before that epoch are in .last_good"
        raise Diverged(message, step=step, t=t, lr=lr, last_good=self.last_good)
