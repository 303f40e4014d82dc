"""The whole of a step as one CUDA graph, captured once and replayed with other numbers."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..training.step import Step
from ..weightspace.batchnorm import counted_at_once
from .cuda_graphs import Replay
from .fused import fused_update, make_capturable


class Captured:
    """A step on a GPU. Learning rate and position are passed in one small tensor, so that the captured part is always
    the same.

    The first two steps of each kind of batch run eagerly and are watched; see `Replay`.
    """

    def __init__(self, step: Step):
        self.step, probe = step, step.probe
        watched = (step.optimizer, step.task.loss, step.task.predict, step.make_batch)
        self.replay = Replay(self._work, probe.module, probe.device, settle=self._settle, others=watched)
        if probe.hooked and self.replay.active:
            self.replay.refuse("parameters have hooks, which would run only while a step is captured")
        self.numbers = torch.zeros(1 + step.trainable.position_size, dtype=torch.float64, device=probe.device)
        self.rate, self.lr, self.fused = torch.zeros((), device=probe.device), 0.0, None
        step.mean_loss = self._counted(step.mean_loss)
        if self.replay.active:
            make_capturable(step.optimizer)
            self.fused = fused_update(step, self.numbers)
            step.state_on_device = True

    def __call__(self, batch: Any, lr: float) -> Tensor:
        numbers = torch.tensor([lr, *self.step.trainable.draw()], dtype=torch.float64, device="cpu")
        self.numbers.copy_(numbers.pin_memory(), non_blocking=True)
        self.lr = lr
        return self.replay(batch)

    def _counted(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            with counted_at_once(self.step.probe.module) if self.replay.active else nullcontext():
                return loss(*args)

        return counted

    def _work(self, batch: Any) -> Tensor:
        """The part of a step that runs on the GPU."""
        probe, step = self.step.probe, self.step
        loss = step.forward(batch, self.numbers[1:])
        if torch.cuda.is_current_stream_capturing():
            self._captured_update(loss)
        else:
            before = len(probe.unreached)
            probe.backward(loss)
            self._update(loss.detach())
            if len(probe.unreached) < before:
                self.replay.forget()  # which parameters decay is part of what was captured
        return loss.detach()

    def _captured_update(self, loss: Tensor) -> None:
        """Without `.grad`, whose bookkeeping belongs to another stream; if possible in one pass over memory."""
        probe = self.step.probe
        gradients = probe.gradients(loss)
        unused = {name for name, gradient in zip(probe.layout.names, gradients, strict=True) if gradient is None}
        if self.fused is not None and unused <= probe.unreached:
            self.fused(gradients, probe.point)
        else:
            probe.gather(gradients)
            probe.skipped.clear()
            probe.skipped.update(unused)
            self._update(loss.detach())

    def _update(self, loss: Tensor) -> None:
        self.step.chain_rule(loss)
        if self.replay.active:
            self.rate.copy_(self.numbers[0])
        self.step.update(self.rate if self.replay.active else self.lr)

    def _settle(self) -> None:
        if self.fused is not None:
            self.fused.settle()
