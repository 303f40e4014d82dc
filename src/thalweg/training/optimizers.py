"""The optimizer of a run and its learning-rate schedule: SGD with momentum, or the user's own."""

from collections.abc import Callable, Sequence
from inspect import signature

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from ..errors import ThalwegError, during

Schedule = Callable[[int], float]


def decay(lr: float, epochs: int, steps: int) -> Schedule:
    """The schedule of the paper's public code: constant for half the epochs, linear to 1 % at 90 %, then constant.

    Examples:
        >>> rate = decay(0.1, epochs=10, steps=5)
        >>> [round(rate(i), 4) for i in (1, 25, 26, 45, 50)]
        [0.1, 0.1, 0.0753, 0.001, 0.001]

    Args:
        lr: Learning rate of the first half.
        epochs: Epochs of the whole run.
        steps: Iterations per epoch. The rate changes between epochs, or between iterations if there is only one epoch.
    """

    def rate(i: int) -> float:
        done = ((i - 1) // steps + 1) / epochs if epochs > 1 else (i - 1) / steps
        return lr * (1 - 0.99 * min(max(done - 0.5, 0.0) / 0.4, 1.0))

    return rate


OptimizerFactory = Callable[[Sequence[Tensor]], Optimizer]


def make_optimizer(vectors: Sequence[Tensor], momentum: float, factory: OptimizerFactory | None) -> Optimizer:
    """SGD with momentum, or the optimizer that the user's factory makes from the vectors."""
    if factory is None:
        whole = vectors[0].is_cuda or vectors[0].dtype in (torch.float32, torch.float64)
        return SGD(vectors, lr=0.0, momentum=momentum, fused=whole)  # on the CPU, fused and half precision skip updates
    with during("making the optimizer"):
        optimizer = factory(vectors)
    if not isinstance(optimizer, Optimizer):
        raise ThalwegError(
            f"optimizer= must be a function that turns vectors into a torch optimizer; it gave {optimizer!r}"
        )
    try:
        signature(optimizer.step).bind()
    except TypeError:
        raise ThalwegError(
            f"the optimizer must take steps without a closure, and {type(optimizer).__name__} needs one: use another"
        ) from None
    if sorted(id(p) for group in optimizer.param_groups for p in group["params"]) != sorted(map(id, vectors)):
        raise ThalwegError("the optimizer must move exactly the vectors it is given, not a module's own parameters")
    if any(group.get("weight_decay") for group in optimizer.param_groups):
        raise ThalwegError(
            "the optimizer must not decay by itself, since decay acts at the point of the curve: give weight_decay= "
            "to the call and weight_decay=0 to the optimizer"
        )
    return optimizer
