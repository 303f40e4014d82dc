"""Which accelerators a training step gets: the one place where they are chosen, and where a new one is added."""

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..error_notes import explained
from ..errors import ThalwegError
from ..training.checkpoint import checkpoint, restore
from ..training.curve_losses import CURVE_LOSSES
from ..training.side_state import HiddenState
from ..training.step import Bends, Step
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from ..weightspace.proof import check_leaves, prove_copy
from ..weightspace.watch import Watch, watched
from ..weightspace.weights import LARGE
from .compute import Compute, Context
from .threads import few_threads

if TYPE_CHECKING:
    from .captured import Captured
    from .compiled import Compiled
    from .distributed import RankStep


def bends(probe: Probe, curve: Curve, seed: int, loss: str, compute: Compute) -> Bends:
    """The bends of a curve, for the loss that trains them: on the CPU if `stream` is set, and at least in float32."""
    kind, half = CURVE_LOSSES[loss], probe.layout.dtype in (torch.float16, torch.bfloat16)
    if kind.linear and (compute.stream or half or probe.point.nbytes > LARGE):  # without a copy of the ends
        from .streamed import streamed

        return streamed(kind)(probe, curve, seed, torch.device("cpu") if compute.stream else probe.device)
    if compute.stream or half:
        why = (
            "needs the whole curve on the network's device: use loss='uniform', or no stream"
            if compute.stream
            else f"would lose small steps in {probe.layout.dtype}: use loss='uniform', or a float32 network"
        )
        raise ThalwegError(f"loss='{loss}' {why}")
    return kind(probe, curve, seed)


class Accelerated:
    """A step with the wrappers that suit it; by default, one on a CPU gets none.

    An accelerator replaces the loss of the plain step, `step.mean_loss` (`Compiled`, autocast), its forward pass,
    `step.forward` (`Accumulated`), how a point of a curve is computed, `trainable.combine` (the fused kernels), or
    all of the step (`Captured`, `DistributedStep`): `self.step`, which is called with a batch and a learning rate.
    """

    compiled: "Compiled | None" = None
    distributed: "RankStep | None" = None
    captured: "Captured | None" = None
    proven = False

    def __init__(
        self, step: Step, context: Context, compute: Compute, seed: int = 0, steps: int = 0, accumulate: int = 1
    ):
        self.plain, trainable, device = step, step.trainable, step.probe.device
        if accumulate > 1:
            from .accumulated import Accumulated

            Accumulated(step)
        sharded = not step.probe.copied
        if compute.compiles(device, steps, step.probe.module) and not sharded:
            from .compiled import Compiled

            self.compiled = Compiled(step)
        if compute.precision != "fp32":
            step.mean_loss = torch.autocast(device.type, torch.bfloat16)(step.mean_loss)
        if device.type == "cuda" and isinstance(trainable, Bends) and trainable.block.dtype == torch.float32:
            from .fused import kernels

            trainable.combine = kernels().combine if kernels() else trainable.combine  # type: ignore[method-assign]
        if context.processes.size > 1:
            from .distributed import DistributedStep, Ranks

            assert isinstance(context.processes, Ranks)
            if sharded:
                from .sharded import ShardedStep

                self.distributed = ShardedStep(step, context.processes, seed)
            else:
                self.distributed = DistributedStep(step, context.processes, seed)
        elif trainable.on_device and compute.captures(device) and not sharded:
            from .captured import Captured

            self.captured = Captured(step)
        self.step: Callable[[Any, float], Tensor] = self.captured or self.distributed or step
        self.optimizer = HiddenState(optimizer=step.optimizer)

    def __call__(self, batch: Any, lr: float) -> Tensor:
        with explained(self.plain.probe.module, batch):
            if self.compiled is not None:
                self.compiled.before(batch)
            step = self._step if self.proven else self._watched
            self.proven = True
            return step(batch, lr)

    def _step(self, batch: Any, lr: float) -> Tensor:
        with few_threads(self.plain.probe.device, self.plain.probe.module, batch):
            return self.step(batch, lr)

    def _watched(self, batch: Any, lr: float) -> Tensor:
        """The first step, which raises unless the copy of the network uses its own weights, computes what the original
        does, and is updated in place.
        """
        step, probe = self.plain, self.plain.probe
        loss, looked, moved = step.mean_loss, list[Watch](), list(chain(*step.trainable.optimized))
        places = [_address(tensor) for _, tensor, _ in moved]

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
        if gone := [name for (name, tensor, _), place in zip(moved, places, strict=True) if _address(tensor) != place]:
            raise ThalwegError(
                f"an optimizer must write to its parameters in place, and {type(step.optimizer).__name__} has replaced "
                f"'{gone[0]}': let it use copy_ or add_ instead of .data ="
            )
        if looked:
            with suppress(torch.OutOfMemoryError), probe.preserved():
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
        """Free what captures hold, and break reference cycles, which would keep the memory of the run until garbage is
        collected.
        """
        if self.captured is not None:
            self.captured.replay.close()
            vars(self.captured).clear()
        vars(self.plain).clear()


def _address(tensor: Tensor) -> int:
    """Of the memory of a tensor, or of its local shard."""
    return getattr(tensor, "_local_tensor", tensor).data_ptr()
