"""Walks: the learning-rate schedule, and when to collect a network."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, cos, inf, isfinite, pi
from typing import ClassVar

from ..errors import ThalwegError, number_list, real_number, whole_number
from .sgd import Schedule


@dataclass(frozen=True)
class Iterations:
    """A length in iterations, where a plain number would mean epochs.

    Examples:
        >>> FGE(cycle=Iterations(100), lr_max=0.05, lr_min=0.0005).plan(steps=391, epochs=1).collected
        [50, 150, 250, 350]

    Args:
        count: The number of iterations.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole_number(self.count, "a number of iterations"))


@dataclass(frozen=True)
class Plan:
    """A method's schedule for a run of `total` iterations.

    Args:
        rate: Maps the iteration, counted from 1, to a learning rate.
        collects: Whether to collect the network after this iteration's update.
        total: Iterations of the run.
    """

    rate: Schedule
    collects: Callable[[int], bool]
    total: int

    @property
    def collected(self) -> list[int]:
        """The iterations after which a network is collected."""
        return [i for i in range(1, self.total + 1) if self.collects(i)]


class Method(ABC):
    """A learning-rate schedule under which networks are collected.

    Attributes:
        title: The full name, for tables and figures.
        starts: For `compare`: the fractions of the budget at which it branches off the plain run; none by default.
    """

    title: ClassVar[str] = ""
    starts: tuple[float, ...] = ()

    @abstractmethod
    def plan(self, steps: int, epochs: int) -> Plan:
        """The schedule of one run.

        Args:
            steps: Iterations per epoch.
            epochs: Epochs of the run.

        Raises:
            ThalwegError: If the cycles of the method do not fit into the run.
        """

    def _plain(self, *names: str) -> None:
        """Convert these fields to plain numbers, and `starts` to a tuple of fractions."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, Iterations):
                object.__setattr__(
                    self, name, tuple(number_list(value, name)) if name == "starts" else real_number(value, name)
                )
        if "starts" in names and not (self.starts and all(0 < share < 1 for share in self.starts)):
            raise ThalwegError(f"starts are fractions of the budget, above 0 and below 1; got {self.starts}")


@dataclass(frozen=True)
class FGE(Method):
    """Fast Geometric Ensembling: a triangular cyclic learning rate; collects at its minimum.

    Examples:
        >>> FGE(cycle=2, lr_max=0.05, lr_min=0.01).plan(steps=3, epochs=5).collected
        [3, 9, 15]

    Args:
        cycle: Length of a cycle in epochs, or `Iterations(n)`; an even number of iterations.
        lr_max: Learning rate at the ends of a cycle.
        lr_min: Learning rate in the middle of a cycle.
        starts: For `compare`: the fractions of the budget at which it branches off the plain run. The rest of the
            budget is divided among them.
    """

    title: ClassVar[str] = "Fast Geometric Ensembling"
    cycle: float | Iterations
    lr_max: float
    lr_min: float
    starts: tuple[float, ...] = (0.6, 0.78)

    def __post_init__(self) -> None:
        self._plain("cycle", "lr_max", "lr_min", "starts")
        if not 0 < self.lr_min <= self.lr_max:
            raise ThalwegError(f"FGE needs 0 < lr_min <= lr_max; got lr_min {self.lr_min} and lr_max {self.lr_max}")

    def plan(self, steps: int, epochs: int) -> Plan:
        length = _iterations(self.cycle, steps, epochs)
        if length % 2:
            even = f"Iterations({length + 1})"
            even = even if isinstance(self.cycle, Iterations) else f"{2 * self.cycle:g} epochs, in Python {even}"
            raise ThalwegError(
                "a cycle of FGE must be an even number of iterations, with its lowest rate in the middle; "
                f"one of {_in_words(self.cycle)} has {length}: give {even}, or another batch size"
            )
        return Plan(triangle(self.lr_max, self.lr_min, length), lambda i: i % length == length // 2, steps * epochs)


@dataclass(frozen=True)
class Snapshot(Method):
    """Snapshot ensembles: a cosine learning rate with warm restarts; collects at the end of each cycle.

    Examples:
        >>> Snapshot(cycles=2, lr_max=0.1).plan(steps=5, epochs=3).collected
        [8, 15]

    Args:
        cycles: The number of cycles in the whole run.
        lr_max: Learning rate at the start of each cycle.
    """

    title: ClassVar[str] = "Snapshot ensembles"
    cycles: int
    lr_max: float

    def __post_init__(self) -> None:
        self._plain("lr_max")
        object.__setattr__(self, "cycles", whole_number(self.cycles, "cycles"))
        if self.cycles < 1 or not self.lr_max > 0:
            raise ThalwegError(f"Snapshot needs cycles >= 1 and lr_max > 0; got {self.cycles} and {self.lr_max}")

    def plan(self, steps: int, epochs: int) -> Plan:
        total = steps * epochs
        length = ceil(total / self.cycles)
        last = total - length * (self.cycles - 1)
        if last < 0.75 * length:
            raise ThalwegError(
                f"{self.cycles} cycles of {length} iterations leave {max(last, 0)} of {total} for the last one, too "
                "few for a network worth collecting: choose another number of cycles or epochs"
            )
        return Plan(cosine(self.lr_max, length), lambda i: i % length == 0 or i == total, total)


@dataclass(frozen=True)
class SWA(Method):
    """Stochastic Weight Averaging: a constant learning rate; collects at the end of each cycle, to be averaged.

    Examples:
        >>> SWA(lr=0.05, cycle=1).plan(steps=4, epochs=3).collected
        [4, 8, 12]

    Args:
        lr: The learning rate.
        cycle: How often to collect, in epochs or `Iterations(n)`.
        starts: For `compare`: the fractions of the budget at which it branches off the plain run.
    """

    title: ClassVar[str] = "Stochastic weight averaging"
    lr: float
    cycle: float | Iterations = 1
    starts: tuple[float, ...] = (0.75,)

    def __post_init__(self) -> None:
        self._plain("lr", "cycle", "starts")
        if not self.lr > 0:
            raise ThalwegError(f"SWA needs a learning rate above 0; got {self.lr}")

    def plan(self, steps: int, epochs: int) -> Plan:
        length = _iterations(self.cycle, steps, epochs)
        return Plan(lambda i: self.lr, lambda i: i % length == 0, steps * epochs)


@dataclass(frozen=True)
class WarmupCosine(Method):
    """A linear warm-up, then a cosine: the usual schedule of fine-tuning, as `schedule=` of `fit` and `connect`.

    Examples:
        >>> rate = WarmupCosine(lr_max=0.1, warmup=1).plan(steps=2, epochs=3).rate
        >>> [round(rate(i), 4) for i in range(1, 7)]
        [0.05, 0.1, 0.1, 0.0854, 0.05, 0.0146]

    As a method of `walk` or `WalkScheduler` it collects the network at the end.

    Args:
        lr_max: Learning rate after the warm-up; by default `lr` of `fit` and `connect`, or else the optimizer's own,
            there and in `WalkScheduler`.
        warmup: Its length in epochs, or `Iterations(n)`; rounded to iterations.
        lr_min: What the cosine approaches at the end.
    """

    title: ClassVar[str] = "Warm-up and cosine"
    lr_max: float | None = None
    warmup: float | Iterations = 0.0
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        self._plain(*(["lr_max"] if self.lr_max is not None else []), "warmup", "lr_min")
        long = self.warmup.count if isinstance(self.warmup, Iterations) else self.warmup
        highest = inf if self.lr_max is None else self.lr_max
        if not 0 <= self.lr_min <= highest or not highest > 0 or not long >= 0:
            raise ThalwegError(
                "WarmupCosine needs lr_max > 0, 0 <= lr_min <= lr_max and warmup >= 0; got "
                f"{self.lr_max}, {self.lr_min} and {self.warmup}"
            )

    def plan(self, steps: int, epochs: int) -> Plan:
        total, lr_max = steps * epochs, self.lr_max
        warm = self.warmup.count if isinstance(self.warmup, Iterations) else round(self.warmup * steps)
        if lr_max is None:
            raise ThalwegError(
                "WarmupCosine needs lr_max here, since there is no other learning rate that it could scale"
            )
        if warm >= total:
            raise ThalwegError(
                f"a warm-up must be shorter than the run; it is {warm} iterations, and the run is {total}"
            )

        def rate(i: int) -> float:
            if i <= warm:
                return lr_max * i / warm
            return self.lr_min + (lr_max - self.lr_min) / 2 * (
                cos(pi * (min(i - 1, total) - warm) / (total - warm)) + 1
            )

        return Plan(rate, lambda i: i == total, total)


def triangle(lr_max: float, lr_min: float, length: int) -> Schedule:
    """The cycle of FGE: down to `lr_min` in its first half, up again in its second.

    >>> [round(triangle(0.05, 0.01, 4)(i), 3) for i in range(1, 9)]
    [0.03, 0.01, 0.03, 0.05, 0.03, 0.01, 0.03, 0.05]
    """

    def rate(i: int) -> float:
        t = ((i - 1) % length + 1) / length
        return (1 - 2 * t) * lr_max + 2 * t * lr_min if t <= 0.5 else (2 - 2 * t) * lr_min + (2 * t - 1) * lr_max

    return rate


def cosine(lr_max: float, length: int) -> Schedule:
    """The cycle of Snapshot ensembles: from `lr_max` towards zero along a cosine, then a restart.

    >>> [round(cosine(0.1, 4)(i), 3) for i in range(1, 6)]
    [0.1, 0.085, 0.05, 0.015, 0.1]
    """
    return lambda i: lr_max / 2 * (cos(pi * ((i - 1) % length) / length) + 1)


def _iterations(cycle: float | Iterations, steps: int, epochs: int) -> int:
    """The length of a cycle, which must fit into the run."""
    length = cycle.count if isinstance(cycle, Iterations) else cycle * steps
    if not isfinite(length) or round(length) < 1 or abs(length - round(length)) >= 1e-6:
        raise ThalwegError(
            "a cycle must be a whole number of iterations, at least 1; "
            f"one of {_in_words(cycle)} of {steps} iterations has {length:g}"
        )
    if round(length) > steps * epochs:
        raise ThalwegError(
            f"a cycle must not be longer than the run; it is {round(length)} iterations, and the run is "
            f"{steps * epochs}"
        )
    return round(length)


def _in_words(cycle: float | Iterations) -> str:
    return f"{cycle}" if isinstance(cycle, Iterations) else f"{cycle:g} epoch{'s' * (cycle != 1)}"
