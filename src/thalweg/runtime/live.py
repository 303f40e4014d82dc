"""What surrounds a training loop: accelerators, seed, CUDA stream, progress bar, signals, and the run folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from ..batches import Batches
from ..store.runs import Interrupts, Run
from ..training.checkpoint import Course
from ..training.step import Step
from .accelerated import Accelerated
from .compute import Call, Context
from .progress import Progress
from .rng import seeded


class Live:
    """A running training loop."""

    def __init__(self, step: Accelerated, context: Context, bar: Progress, interrupts: Interrupts, run: Run | None):
        self.step, self.context, self.bar, self.interrupts, self.run = step, context, bar, interrupts, run

    def resume(self, batches: Batches, passes: Callable[[], Iterator[Any]], observer: Any) -> Course:
        """The progress of the run: from its folder, or from the start."""
        self.course = Course(self.run, self.step.plain, observer, batches, passes, self.context, self.step.optimizer)
        self.bar.done = self.course.done
        if self.step.distributed is not None:
            self.step.distributed.done = self.course.done
        return self.course

    def take_step(self, batch: Any, lr: float) -> Tensor:
        if self.step.distributed is not None:
            self.step.distributed.exchange.wish(*self._wishes())
        return self.step(batch, lr)

    def after_step(self, loss: Tensor) -> None:
        """Show progress; save if it is due or a stop was requested; let interleaved runs take their steps."""
        self.bar.advance(f"loss {float(loss):.4f}" if self.bar.due() else "")
        distributed, course = self.step.distributed, self.course
        stop, due = self._wishes() if distributed is None else distributed.exchange.granted(course.done)
        if self.run is not None and (stop or due):
            course.save()
        if stop and self.interrupts.wanted:
            self.interrupts.grant(self.run, f"step {course.done}, in epoch {course.epoch}")
        if self.context.slot is not None:
            self.context.slot.pass_on()

    def after_epoch(self) -> None:
        if self.step.distributed is not None:
            self.step.distributed.check_buffers()

    def _wishes(self) -> tuple[bool, bool]:
        return self.interrupts.asked is not None, self.run is not None and self.run.due(None)


@contextmanager
def running(
    step: Step, call: Call, batches: Batches, seed: int, total: int, label: str, run: Run | None
) -> Iterator[Live]:
    """Everything that surrounds a loop of `total` steps."""
    context, slot, device = call.context, call.context.slot, step.probe.device
    call.compute.check(device)
    with ExitStack() as stack:
        stack.enter_context(seeded(seed, batches, world=None if slot is None else slot.world))
        if device.type == "cuda":
            from .cuda_graphs import aside

            stack.enter_context(aside(device, context.stream))
        accelerated = Accelerated(step, context, call.compute, seed, total)
        stack.callback(accelerated.close)
        bar = stack.enter_context(Progress(label, total, call.progress if context.processes.first else False))
        wanted = context.processes.once(lambda: run is not None)
        yield Live(accelerated, context, bar, stack.enter_context(Interrupts(wanted, slot)), run)
