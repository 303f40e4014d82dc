"""The default optimizer, SGD with momentum; its schedule, and how parameter groups follow one. For other optimizers see
`optimizers.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ThalwegError

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


OptimizerFactory = Callable[..., Any]  # an optimizer class, a partial of one, or a function; see help(thalweg.fit)


def make_optimizer(vectors: Sequence[Tensor], momentum: float) -> torch.optim.Optimizer:
    """The default, SGD with momentum on the vectors."""
    # in half precision on a CPU, the fused one skips updates
    fused = vectors[0].is_cuda or vectors[0].dtype in (torch.float32, torch.float64)
    return torch.optim.SGD(vectors, lr=0.0, momentum=momentum, fused=fused)


def rates(first: Any, given: Sequence[Any]) -> list[Any]:
    """The learning rate of each parameter group: the first follows the schedule, the others keep their ratio to it.

    >>> rates(0.5, [0.1, 0.025]), rates(0.1, [0.1, 0.025])
    ([0.5, 0.125], [0.1, 0.025])
    """
    bases = [float(rate) for rate in given]
    if bases[0] == 0 and any(bases):
        raise ThalwegError(
            f"rates of parameter groups are kept in their ratio to the first, which must not be 0; got {bases}: put "
            "another group first"
        )
    if isinstance(first, float) and first == bases[0]:
        return bases
    return [first if rate == bases[0] else first * (rate / bases[0]) for rate in bases]
