"""What a training step moves: the network itself here, the bends of a curve in `connect`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..weightspace.probe import Probe


class Motion(ABC):
    """What moves: flat vectors, from which a step places the probe and to which it hands the gradient.

    What a step needs from the host comes as a few numbers, its controls, so that the rest can be recorded.
    """

    probe: Probe
    block: Tensor  # (count, size), the vectors that move
    gradient: Tensor  # of the same shape
    controls = 0  # how many numbers a step needs from the host
    recordable = True  # whether all of a step happens on the probe's device
    fusible = True  # whether the gradient of vector i is that of the probe times control i + 1
    shared = True  # whether all processes of a run stand at the same point
    averaged: Sequence[Tensor] = ()  # what else of it all processes must have in common
    t: float | Tensor | None = None

    def hold(self, block: Tensor, gradient: Tensor) -> None:
        self.block, self.gradient, self.vectors, self.grads = block, gradient, list(block), list(gradient)

    def draw(self) -> Sequence[float]:
        """The controls of the next step."""
        return ()

    @abstractmethod
    def place(self, controls: Tensor) -> None:
        """Put the probe where the next gradient is wanted."""

    @abstractmethod
    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        """Turn the probe's gradient into the vectors' gradients."""

    @abstractmethod
    def decay(self, weight_decay: float) -> None:
        """Add the part of weight decay to the vectors' gradients, where the probe's did not have it."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The result as it stands, copied."""

    def state(self) -> dict[str, Tensor]:
        """What else a run needs to go on."""
        return {}

    def set_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Go on from there; most motions have nothing more."""


class Network(Motion):
    """Plain training: the vector that moves is the probe's own point."""

    def __init__(self, probe: Probe):
        self.probe = probe
        self.hold(probe.point[None], probe.grad[None])

    def place(self, controls: Tensor) -> None:
        self.probe.moved()

    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        pass

    def decay(self, weight_decay: float) -> None:
        self.probe.decay(weight_decay)

    def snapshot(self) -> Any:
        return self.probe.weights()
