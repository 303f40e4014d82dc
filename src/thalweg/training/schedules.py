"""Learning rates: functions of the iteration, counted from 1, that give the rate itself."""

from collections.abc import Callable
from math import cos, pi

Schedule = Callable[[int], float]


def decay(lr: float, epochs: int, steps: int) -> Schedule:
    """The decay of the paper's public code: constant for half the epochs, linear to 1 % at 90 %, then flat.

    >>> rate = decay(0.1, epochs=10, steps=5)
    >>> [round(rate(i), 4) for i in (1, 25, 26, 45, 50)]
    [0.1, 0.1, 0.0753, 0.001, 0.001]

    lr: the rate of the first half. epochs: of the whole run. steps: iterations per epoch; the rate changes between epochs, or in
        a single one, all of which would be trained at 1 %, between iterations.
    """

    def rate(i: int) -> float:
        done = ((i - 1) // steps + 1) / epochs if epochs > 1 else (i - 1) / steps
        return lr * (1 - 0.99 * min(max(done - 0.5, 0.0) / 0.4, 1.0))

    return rate


def triangle(lr_max: float, lr_min: float, length: int) -> Schedule:
    """FGE's cycle: down to `lr_min` in its first half, up again in its second.

    >>> [round(triangle(0.05, 0.01, 4)(i), 3) for i in range(1, 9)]
    [0.03, 0.01, 0.03, 0.05, 0.03, 0.01, 0.03, 0.05]
    """

    def rate(i: int) -> float:
        t = ((i - 1) % length + 1) / length
        return (1 - 2 * t) * lr_max + 2 * t * lr_min if t <= 0.5 else (2 - 2 * t) * lr_min + (2 * t - 1) * lr_max

    return rate


def cosine(lr_max: float, length: int) -> Schedule:
    """Snapshot's cycle: from `lr_max` towards zero along a cosine, then at once back.

    >>> [round(cosine(0.1, 4)(i), 3) for i in range(1, 6)]
    [0.1, 0.085, 0.05, 0.015, 0.1]
    """
    return lambda i: lr_max / 2 * (cos(pi * ((i - 1) % length) / length) + 1)
