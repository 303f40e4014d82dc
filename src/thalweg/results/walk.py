"""What `walk` returns: the networks it collected, and what happened on the way."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .saved import UNITS, Saved

if TYPE_CHECKING:
    from ..weightspace.weights import Weights


@dataclass(frozen=True, eq=False)
class Trace(Saved):
    """What happened along one walk, iteration by iteration.

    Attributes:
        lr: Learning rate of each iteration.
        loss: Loss of each iteration.
        distance: Euclidean distance from the start after each iteration.
        collected: The iterations after which a network was collected.
        steps: Iterations per epoch.
        watched_at: The iterations at which `watched` was measured; 0 is the start.
        watched: Data set -> quantity -> values.
        units: As in `Scan`.
    """

    saved_as = "trace"
    names = ("trace.json", "trace-1.json")
    lr: np.ndarray = field(repr=False)
    loss: np.ndarray = field(repr=False)
    distance: np.ndarray = field(repr=False)
    collected: list[int]
    steps: int
    watched_at: list[int] = field(default_factory=list, repr=False)
    watched: dict[str, dict[str, list[float]]] = field(default_factory=dict, repr=False)
    units: dict[str, str] = field(default_factory=UNITS.copy, repr=False)

    def check(self) -> None:
        if not self.lr.shape == self.loss.shape == self.distance.shape == (len(self.lr),) or self.steps < 1:
            raise ValueError("it does not have one value per iteration")
        if any(len(values) != len(self.watched_at) for entry in self.watched.values() for values in entry.values()):
            raise ValueError("its watched quantities do not have one value per measurement")
        if not all(0 < i <= len(self.lr) for i in self.collected):
            raise ValueError("networks were collected after iterations that it does not have")


@dataclass(frozen=True, eq=False)
class Walk:
    """What a walk collected.

    Attributes:
        members: The networks, on the CPU, in the order of their collection.
        traces: What happened on the way, one per start.
    """

    members: "tuple[Weights, ...]"
    traces: tuple[Trace, ...]

    def __repr__(self) -> str:
        return f"Walk(members: {len(self.members)}, {', '.join(map(repr, self.traces))})"
