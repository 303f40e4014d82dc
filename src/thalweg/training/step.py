"""One training step, as in the paper: draw t, move the network to phi(t), loss, gradient, weight decay, chain rule,
update; and what it trains: the network itself, or the bends of a curve.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError
from ..tasks import Number, Task
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from ..weightspace.weights import BLOCK
from .sgd import rates


class Step:
    """One training step; called with a batch and a learning rate, it returns the mean loss of the batch before the
    update.

    Args:
        trainable: What is trained, and how the network follows it.
        task: The loss.
        optimizer: Updates the vectors of `trainable`.
        weight_decay: L2 penalty.
        clip: Clip the gradient of the data loss to this norm.
        make_batch: Maps what the source of the batches yields to a batch.
    """

    allows_empty = False  # whether a batch may be a part of a larger one, in which no example counts
    state_on_device = False  # whether the whole optimizer state must be on the device of the vectors

    def __init__(
        self,
        trainable: "Trainable",
        task: Task,
        optimizer: torch.optim.Optimizer,
        weight_decay: float = 0.0,
        clip: float | None = None,
        make_batch: Callable[[Any], Any] = lambda drawn: drawn,
    ):
        self.trainable, self.probe, self.task = trainable, trainable.probe, task
        self.optimizer, self.make_batch = optimizer, make_batch
        self.weight_decay, self.clip, self.decays_early = weight_decay, clip, clip is None
        self.mean_loss: Callable[..., tuple[Tensor, Number]] = mean_loss
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]

    def __call__(self, batch: Any, lr: float) -> Tensor:
        loss = self.forward(batch, self.draw())
        self.probe.backward(loss)
        self.chain_rule(loss.detach())
        self.update(lr)
        return loss.detach()

    def draw(self) -> Tensor:
        """The next position, from which the point is computed: for a curve, its coefficients at t."""
        return torch.tensor(self.trainable.draw(), dtype=torch.float64, device="cpu").to(
            self.probe.device, non_blocking=True
        )

    def forward(self, batch: Any, position: Tensor) -> Tensor:
        """The mean loss of a batch at this position: for a curve, at phi(t)."""
        self.trainable.set_point(position)
        loss, self.number = self.mean_loss(self.task, self.probe.module, self.make_batch, batch)
        if not isinstance(self.number, Tensor) and self.number == 0 and not self.allows_empty:
            raise ThalwegError(
                "nothing in this batch counts (all labels are -100, or the loss returned no values): leave out such "
                "batches"
            )
        return loss

    def chain_rule(self, loss: Tensor) -> None:
        """From the gradient at phi(t), with that of weight decay, to the gradient of what is trained."""
        if self.weight_decay and self.decays_early:
            self.probe.decay(self.weight_decay)
        self.trainable.chain_rule(loss, self.weight_decay)

    def update(self, lr: float | Tensor) -> None:
        """Clip, as torch does before weight decay is added, and let the optimizer take its step."""
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self.trainable.gradient)
            self.trainable.gradient.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        if self.weight_decay and not self.decays_early:
            self.trainable.decay(self.weight_decay)
        for name, tensor, gradient in chain(*self.trainable.optimized):  # in each step, since some optimizers reset it
            tensor.grad = None if name in self.probe.skipped else gradient
        for group, rate in zip(self.optimizer.param_groups, rates(lr, self.base_lrs), strict=True):
            group["lr"] = rate
        if self.trainable.decay_at_phi is not None:
            self.trainable.decay_at_phi()
        with torch.no_grad():  # which custom optimizers may omit
            self.optimizer.step()


def mean_loss(task: Task, module: nn.Module, make_batch: Callable[[Any], Any], drawn: Any) -> tuple[Tensor, Number]:
    """The mean, and the number of values it is over."""
    batch = make_batch(drawn)
    values, number = task.losses(*task.predictions(module, batch), batch)
    return mean_of(values, number), number


def mean_of(values: Tensor, number: Number) -> Tensor:
    """The mean of what counts; zero if nothing does."""
    if isinstance(number, Tensor):
        return values.sum() / number.clamp(min=1) if values.ndim else values
    return values.mean() if number else values.sum()


Optimized = tuple[str, Tensor, Tensor]  # the name of a parameter, or nothing; its value; its gradient


class Trainable(ABC):
    """What is trained: flat vectors, from which a step computes the point of the network, and to which the chain rule
    propagates its gradient.

    What changes from step to step is a few numbers, the position, such as the coefficients at t; all else of a step is
    the same every time.
    """

    probe: Probe
    block: Tensor  # (count, size), the vectors that are trained
    gradient: Tensor  # of the same shape
    optimized: list[list[Optimized]]  # what the optimizer moves: each vector as a whole, or parameter by parameter
    position_size = 0  # how many numbers a step needs from the CPU
    on_device = True  # whether the whole step runs on the probe's device
    linear = True  # whether the gradient of vector i is that of the probe times entry i + 1 of the position
    same_t = True  # whether parts of a batch that are computed separately see the same point
    averaged: Sequence[Tensor] = ()  # running means over steps, which such parts share
    t: float | Tensor | None = None
    decay_at_phi: Callable[[], None] | None = None  # that of the optimizer, if it acts at phi(t)

    def set_vectors(self, block: Tensor) -> None:
        """Train the rows of `block`. The gradient of a single one has the memory of the probe's, which the chain rule
        scales in place.
        """
        grad = self.probe.grad[None]
        alone = (block.shape, block.dtype, block.device) == (grad.shape, grad.dtype, grad.device)
        self.block, self.gradient = block, grad if alone else torch.zeros_like(block)
        self.vectors = list(block)
        self.optimized = [[("", *both)] for both in zip(self.vectors, self.gradient, strict=True)]

    def draw(self) -> Sequence[float]:
        """The position of the next step."""
        return ()

    @abstractmethod
    def set_point(self, position: Tensor) -> None:
        """Move the probe to where the next gradient is needed."""

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
        """Restore what `state` returned; most have nothing more."""


class Network(Trainable):
    """Plain training: the trained vector is the probe's own point."""

    def __init__(self, probe: Probe):
        self.probe = probe
        self.set_vectors(probe.point[None])

    def set_point(self, position: Tensor) -> None:
        self.probe.sync_parameters()

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        """The gradient of the probe is that of its point."""

    def decay(self, weight_decay: float) -> None:
        self.probe.decay(weight_decay)

    def snapshot(self) -> Any:
        return self.probe.weights()


