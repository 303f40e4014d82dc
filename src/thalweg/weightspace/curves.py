"""Curves: t in [0, 1] -> coefficients over control points. All geometry comes from one small Gram matrix."""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from math import ceil, comb
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import DURING_NOTE, ThalwegError, note, real_number, whole_number
from ..store import files
from .layout import Layout
from .weights import Weights, at, check_agreement, check_points, combine, inner_products

NODES, NODE_WEIGHTS = (values.tolist() for values in np.polynomial.legendre.leggauss(16))
CONTROL = re.compile(r"net\.(?P<name>.+)_(?P<index>\d+)")  # a tensor of a control point in the paper's public code
PANELS = 16  # quadrature panels for t from 0 to 1


class Curve(ABC):
    """A path between two networks, linear in its control points: the ends, which are fixed, and the bends, which are
    trained.

    To define your own curve, implement `coefficients(t)`: one number per control point, adding up to one, `(1, 0, ...,
    0)` at t = 0 and `(0, ..., 0, 1)` at t = 1.

    Examples:
        >>> class Parabola(Curve):
        ...     def coefficients(self, t):
        ...         return [(1 - t) * (1 - 2 * t), 4 * t * (1 - t), t * (2 * t - 1)]
        >>> a, b = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(2))
        >>> round(Parabola(a, b).length_ratio(), 6)
        1.0

    Args:
        start: The network at t = 0.
        end: The network at t = 1; it must have the same architecture, frozen parameters and buffers.
        bends: The number of trainable points between them, at most 1000, at first equally spaced on the straight line.
    """

    points: tuple[Weights, ...]
    knots: tuple[float, ...] = (0.0, 1.0)  # the curve is smooth between these

    def __init__(self, start: Weights, end: Weights, bends: int = 1):
        # with more, the binomial coefficients of a Bezier curve exceed float64
        bends = whole_number(bends, "bends (of which a Segment has none)", least=1, most=1000)
        check_agreement(start, end)
        between = (start.vector.lerp(end.vector, i / (bends + 1)) for i in range(1, bends + 1))
        self.points = (start, *(at(start, vector) for vector in between), end)

    @abstractmethod
    def coefficients(self, t: float) -> Tensor | Sequence[float]:
        """The coefficient of each control point at t.

        Args:
            t: From 0, the start, to 1, the end.
        """

    def derivatives(self, t: float) -> Tensor | Sequence[float]:
        """d coefficients / dt: five-point differences between two knots by default, closed forms in the curves of this
        module.

        Args:
            t: From 0, the start, to 1, the end.
        """
        low, high = next(piece for piece in pairwise(sorted({0.0, *self.knots, 1.0})) if t <= piece[1])
        step = min(1e-3, (high - low) / 4)
        middle = min(max(t, low + 2 * step), high - 2 * step)
        nodes = [middle + k * step for k in range(-2, 3)]
        values = torch.stack([self.checked_coefficients(node) for node in nodes])
        return torch.tensor(_difference_weights(nodes, t), dtype=torch.float64, device="cpu") @ values

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bends: {len(self.bends)}, {self.start!r})"

    @property
    def start(self) -> Weights:
        """The network at t = 0."""
        return self.points[0]

    @property
    def end(self) -> Weights:
        """The network at t = 1."""
        return self.points[-1]

    @property
    def bends(self) -> tuple[Weights, ...]:
        """The trainable control points."""
        return self.points[1:-1]

    @property
    def layout(self) -> Layout:
        """The names, shapes and order of the weights, the same for all control points."""
        return self.start.layout

    def point(self, t: float) -> Weights:
        """The weights phi(t), without batch-norm statistics.

        Args:
            t: From 0, the start, to 1, the end, where the weights are bit for bit those of the two networks.
        """
        return combine(self.points, self.checked_coefficients(t).tolist())

    def velocity(self, t: float) -> Tensor:
        """The derivative phi'(t), as a vector like those of the weights.

        Args:
            t: From 0, the start, to 1, the end.
        """
        total = torch.zeros_like(self.start.vector)
        for point, rate in zip(self.points, self._rates(t).tolist(), strict=True):
            total.add_(point.vector - self.start.vector, alpha=rate)
        return total

    def speed(self, t: float) -> float:
        """The Euclidean norm of phi'(t).

        Args:
            t: From 0, the start, to 1, the end.
        """
        rates = self._rates(t)[1:]
        return max(float(rates @ self.gram @ rates), 0.0) ** 0.5

    def length(self, start: float = 0.0, stop: float = 1.0) -> float:
        """The length of the curve, or of the part between two values of t, in either order.

        Args:
            start: The value of t at which the part begins.
            stop: The value of t at which it ends.
        """
        start, stop = sorted(map(check_t, (start, stop)))
        cuts = [start, *sorted(knot for knot in self.knots if start < knot < stop), stop]
        return sum(self._smooth_length(*piece) for piece in pairwise(cuts))

    def length_ratio(self) -> float:
        """The length of the curve divided by the distance between its ends, which must differ."""
        if self.closed:
            raise ThalwegError(
                "a length ratio needs two different ends, and those of this curve are the same network: use length()"
            )
        return self.length() / float(self.gram[-1, -1]) ** 0.5

    @property
    def closed(self) -> bool:
        """Whether both ends are the same network."""
        return float(self.gram[-1, -1]) == 0

    def spaced(self, points: int, by: Literal["t", "length"] = "t") -> list[float]:
        """Values of t from 0 to 1, equally spaced in t or in length along the curve.

        Examples:
            >>> a, b = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(2))
            >>> PolyChain(a, b).spaced(5)
            [0.0, 0.25, 0.5, 0.75, 1.0]

        Args:
            points: How many.
            by: "t", or "length" for equal distances along the curve.
        """
        points = whole_number(points, "points")
        if not 2 <= points <= 10**6:
            raise ThalwegError(f"a curve needs at least 2 points, its ends, and at most a million; got {points:,}")
        if by not in ("t", "length"):
            raise ThalwegError(f"by must be 't' or 'length'; got {by!r}")
        even = [i / (points - 1) for i in range(points)]
        return even if by == "t" else self._spaced_by_length(even)

    @cached_property
    def gram(self) -> Tensor:
        """Inner products of the differences between each control point and the first."""
        return inner_products([point.vector for point in self.points], self.layout).cpu()

    def to(self, device: torch.device | str) -> "Curve":
        """The same curve on another device.

        Args:
            device: As in `torch.Tensor.to`; a curve that is already there is returned itself, not a copy.
        """
        points = tuple(point.to(device) for point in self.points)
        if all(there is here for there, here in zip(points, self.points, strict=True)):
            return self
        other = copy(self)
        other.points = points
        return other

    def with_bends(self, vectors: Sequence[Tensor]) -> "Curve":
        """A curve of the same kind between the same ends with other bends.

        Args:
            vectors: The weights of each bend, in the order of the layout; they are not copied.
        """
        other = copy(self)
        other.__dict__.pop("gram", None)
        other.points = (self.start, *(at(self.start, vector) for vector in vectors), self.end)
        return other

    @classmethod
    def through(cls, points: Sequence[Weights]) -> "Curve":
        """A curve with exactly these control points; a PolyChain passes through each of them.

        Args:
            points: At least two networks: the start, the bends, the end.
        """
        check_points(points, "a curve", least=2)
        curve = cls.__new__(cls)
        curve.points = tuple(points)
        return curve

    @staticmethod
    def from_state(state: Mapping[str, Tensor], module: nn.Module) -> "Curve":
        """Read a curve from a checkpoint of the paper's public code, whose layers store `weight_0`, `weight_1`, ...

        Args:
            state: The checkpoint's `model_state`.
            module: A plain network with the same parameter names and shapes.
        """
        named = [(CONTROL.fullmatch(name), tensor) for name, tensor in state.items()]
        count = 1 + max((int(match["index"]) for match, _ in named if match), default=-1)
        if count < 2:
            raise ThalwegError(
                "a curve of the paper's public code has tensors named net.*_0, net.*_1, ...; this state dict has none"
            )
        buffers = Weights.of(module).buffers
        points = []
        for i in range(count):
            own = {match["name"]: tensor for match, tensor in named if match and int(match["index"]) == i}
            points.append(Weights.from_state({**buffers, **own}, module).bare())
        return (Bezier if "coeff_layer.binom" in state else PolyChain if count > 2 else Segment).through(points)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with every control point; what they share is stored once.

        Args:
            path: The file to write.
        """
        varying = self.layout.varying
        tensors = {
            f"{i}/{name}": tensor
            for i, point in enumerate(self.points)
            for name, tensor in point.tensors().items()
            if i == 0 or name in varying
        }
        own = {key: value for key, value in vars(self).items() if key != "points" and _is_attribute(type(self), key)}
        about = {"curve": _kind(type(self)), "points": len(self.points), "layout": self.layout.to_dict(), "own": own}
        self.layout.save(files.place(path), "curve", tensors, about)

    @classmethod
    def load(cls, path: str | Path, module: nn.Module | None = None) -> "Curve":
        """Read a curve from a file or the folder of a finished `connect`; your own kind of curve loads with its own
        class.

        Args:
            path: The file or the folder.
            module: A network of the same architecture. The curve goes to its device; if the network is in shards
                (`sharded`), every process reads its own.
        """
        path, layout = files.inside(path, "curve.safetensors"), None if module is None else Layout.of(module)
        tensors, about = files.load_tensors(path, "curve") if layout is None else layout.load(path, "curve")
        with files.reading(path):
            return cls._of_parts(path, tensors, about, layout).to(
                "cpu" if module is None else next(module.parameters()).device
            )

    @classmethod
    def _of_parts(
        cls, path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], own: Layout | None
    ) -> "Curve":
        known = {_kind(kind): kind for kind in (cls, Segment, PolyChain, Bezier)}  # the built-in ones
        kind = known.get(about["curve"])
        if kind is None or not issubclass(kind, cls):
            name = about["curve"].rsplit(".", 1)[-1]
            raise ThalwegError(f"{path} holds a curve of kind {about['curve']}: load it with {name}.load")
        layout = Layout.stored(about["layout"], path, own)
        common = {name: tensor for name, tensor in files.below(tensors, "0/").items() if name not in layout.varying}
        if {name.partition("/")[0] for name in tensors} != {*map(str, range(min(about["points"], len(tensors))))}:
            raise ValueError(f"its tensors are not those of {about['points']} points")
        each = [{**common, **files.below(tensors, f"{i}/")} for i in range(about["points"])]
        curve = kind.through([Weights.from_tensors(layout, own) for own in each])
        curve.__dict__.update(
            {key: value for key, value in about["own"].items() if key != "points" and _is_attribute(kind, key)}
        )
        return curve

    def checked_coefficients(self, t: float) -> Tensor:
        """`coefficients(t)` as a tensor, checked: one number per control point, adding up to one.

        Args:
            t: From 0, the start, to 1, the end.
        """
        t = check_t(t)
        try:  # cheaper than `during`, in every step
            values = torch.as_tensor(self.coefficients(t), dtype=torch.float64, device="cpu")
        except Exception as error:
            note(
                error, f"{DURING_NOTE} asking for the coefficients of {type(self).__name__} at t = {t:.4g}", DURING_NOTE
            )
            raise
        if values.shape != (len(self.points),) or not abs(float(values.sum()) - 1) < 1e-6:
            raise ThalwegError(
                f"coefficients(t) must give {len(self.points)} numbers that add up to one, one per control point; "
                f"{type(self).__name__} gave {values.tolist()} at t = {t}"
            )
        return self._snapped(values, t) if t in (0, 1) else values

    def _snapped(self, values: Tensor, t: float) -> Tensor:
        """The exact coefficients at an end, since a curve's sin(pi), say, is not exactly zero."""
        exact = torch.zeros_like(values)
        exact[-1 if t == 1 else 0] = 1
        if not torch.allclose(values, exact, atol=1e-9):
            raise ThalwegError(
                f"a curve must meet its ends: {type(self).__name__}.coefficients({t}) must be {exact.tolist()}; got "
                f"{values.tolist()}"
            )
        return exact

    def _rates(self, t: float) -> Tensor:
        return torch.as_tensor(self.derivatives(check_t(t)), dtype=torch.float64, device="cpu")

    def _smooth_length(self, start: float, stop: float) -> float:
        panels = max(1, ceil(PANELS * (stop - start)))
        width = (stop - start) / panels
        middles = (start + (panel + 0.5) * width for panel in range(panels))
        nodes = [(0.5 * width * node, 0.5 * width * weight) for node, weight in zip(NODES, NODE_WEIGHTS, strict=True)]
        return sum(weight * self.speed(middle + away) for middle in middles for away, weight in nodes)

    def _spaced_by_length(self, fractions: list[float]) -> list[float]:
        """Newton's method on the length so far, from the cell of a coarse table in which the answer lies."""
        table = sorted({*self.knots, *(i / (4 * PANELS) for i in range(4 * PANELS + 1))})
        so_far = np.cumsum([0.0, *(self.length(a, b) for a, b in pairwise(table))])
        found = []
        for wanted in np.asarray(fractions) * so_far[-1]:
            cell = min(int(np.searchsorted(so_far, wanted, side="right")) - 1, len(table) - 2)
            low, high = table[cell], table[cell + 1]
            t = low
            for _ in range(8):
                speed = self.speed(t)
                missing = float(wanted - so_far[cell]) - self.length(low, t)
                t = min(max(t + missing / speed, low), high) if speed > 0 else t
            found.append(t)
        return [0.0, *found[1:-1], 1.0]


