"""Learning rates: functions of the iteration, counted from 1, that give the rate itself."""

from collections.abc import Callable

Schedule = Callable[[int], float]


def decay(lr: float, epochs: int, steps: int) -> Schedule:
    """The decay of the paper's public code: constant for half the epochs, linear to 1 % at 90 %, then flat.

    >>> rate = decay(0.1, epochs=10, steps=5)
    >>> [round(rate(i), 4) for i in (1, 25, 26, 45, 50)]
    [0.1, 0.1, 0.0753, 0.001, 0.001]

    lr: the rate of the first half. epochs: of the whole run. steps: iterations per epoch; the rate changes between epochs.
    """

    def rate(i: int) -> float:
        done = ((i - 1) // steps + 1) / epochs
        return lr * (1 - 0.99 * min(max(done - 0.5, 0.0) / 0.4, 1.0))

    return rate
