"""The training loop: epochs, learning rate, and what happens when the loss is not finite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..batches import Batches, count, not_finite
from ..errors import Diverged, ThalwegError, real_number, whole_number
from ..runtime.compute import Call
from ..tasks import Task, check_task
from ..weightspace.layout import batch_norms
from ..weightspace.weights import LARGE
from .sgd import OptimizerFactory, Schedule, decay, make_optimizer
from .step import Step, Trainable

if TYPE_CHECKING:
    from ..runtime.accelerated import Accelerated
    from ..store.runs import Run
    from .walk_methods import Method


OPTIMIZER = (
    "a function that makes one: an optimizer class such as torch.optim.AdamW, a partial of one, or one of named "
    "parameters, not an optimizer that is already made (see help(thalweg.fit))"
)
OnEpoch = Callable[[dict[str, float]], object]


class Observer:
    """Called after everything the loop does; does nothing by default."""

    def begin(self, step: "Accelerated", steps: int) -> None:
        """Before the first step, with `steps` to come in each epoch."""

    def after_step(self, i: int, lr: float, loss: Tensor) -> None:
        """After the update of iteration i."""

    def after_epoch(self, epoch: int) -> None:
        """After an epoch, counted from 1, once its loss is known to be finite."""

    def state(self) -> dict[str, Any]:
        """What it needs to be resumed: tensors, and what JSON can hold."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