class _Straight(Curve):
    @property
    def knots(self) -> tuple[float, ...]:  # type: ignore[override]
        pieces = len(self.points) - 1
        return tuple(i / pieces for i in range(pieces + 1))

    def coefficients(self, t: float) -> Tensor:
        along = check_t(t) * (len(self.points) - 1)
        piece = min(int(along), len(self.points) - 2)
        return self._pair(piece, 1 - (along - piece), along - piece)

    def derivatives(self, t: float) -> Tensor:
        pieces = len(self.points) - 1
        return self._pair(min(int(t * pieces), pieces - 1), -pieces, pieces)

    def _pair(self, piece: int, first: float, second: float) -> Tensor:
        values = torch.zeros(len(self.points), dtype=torch.float64, device="cpu")
        values[piece], values[piece + 1] = first, second
        return values

    def _smooth_length(self, start: float, stop: float) -> float:
        return (stop - start) * self.speed((start + stop) / 2)


class Segment(_Straight):
    """The straight line between two networks: nothing to train, the baseline for every curve.

    Examples:
        >>> a, b = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(2))
        >>> Segment(a, b).coefficients(0.25)
        tensor([0.7500, 0.2500], dtype=torch.float64)

    Args:
        start: The network at t = 0.
        end: The network at t = 1.
    """

    def __init__(self, start: Weights, end: Weights):
        check_agreement(start, end)
        self.points = (start, end)


