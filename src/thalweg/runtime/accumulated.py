"""One update from several batches: their gradients are averaged as if they were one batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ThalwegError
from ..training.step import Step
from .transfer import Parts

Gradients = Sequence[Tensor | None]


class Accumulated:
    """The forward pass of a step over `Parts`: each goes forward and backward by itself, at the same point. What is
    returned is the mean loss over all examples, or tokens; its own backward pass only hands over their mean gradient.
    """

    def __init__(self, step: Step):
        if step.probe.hooked:
            raise ThalwegError(
                "gradients are accumulated before parameters see them, so hooks on parameters would run twice: remove "
                "the hooks, or use larger batches and accumulate=1"
            )
        self.step, self.one = step, step.forward
        step.forward = self  # type: ignore[assignment, method-assign]

    def __call__(self, parts: Parts, position: Tensor) -> Tensor:
        step, allowed = self.step, self.step.allows_empty
        mean: Any = None
        number: Any = 0
        gradients: Gradients = ()
        for left, part in zip(range(len(parts))[::-1], parts, strict=True):
            step.allows_empty = allowed or left > 0 or isinstance(number, Tensor) or number > 0
            loss = self.one(part, position)
            if not loss.requires_grad:
                return loss
            own = step.number
            if not isinstance(own, Tensor) and not own and (left or gradients):
                continue  # a mean of nothing may be NaN
            found = step.probe.gradients(loss)
            most = (number + own).double().clamp(min=1e-300) if isinstance(own, Tensor) else number + own or 1
            gradients = _mixed(gradients, number / most, found, own / most) if gradients else found
            mean = mean * (number / most) + loss.detach() * (own / most) if mean is not None else loss.detach()
            number = number + own
        step.number, step.allows_empty = number, allowed
        pairs = zip(step.probe.moving.values(), gradients, strict=True)
        reached = [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]
        return _Mean.apply(mean.to(loss.dtype), [g for _, g in reached], *(parameter for parameter, _ in reached))


def _mixed(one: Gradients, share: float | Tensor, two: Gradients, other: float | Tensor) -> Gradients:
    """The weighted sum, in the memory of both."""
    for tensors, weight in ((one, share), (two, other)):
        torch._foreach_mul_([tensor for tensor in tensors if tensor is not None], weight)
    both = [(a, b) for a, b in zip(one, two, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(one, two, strict=True)]


class _Mean(torch.autograd.Function):
    """A loss whose gradients are already known."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return mean.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return None, None, *(gradient * slope for gradient in ctx.gradients)
