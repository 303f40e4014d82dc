"""One training step, as in the paper: draw t, place phi(t), loss, gradient, weight decay, chain rule, update."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ThalwegError
from ..tasks import Task
from .motion import Motion


class Step:
    """One training step; called with a batch and a learning rate, it returns the mean loss of the batch before the
    update.

    Args:
        motion: What is trained, and how the network follows it.
        task: The loss.
        optimizer: Updates the vectors of `motion`.
        weight_decay: L2 penalty.
        clip: Clip the gradient of the data loss to this norm.
        make: Maps what the source of the batches yields to a batch.
    """

    partial = False  # whether a batch may be a part of a larger one, without any example that counts
    memory_on_device = False  # whether the whole optimizer state must be on the device of the vectors

    def __init__(
        self,
        motion: Motion,
        task: Task,
        optimizer: Optimizer,
        weight_decay: float = 0.0,
        clip: float | None = None,
        make: Callable[[Any], Any] = lambda drawn: drawn,
    ):
        self.motion, self.probe, self.task, self.optimizer, self.make = motion, motion.probe, task, optimizer, make
        self.weight_decay, self.clip, self.decays_early = weight_decay, clip, clip is None
        self.mean_loss: Callable[..., tuple[Tensor, int]] = mean_loss

    def __call__(self, batch: Any, lr: float) -> Tensor:
        loss = self.forward(batch, self.draw())
        self.probe.backward(loss)
        self.chain_rule(loss.detach())
        self.update(lr)
        return loss.detach()

    def draw(self) -> Tensor:
        """What decides where the network is placed: of a curve, the coefficients at t."""
        return torch.tensor(self.motion.draw(), dtype=torch.float64).to(self.probe.device, non_blocking=True)

    def forward(self, batch: Any, controls: Tensor) -> Tensor:
        """The mean loss of a batch where the controls place the network: at phi(t), given the coefficients of the
        curve.
        """
        self.motion.place(controls)
        loss, self.number = self.mean_loss(self.task, self.probe.module, self.make, batch)
        if self.number == 0 and not self.partial:
            rule = "a task's loss must return one value per example, or per label that counts"
            raise ThalwegError(f"{rule}; got an empty tensor: leave such batches out")
        return loss

    def chain_rule(self, loss: Tensor) -> None:
        """From the gradient at phi(t), with that of weight decay, to the gradient of what is trained."""
        if self.weight_decay and self.decays_early:
            self.probe.decay(self.weight_decay)
        self.motion.chain_rule(loss, self.weight_decay)

    def update(self, lr: float | Tensor) -> None:
        """Clip, as torch does before weight decay is added, and let the optimizer take its step."""
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self.motion.gradient)
            self.motion.gradient.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        if self.weight_decay and not self.decays_early:
            self.motion.decay(self.weight_decay)
        for vector, gradient in zip(self.motion.vectors, self.motion.gradients, strict=True):
            vector.grad = gradient  # in each step, since some optimizers reset it
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()


def mean_loss(task: Task, module: nn.Module, make: Callable[[Any], Any], drawn: Any) -> tuple[Tensor, int]:
    """The mean, and the number of values it is over."""
    batch = make(drawn)
    values, number = task.losses(*task.predictions(module, batch), batch)
    return values.mean() if number else values.sum(), number
