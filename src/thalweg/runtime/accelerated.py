"""Which accelerators a training step gets: the one place where they are chosen."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..error_notes import explained
from ..training.checkpoint import checkpoint, restore
from ..training.side_state import OptimizerExtra
from ..training.step import Bends, Step
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.proof import Watch, check_leaves, prove_copy, watched
from .accumulated import Parts
from .compute import Compute, Context
from .threads import few_threads

if TYPE_CHECKING:
    from .captured import Captured
    from .compiled import Compiled
    from .distributed import DistributedStep


class Accelerated:
    """A step with the wrappers that suit it; the one place where these are chosen. A step on a CPU alone gets none."""

    compiled: "Compiled | None" = None
    distributed: "DistributedStep | None" = None
    captured: "Captured | None" = None
    proven = False

    def __init__(self, step: Step, context: Context, compute: Compute, seed: int = 0, steps: int = 0):
        self.plain, motion, device = step, step.motion, step.probe.device
        if compute.compiles(device, steps):
            from .compiled import Compiled

            self.compiled = Compiled(step)
        if compute.precision != "fp32":
            step.mean_loss = torch.autocast(device.type, torch.bfloat16)(step.mean_loss)
        if device.type == "cuda" and isinstance(motion, Bends) and motion.block.dtype == torch.float32:
            from .fused import kernels

            motion.combine = kernels().combine if kernels() else motion.combine  # type: ignore[method-assign]
        if context.processes.size > 1:
            from .distributed import DistributedStep, Ranks

            assert isinstance(context.processes, Ranks)
            self.distributed = DistributedStep(step, context.processes, seed)
        elif motion.on_device and compute.captures(device):
            from .captured import Captured

            self.captured = Captured(step)
        self.step: Callable[[Any, float], Tensor] = self.captured or self.distributed or step
        self.optimizer = OptimizerExtra(step.optimizer)

    def __call__(self, batch: Any, lr: float) -> Tensor:
        with explained(self.plain.probe.module, batch):
            if self.compiled is not None:
                self.compiled.before(batch[0] if isinstance(batch, Parts) else batch)
            step = self._step if self.proven else self._watched
            self.proven = True
            return step(batch, lr)

    def _step(self, batch: Any, lr: float) -> Tensor:
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
        """Free what captures hold, and cut references in a circle, which would hold the memory of the run until garbage
        is collected.
        """
        if self.captured is not None:
            self.captured.replay.close()
            vars(self.captured).clear()
        vars(self.plain).clear()