@dataclass(frozen=True)
class Settings:
    """What `fit`, `connect` and `walk` are given alike: how long to train, and with which optimizer."""

    epochs: int
    lr: float | None
    momentum: float
    weight_decay: float
    schedule: "Schedule | Method | None"
    optimizer: OptimizerFactory | None
    clip: float | None
    seed: int
    on_epoch: OnEpoch | None = None
    accumulate: int = 1
    decay_at: str = "bends"

    def __post_init__(self) -> None:
        checked = {
            **{name: real_number(getattr(self, name), name) for name in ("momentum", "weight_decay")},
            **{
                name: real_number(value, name)
                for name, value in (("lr", self.lr), ("clip", self.clip))
                if value is not None
            },
            "seed": whole_number(self.seed, "seed"),
            "epochs": whole_number(self.epochs, "epochs", least=1),
            "accumulate": whole_number(self.accumulate, "accumulate", least=1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name, fits, rule in (
            (
                "schedule",
                self.schedule is None
                or (callable(getattr(self.schedule, "plan", self.schedule)) and not isinstance(self.schedule, type)),
                "a function from the iteration, counted from 1, to its rate, or one like WarmupCosine(lr_max, warmup), "
                "not a scheduler of torch (see help(thalweg.fit))",
            ),
            ("optimizer", self.optimizer is None or callable(self.optimizer), OPTIMIZER),
            ("on_epoch", self.on_epoch is None or callable(self.on_epoch), "a function of a dict"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            (
                "lr",
                self.lr > 0 if self.lr is not None else self.optimizer is not None or not self.takes_own_rate,
                "above 0, or a schedule given, or an optimizer with a rate of its own",
            ),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("decay_at", self.decay_at in ("bends", "phi"), "'bends' or 'phi'"),
            ("clip", self.clip is None or self.clip > 0, "above 0, the largest norm of the gradient"),
        ):
            if not fits:
                raise ThalwegError(f"{name} must be {rule}; got {repr(getattr(self, name)).partition(' (')[0]}")
        if self.schedule is not None and self.lr is not None and not self._scales:
            raise ThalwegError(
                f"a schedule gives every rate, so that lr= would be ignored; got lr = {self.lr!r}: omit one of "
                "them, or lr_max in the schedule, which may be that of the task's factory"
            )

    @property
    def _scales(self) -> bool:
        """Whether the schedule is one like `WarmupCosine()`, without a rate of its own."""
        return getattr(self.schedule, "lr_max", 0) is None

    @property
    def takes_own_rate(self) -> bool:
        """Whether the learning rate is that of the optimizer itself."""
        return self.lr is None and (self.schedule is None or self._scales)

    def rate(self, steps: int, own: float = 0.0) -> Schedule:
        """The schedule, given the steps per epoch and the optimizer's own rate: the default decays `lr`, or else keeps
        that rate.
        """
        base = own if self.lr is None else self.lr
        given: Any = self.schedule or (decay(base, self.epochs, steps) if self.lr is not None else lambda i: base)
        given = replace(given, lr_max=base) if self._scales else given
        schedule = given.plan(steps, self.epochs).rate if hasattr(given, "plan") else given
        return lambda i: real_number(schedule(i), f"the learning rate of iteration {i}", least=0)


def updates(batches: Batches, accumulate: int) -> int:
    """How many an epoch has, the last perhaps from fewer batches."""
    return -(-count(batches) // accumulate)


def train(
    trainable: Trainable,
    task: Task,
    batches: Batches,
    settings: Settings,
    call: Call,
    label: str,
    observer: Observer,
    run: "Run | None" = None,
) -> None:
    """Train `trainable` for the epochs in `settings`."""
    check_task(task)
    steps = updates(batches, settings.accumulate)
    optimizer = (
        make_optimizer(trainable.vectors, settings.momentum)
        if settings.optimizer is None
        else call.user_optimizer(trainable, settings)
    )
    schedule = settings.rate(steps, float(optimizer.param_groups[0]["lr"]))
    passes, make_batch = call.source(batches, trainable.probe.device, settings.accumulate)
    step = Step(trainable, task, optimizer, settings.weight_decay, settings.clip, make_batch)
    with call.running(step, batches, settings, steps * settings.epochs, label, run) as loop:
        trainable.probe.module.train()
        observer.begin(loop.step, steps)
        progress = loop.resume(batches, passes, observer, settings.on_epoch)
        lr = schedule(progress.done) if progress.done else 0.0
        while progress.epoch <= settings.epochs:
            watch = _Divergence(trainable)
            if not progress.done:
                watch.end(0, lr)
            for batch in progress.rest_of_epoch():
                lr = schedule(progress.done + 1)
                loss = loop.step(batch, lr)
                progress.count(loss)
                watch.see(progress.done, loss, lr, batch)
                observer.after_step(progress.done, lr, loss)
                loop.after_step(loss)
            watch.end(progress.done, lr)
            loop.after_epoch()
            observer.after_epoch(progress.epoch)
            call.warn_if_stalled(step, batches, progress.epoch, settings.epochs)
            progress.after_epoch(lr)


class _Divergence:
    """Checks that the loss is finite: after every step on the CPU, after every epoch where checking would stall the
    device.
    """

    def __init__(self, trainable: Trainable):
        self.trainable, good = trainable, trainable.snapshot()
        self.last_good = good.to("cpu") if trainable.block.nbytes > LARGE else good
        self.seen: list[tuple[int, float | Tensor | None, float, Tensor]] = []

    def see(self, step: int, loss: Tensor, lr: float, batch: Any) -> None:
        t = self.trainable.t
        self.seen.append((step, t.clone() if isinstance(t, Tensor) else t, lr, loss))
        if loss.device.type == "cpu":
            self.check(batch)
            self.seen.clear()

    def check(self, batch: Any = ()) -> None:
        if self.seen and not bool(torch.isfinite(torch.stack([loss for *_, loss in self.seen])).all()):
            step, t, lr, loss = next(entry for entry in self.seen if not entry[-1].isfinite())
            where = f"step {step}" if t is None else f"step {step} at t = {float(t):.4f}"
            self._stop(f"the loss became {float(loss)} in {where}", step, lr, t, batch)

    def end(self, step: int, lr: float) -> None:
        """Before training, and after an epoch, whose last update may have broken weights whose losses were finite."""
        self.check()
        statistics = (layer.get_buffer("running_var") for _, layer in batch_norms(self.trainable.probe.module))
        broken = sum(
            not bool(torch.linalg.vector_norm(values, torch.inf).isfinite())
            for values in [*self.trainable.vectors, *statistics]
            if values.numel()  # a shard may be empty
        )
        if self.trainable.probe.layout.total(torch.tensor(broken, device="cpu")):
            if not step:
                raise ThalwegError(
                    "training starts from weights or batch-norm statistics that hold NaN or infinity, so a network "
                    "they come from has diverged: train it again"
                )
            self._stop(f"the weights or their batch-norm statistics are no longer finite after step {step}", step, lr)
        self.trainable.probe.check()

    def _stop(self, what: str, step: int, lr: float, t: float | Tensor | None = None, batch: Any = ()) -> None:
        data, rate = "look for bad values in the data", "try a smaller learning rate or clipping"
        advice = f"{data}, or {rate}" if step == 1 else f"{rate}, and {data}"
        if bad := not_finite([batch]):
            advice = f"{bad.replace('batch 1', 'the batch of that step')}, so clean the data"
        raise Diverged(
            f"{what} with learning rate {lr:.4g}: {advice}; the weights from before that epoch are in .last_good",
            step=step,
            t=None if t is None else float(t),
            lr=lr,
            last_good=self.last_good,
        )
