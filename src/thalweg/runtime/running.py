"""What surrounds a call: its run folder, resumed or started; around a training loop also accelerators, seed, CUDA
stream, progress bar and signals.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..batches import Batches
from ..errors import ThalwegError, during
from ..evaluation.fingerprint import Facts
from ..store.interrupts import Interrupts
from ..store.runs import Run, versions
from ..training.checkpoint import TrainingProgress
from ..training.fingerprint import FINGERPRINTS
from ..training.loop import OnEpoch, Settings
from ..training.step import Step
from .accelerated import Accelerated
from .compute import Call, StoredResult, shards_of
from .progress import Progress
from .rng import seeded
from .streams import on_side_stream

T = TypeVar("T")


def resumed(
    call: Call,
    run: Run | str | Path | None,
    command: str,
    fingerprint: Mapping[str, Any] | Callable[[], Facts],
    result: StoredResult[T],
    make: Callable[[Run | None], T],
) -> T:
    """See `Call.resumed`; without a folder, several processes still agree on the fingerprint."""
    asked: Mapping[str, Any] = {} if callable(fingerprint) else fingerprint
    describe = (
        fingerprint if callable(fingerprint) else partial(FINGERPRINTS[command], processes=call.processes, **asked)
    )
    sharded = shards_of(asked.get("module"))
    if sharded is not None and asked.get("keep"):
        raise ThalwegError("keep= is for whole networks; fit one in shards up to each of these epochs instead")
    with during("computing what the run depends on"):
        facts = describe()
    call.processes.agree({**versions(), **facts})
    folder, held = Run.of(run), list[Run]()
    with ExitStack() as stack:
        if folder is not None:  # rank 0 alone holds it open
            call.processes.once(lambda: held.append(stack.enter_context(folder.opened(command, facts, result.file))))
        finished = call.processes.once(lambda: bool(held) and (held[0].folder / result.file).is_file())
        if sharded is not None and folder is not None:
            return sharded.resumed(folder, finished, asked, result, make, call.processes)
        if finished:
            return call.processes.once(lambda: result.load(held[0].folder))
        made = make(held[0] if held else None)
        if held:
            held[0].finish(lambda folder: result.save(made, folder))
    return made


class RunningLoop:
    """A running training loop."""

    def __init__(self, step: Accelerated, call: Call, bar: Progress, interrupts: Interrupts, run: Run | None):
        self.step = step
        self.context = call.context
        self.bar = bar
        self.interrupts = interrupts
        self.run = run
        if step.distributed is not None:
            step.distributed.requests = self._requests

    def resume(
        self, batches: Batches, passes: Callable[[], Iterator[Any]], observer: Any, on_epoch: OnEpoch | None
    ) -> TrainingProgress:
        """The progress of the run: from its folder, or from the start."""
        self.progress = TrainingProgress(
            self.run, self.step.plain, observer, batches, passes, self.context, self.step.optimizer, on_epoch
        )
        self.bar.done = self.progress.done
        if self.step.distributed is not None:
            self.step.distributed.done = self.progress.done
        return self.progress

    def after_step(self, loss: Tensor) -> None:
        """Show progress; save if it is due or a stop was requested; let interleaved runs take their steps."""
        self.bar.advance(f"loss {float(loss):.4f}" if self.bar.due() else "")
        distributed, progress = self.step.distributed, self.progress
        stop, due = self._requests() if distributed is None else distributed.granted()
        if self.run is not None and (stop or due):
            progress.save()
        if stop and self.interrupts.wanted:
            self.interrupts.stop(self.run, f"step {progress.done}, in epoch {progress.epoch}")
        if self.context.job is not None:
            self.context.job.switch()

    def after_epoch(self) -> None:
        if self.step.distributed is not None:
            self.step.distributed.check_buffers()

    def _requests(self) -> tuple[bool, bool]:
        """To stop, and to save, after the step."""
        return self.interrupts.requested is not None, self.run is not None and self.run.due(None)


@contextmanager
def running(
    step: Step, call: Call, batches: Batches, settings: Settings, total: int, label: str, run: Run | None
) -> Iterator[RunningLoop]:
    """Everything that surrounds a loop of `total` steps."""
    processes, job, device = call.processes, call.context.job, step.probe.device
    call.compute.check(device)
    with ExitStack() as stack:
        stack.enter_context(seeded(settings.seed, batches, states=None if job is None else job.states))
        stack.enter_context(on_side_stream(device, call.context.stream))
        accelerated = Accelerated(step, call.context, call.compute, settings.seed, total, settings.accumulate)
        stack.callback(accelerated.close)
        bar = stack.enter_context(call.bar(label, total))
        interrupts = stack.enter_context(Interrupts(processes.once(lambda: run is not None), job))
        yield RunningLoop(accelerated, call, bar, interrupts, run)
