"""Which accelerators a training step gets: the one place where they are chosen."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..error_notes import explained
from ..training.checkpoint import checkpoint, restore
from ..training.extra import OptimizerExtra
from ..training.motion import Bends
from ..training.step import Step
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.proof import Watch, check_leaves, prove_copy, watched
from .compute import Compute, Context, say_slower
from .threads import few_threads

if TYPE_CHECKING:
    from .captured import Captured
    from .compiled import Compiled
    from .exchange import DistributedStep


class Accelerated:
    """A step with the wrappers that suit it; the one place where these are chosen. A step on a CPU alone gets none."""

    def __init__(self, step: Step, context: Context, compute: Compute, seed: int = 0, steps: int = 0):
        self.plain, device = step, step.probe.device
        self.compiled = _compiled(step) if compute.compiles(device, steps) else None
        if compute.precision != "fp32":
            step.mean_loss = _cast(compute, device, step.mean_loss)
        if device.type == "cuda" and isinstance(step.motion, Bends) and step.motion.block.dtype == torch.float32:
            _combine_by_kernel(step.motion)
        alone = context.processes.size == 1
        self.distributed = None if alone else _distributed(step, context, seed)
        self.captured = _captured(step) if alone and step.motion.on_device and compute.captures(device) else None
        self.step: Callable[[Any, float], Tensor] = self.captured or self.distributed or step
        self.optimizer, self.proven = OptimizerExtra(step.optimizer), False

    def __call__(self, batch: Any, lr: float) -> Tensor:
        with explained(self.plain.probe.module, batch):
            if self.compiled is not None:
                self.compiled.before(batch)
            if self.proven:
                return self._step(batch, lr)
            self.proven = True
            return self._watched(batch, lr)

    def _step(self, batch: Any, lr: float) -> Tensor:
        if self.captured is not None:  # sets the number of threads itself, as long as it captures nothing
            return self.captured(batch, lr)
        with few_threads(self.plain.probe.device, self.plain.probe.module, batch):
            return self.step(batch, lr)

    def _watched(self, batch: Any, lr: float) -> Tensor:
        """The first step: the copy of the network must use its own weights, and compute what the original does."""
        step, probe = self.plain, self.plain.probe
        loss, looked = step.mean_loss, list[Watch]()

        def watching(*args: Any) -> Any:
            step.mean_loss = loss
            watch, found = watched(probe, lambda: loss(*args))
            if watch is not None:
                check_leaves(probe, found[0])
                watch.check()
                looked.append(watch)
            return found

        step.mean_loss = watching
        try:
            found = self._step(batch, lr)
        finally:
            step.mean_loss = loss
        if looked:
            with suppress(torch.OutOfMemoryError), probe.kept():
                prove_copy(probe, looked[0])
        return found

    @property
    def pool(self) -> Any:
        """Memory of CUDA graphs, shared with measurements during the run."""
        return self.captured.replay.pool if self.captured is not None else None

    def checkpoint(self, epoch: int) -> Checkpoint:
        """The current weights and optimizer state of plain training."""
        return checkpoint(self.plain, epoch, self.optimizer)

    def restore(self, start: Checkpoint) -> None:
        """Restore the optimizer state of a checkpoint."""
        restore(self.plain, start, self.optimizer)

    def close(self) -> None:
        if self.captured is not None:
            self.captured.replay.close()


def _compiled(step: Step) -> "Compiled":
    from .compiled import Compiled

    compiled = Compiled(step)
    step.mean_loss = compiled.loss
    return compiled


def _combine_by_kernel(motion: Bends) -> None:
    from .captured import kernels

    if kernels():
        motion.combine = kernels().combine  # type: ignore[method-assign]


def _distributed(step: Step, context: Context, seed: int) -> "DistributedStep":
    from .distributed import Ranks
    from .exchange import DistributedStep

    assert isinstance(context.processes, Ranks)
    return DistributedStep(step, context.processes, seed)


def _captured(step: Step) -> "Captured | None":
    if step.probe.hooked:
        say_slower("steps are not captured", "parameters have hooks, which would run only while a step is captured")
        return None
    from .captured import Captured

    return Captured(step)


def _cast(compute: Compute, device: torch.device, loss: Callable[..., Any]) -> Callable[..., Any]:
    def cast(*args: Any) -> Any:
        with compute.casting(device):
            return loss(*args)

    return cast