class PolyChain(_Straight):
    """A polygonal chain through the bends; each piece takes the same share of t.

    Examples:
        >>> a, b = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(2))
        >>> PolyChain(a, b, bends=1).coefficients(0.25)
        tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)

    Args:
        start: The network at t = 0.
        end: The network at t = 1.
        bends: The number of trainable points between them.
    """


class Bezier(Curve):
    """The Bezier curve of its control points: smooth, and inside their convex hull.

    Examples:
        >>> a, b = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(2))
        >>> Bezier(a, b, bends=1).coefficients(0.5)
        tensor([0.2500, 0.5000, 0.2500], dtype=torch.float64)

    Args:
        start: The network at t = 0.
        end: The network at t = 1.
        bends: The number of trainable points between them.
    """

    def coefficients(self, t: float) -> Tensor:
        return torch.tensor(_bernstein(len(self.points) - 1, check_t(t)), dtype=torch.float64, device="cpu")

    def derivatives(self, t: float) -> Tensor:
        degree = len(self.points) - 1
        lower = [0.0, *_bernstein(degree - 1, t), 0.0]
        return torch.tensor([degree * (a - b) for a, b in pairwise(lower)], dtype=torch.float64, device="cpu")


def check_t(t: float) -> float:
    t = float(real_number(t, "t"))
    if not 0 <= t <= 1:
        raise ThalwegError(f"t must lie between 0 (the start) and 1 (the end); got {t}")
    return t


def _is_attribute(kind: type[Curve], name: str) -> bool:
    """Whether an instance may have it: none of the class's methods and properties, which a file must not replace."""
    return not hasattr(inspect.getattr_static(kind, name, None), "__get__")


def _kind(curve: type[Curve]) -> str:
    """The name of a curve of this module; of any other, also the module in which it is defined."""
    return curve.__name__ if curve.__module__ == __name__ else f"{curve.__module__}.{curve.__qualname__}"


def _bernstein(degree: int, t: float) -> list[float]:
    return [comb(degree, i) * t**i * (1 - t) ** (degree - i) for i in range(degree + 1)]


def _difference_weights(nodes: Sequence[float], t: float) -> list[float]:
    """Weights that turn values at `nodes` into the derivative at t of the polynomial through them."""
    scale = nodes[-1] - nodes[0]
    return (np.linalg.inv(np.vander((np.asarray(nodes) - t) / scale, increasing=True))[1] / scale).tolist()