OTHER_STREAM = 0x7E41  # t must differ from what a task draws from torch's own generator with the same seed


class Bends(Trainable):
    """The control points of a curve in one block of memory, of which the bends are trained. A subclass defines where
    the network is moved (`set_point`), and how t is drawn (`draw`) unless that is from U(0, 1).
    """

    def __init__(self, probe: Probe, curve: Curve, seed: int = 0):
        self.probe, self.curve, self.position_size = probe, curve, len(curve.points)
        self.generator = torch.Generator().manual_seed((seed + OTHER_STREAM) % 2**64)
        self.load_points()

    def load_points(self) -> None:
        size = self.probe.layout.size
        shape = len(self.curve.points), -(-size // 64) * 64
        aligned = torch.zeros(shape, dtype=self.probe.point.dtype, device=self.probe.device)
        self.points = aligned[:, :size]  # rows that start at multiples of 64 are read faster
        for row, point in zip(self.points, self.curve.points, strict=True):
            row.copy_(self.probe.from_layout_order(point.vector))
        self.set_vectors(self.points[1:-1])

    def uniform(self) -> float:
        return float(torch.rand((), generator=self.generator, dtype=torch.float64, device="cpu"))

    def draw(self) -> Sequence[float]:
        """The coefficients at the next t."""
        self.t = self.uniform()
        return self.curve.checked_coefficients(self.t).tolist()

    def write_phi(self, coefficients: Tensor) -> None:
        """Write phi(t) into the probe in one pass over the control points."""
        self.coefficients = coefficients
        self.combine(self.points, coefficients, self.probe.point)
        self.probe.sync_parameters()

    @staticmethod
    def combine(points: Tensor, coefficients: Tensor, out: Tensor) -> None:
        torch.mv(points.T, coefficients.to(points.dtype), out=out)

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        torch.mul(self.probe.grad[None], self.coefficients[1:-1, None].to(self.points.dtype), out=self.gradient)

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
            [
                (vector if self.probe.in_layout_order else self.probe.to_layout_order(vector)).to(
                    self.curve.start.vector, copy=True
                )
                for vector in self.vectors
            ]
        )


class UniformBends(Bends):
    """Equation (2) of the paper: one t per step, drawn from U(0, 1)."""

    def set_point(self, position: Tensor) -> None:
        self.write_phi(position)


def pieces(stretch: slice) -> Iterator[slice]:
    """Of at most BLOCK entries each, so that a copy of one is small."""
    return (slice(start, min(start + BLOCK, stretch.stop)) for start in range(stretch.start, stretch.stop, BLOCK))
