"""What a training step moves: the network itself, or the bends of a curve."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from ..weightspace.weights import BLOCK


class Motion(ABC):
    """What is trained: flat vectors from which a step places the network, and to which the chain rule leads its
    gradient.

    What changes from step to step, such as t, is a few numbers, the controls; all else of a step is the same every
    time.
    """

    probe: Probe
    block: Tensor  # (count, size), the vectors that are trained
    gradient: Tensor  # of the same shape
    controls = 0  # how many numbers a step needs from the CPU
    on_device = True  # whether the whole step runs on the probe's device
    linear = True  # whether the gradient of vector i is that of the probe times control i + 1
    same_t = True  # whether all processes of a run are at the same point
    averaged: Sequence[Tensor] = ()  # further state that all processes must share
    t: float | Tensor | None = None

    def hold(self, block: Tensor, gradient: Tensor) -> None:
        self.block, self.gradient, self.vectors, self.gradients = block, gradient, list(block), list(gradient)

    def draw(self) -> Sequence[float]:
        """The controls of the next step."""
        return ()

    @abstractmethod
    def place(self, controls: Tensor) -> None:
        """Put the probe where the next gradient is needed."""

    @abstractmethod
    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        """Turn the gradient of the probe into those of the vectors."""

    @abstractmethod
    def decay(self, weight_decay: float) -> None:
        """Add weight decay to the gradients of the vectors, where the probe's did not include it."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of the current result."""

    def state(self) -> dict[str, Tensor]:
        """Further state needed to resume."""
        return {}

    def set_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore what `state` returned; most motions have nothing more."""


class Network(Motion):
    """Plain training: the trained vector is the probe's own point."""

    def __init__(self, probe: Probe):
        self.probe = probe
        self.hold(probe.point[None], probe.grad[None])

    def place(self, controls: Tensor) -> None:
        self.probe.moved()

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        pass

    def decay(self, weight_decay: float) -> None:
        self.probe.decay(weight_decay)

    def snapshot(self) -> Any:
        return self.probe.weights()


OTHER_STREAM = 0x7E41  # t must differ from what a task draws from torch's own generator with the same seed


class Bends(Motion):
    """The control points of a curve in one block of memory, of which the bends are trained. A subclass defines how t is
    drawn (`draw`) and where the network is placed (`place`).
    """

    def __init__(self, probe: Probe, curve: Curve, seed: int = 0):
        self.probe, self.curve, self.controls = probe, curve, len(curve.points)
        self.generator = torch.Generator().manual_seed(seed + OTHER_STREAM)
        self.load_points()

    def load_points(self) -> None:
        size = self.probe.layout.size
        aligned = torch.zeros(
            self.controls, -(-size // 64) * 64, dtype=self.probe.point.dtype, device=self.probe.device
        )
        self.points = aligned[:, :size]  # rows that start at multiples of 64 are read faster
        for row, point in zip(self.points, self.curve.points, strict=True):
            row.copy_(self.probe.native(point.vector))
        self.hold(self.points[1:-1], torch.zeros_like(self.points[1:-1]))

    def uniform(self) -> float:
        return float(torch.rand((), generator=self.generator, dtype=torch.float64))

    @abstractmethod
    def draw(self) -> Sequence[float]:
        """The numbers that determine where the next step is."""

    def stand(self, coefficients: Tensor) -> None:
        """Write phi(t) into the probe in one pass over the control points."""
        self.coefficients = coefficients
        self.combine(self.points, coefficients, self.probe.point)
        self.probe.moved()

    @staticmethod
    def combine(points: Tensor, coefficients: Tensor, out: Tensor) -> None:
        torch.mv(points.T, coefficients.to(points.dtype), out=out)

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        torch.outer(self.coefficients[1:-1].to(self.points.dtype), self.probe.grad, out=self.gradient)

    def decay(self, weight_decay: float) -> None:
        rates = weight_decay * self.coefficients[1:-1].to(self.gradient.dtype)
        for stretch in self.probe.decayed:
            for piece in pieces(stretch):
                self.gradient[:, piece].addr_(rates, self.probe.point[piece].to(self.gradient))

    def state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])

    def snapshot(self) -> Curve:
        return self.curve.with_bends(
            [self.probe.canonical(vector).to(self.curve.start.vector) for vector in self.vectors]
        )


class UniformBends(Bends):
    """Equation (2) of the paper: one t per step, drawn from U(0, 1)."""

    def draw(self) -> Sequence[float]:
        self.t = self.uniform()
        return self.curve.checked_coefficients(self.t).tolist()

    def place(self, controls: Tensor) -> None:
        self.stand(controls)


def pieces(stretch: slice) -> Iterator[slice]:
    """Of at most BLOCK entries each, so that a copy of one is small."""
    return (slice(start, min(start + BLOCK, stretch.stop)) for start in range(stretch.start, stretch.stop, BLOCK))
