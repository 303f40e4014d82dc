"""What `scan` returns: losses and metrics along a curve, over a plane, or at a list of weights."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isnan, nan
from typing import Any, Self

import numpy as np

from ..errors import ThalwegError
from .saved import UNITS, Saved, Values, csv_text, grid, shown, unit

FAR = 0.01  # up to this share of the distance between a plane's first two points, points count as lying in it
STRAIGHT = "Segment"  # the kind of a straight line in an identity; other kinds are hashes
JUMP = 0.125  # most that a cubic adds to a trapezoid, as a share of how far all values vary: slopes mislead near jumps


@dataclass(frozen=True, eq=False)
class Scan(Saved):
    """What was measured along a curve, over a plane, or at a list of weights; rates are fractions, not percentages.

    Attributes:
        name: "Bezier", "Plane", ...
        kind: "curve", "plane" or "points".
        values: Data set -> quantity -> one number per point, shaped `(ny, nx)` for a plane. `data_loss` is the mean
            loss of the task; `loss` adds weight_decay / 2 times the squared norm of the trainable weights.
        weight_decay: The one in `loss`.
        t: The parameter along a curve.
        length: The length so far along a curve or a list of points.
        x: Coordinates of a plane.
        y: Coordinates of a plane.
        length_ratio: The length of the curve divided by the distance between its ends; None if both are the same
            network.
        stored: Data set -> quantity -> the values at both ends with the batch-norm statistics they were saved with.
        corners: The coordinates of the networks that a plane was made from.
        shares: Of a plane fitted to many networks, the share of their variance along x and along y.
        paths: Curves in a plane by name: coordinates at equally spaced t from 0 to 1.
        marks: Weights in a plane by name: their coordinates.
        knots: Of a curve measured at adaptive points, the values of t between which it is smooth: there, mean and int
            follow cubics through the points.
        measured: Of a plane measured at adaptive points, 1 where it was measured and 0 where it is interpolated.
        away: For each point of `paths` and `marks`, its distance from the plane.
        identity: By what it is recognised in other results, whatever it is called: of a curve its kind and a hash of
            each control point, of a plane a hash of each corner. Empty in files of 0.1.0, and of a fitted plane.
        identities: The identity of each of `paths`.
        units: Quantity -> unit; "%" is for fractions, which tables and figures show in percent.
    """

    saved_as = "scan"
    name: str
    kind: str
    values: Values
    weight_decay: float = 0.0
    t: np.ndarray | None = None
    length: np.ndarray | None = None
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    length_ratio: float | None = None
    stored: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    corners: list[tuple[float, float]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    paths: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    marks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    away: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=UNITS.copy)
    knots: list[float] = field(default_factory=list)
    measured: np.ndarray | None = None
    identity: list[str] = field(default_factory=list)
    identities: dict[str, list[str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        shape = next(iter(next(iter(self.values.values())).values())).shape
        return f"Scan({self.name}, {' x '.join(map(str, shape))} points, {', '.join(self.values)})"

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Data set -> quantity -> min, mean and max, and for a curve also int and barrier.

        `mean` is over t, `int` over the length of the curve, both from the first measured point to the last, and
        `barrier` is the largest excess over the straight line between the values at both ends, NaN without these.
        """
        return {name: {key: self._summarise(v) for key, v in entry.items()} for name, entry in self.values.items()}

    def table(self) -> str:
        """The summary as text, errors in percent."""
        keys = ["min", "int", "mean", "max", "barrier"] if self.kind == "curve" else ["min", "mean", "max"]
        if self.kind == "points" and self.length is not None and len(self.length) == 1:
            keys = ["mean"]  # of one point, all are the same
        rows = [
            [self._label(name, quantity), *(shown(quantity, numbers[key], self.units) for key in keys)]
            for name, entry in self.summary().items()
            for quantity, numbers in entry.items()
            if quantity != "data_loss" or self.weight_decay
        ]
        ratio = (
            "undefined (both ends are the same network)" if self.length_ratio is None else f"{self.length_ratio:.2f}"
        )
        title = self.name if self.kind != "curve" else f"{self.name}, length ratio {ratio}"
        return "\n".join([title, grid(["", *keys], rows), *self._gaps(), *self._fitted()])

    def off_plane(self) -> dict[str, tuple[float, float]]:
        """Curves and points drawn in a plane that lie outside it.

        Returns:
            Name -> the largest distance from the plane, and that distance relative to the one between the plane's first
            two points, or to the width of a plane fitted to many networks or around one.
        """
        if self.x is None:
            return {}
        width = self.corners[1][0] if len(self.corners) == 3 and not self.shares else float(np.ptp(self.x))
        found = {name: (max(far), max(far) / width) for name, far in self.away.items() if far}
        return {name: pair for name, pair in found.items() if pair[1] > FAR}

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().to_dict().items() if value is not None}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        ratio = entry.get("length_ratio")  # which older files have as NaN where it is not defined
        return super().from_dict({**entry, "length_ratio": None if ratio is None or isnan(ratio) else ratio})

    def check(self) -> None:
        along = [values for values in (self.t, self.length) if values is not None]
        shape = (len(self.y), len(self.x)) if self.x is not None and self.y is not None else along[0].shape
        arrays = [*along, *(values for entry in self.values.values() for values in entry.values())]
        known = self.kind in (["plane"], ["points"], ["points", "curve"])[len(along)]
        if not known or len(arrays) == len(along) or any(values.shape != shape for values in arrays):
            raise ValueError("its values are not one per point")
        if self.measured is not None and self.measured.shape != shape:
            raise ValueError("it does not say of each point whether it was measured")
        apart = any(len(self.away.get(name, ())) != len(points) for name, points in self.marks.items())
        if self.shares and (apart or len(self.shares) != 2):
            raise ValueError("its networks do not have a distance each")
        if not all({*entry} <= {*self.values[name]} for name, entry in self.stored.items()):
            raise ValueError("its ends have other values than its points")

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns of `to_csv`, if pandas is installed."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ThalwegError(
                "a DataFrame needs pandas, which cannot be imported: pip install pandas, or use to_csv()"
            ) from error
        return DataFrame(self._columns())

    def to_csv(self) -> str:
        """One line per point: its coordinates, then every quantity of every data set."""
        return csv_text(self._columns())

    def _columns(self) -> dict[str, list[float]]:
        places: dict[str, Any] = {"t": self.t, "length": self.length}
        if self.x is not None and self.y is not None:
            places = {**dict(zip("xy", np.meshgrid(self.x, self.y), strict=True)), "measured": self.measured}
        pairs = [(name, key) for name, entry in self.values.items() for key in entry]
        between = "_" if len({"_".join(pair) for pair in pairs}) == len(pairs) else "/"  # as of "val" and "val_data"
        measured = {f"{name}{between}{key}": self.values[name][key] for name, key in pairs}
        return {name: each.ravel().tolist() for name, each in (places | measured).items() if each is not None}

    @np.errstate(invalid="ignore", over="ignore")  # a loss may be infinite
    def _summarise(self, values: np.ndarray) -> dict[str, float]:
        numbers = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        if self.kind == "curve" and self.t is not None and self.length is not None:
            cuts = np.searchsorted(self.t, self.knots)
            numbers |= {
                "mean": _mean(values, self.t, cuts),
                "int": _mean(values, self.length, cuts),
                "barrier": barrier(self.t, values),
            }
        return {key: float(number) for key, number in numbers.items()}

    def _fitted(self) -> list[str]:
        """What a plane fitted to many networks holds, and how far from it they are."""
        if not self.shares:
            return []
        far = {name: each for name, each in self.away.items() if each}
        return [
            f"the plane holds {sum(self.shares):.1%} of the variance of its {len(self.corners)} networks",
            *(f"{name}: {min(each):.3g} to {max(each):.3g} off the plane" for name, each in far.items()),
        ]

    def _label(self, name: str, quantity: str) -> str:
        return f"{name} {quantity}{unit(quantity, self.units)}"

    def _gaps(self) -> list[str]:
        def both(quantity: str, values: Iterable[float]) -> str:
            return " / ".join(shown(quantity, value, self.units) for value in values)

        return [
            f"ends, {self._label(name, quantity)}: {both(quantity, pair)} with the statistics they came with, "
            f"{both(quantity, self.values[name][quantity][[0, -1]])} with recomputed statistics"
            for name, entry in self.stored.items()
            for quantity, pair in entry.items()
            if quantity in ("loss", "error")
        ]


def barrier(t: np.ndarray, values: np.ndarray) -> float:
    """The largest excess over the straight line that joins the values at both ends, if they were measured.

    >>> barrier(np.array([0.0, 0.25, 1.0]), np.array([1.0, 4.0, 3.0])), barrier(np.array([0.25, 1.0]), np.ones(2))
    (2.5, nan)
    """
    if t[0] != 0 or t[-1] != 1:
        return nan
    return float((values - np.interp(t, t[[0, -1]], values[[0, -1]])).max())


def _mean(values: np.ndarray, x: np.ndarray, cuts: np.ndarray) -> float:
    span = x[-1] - x[0]
    if not span > 0:
        return float(values.mean())
    return float((np.trapezoid(values, x) + corrections(values, x, cuts).sum()) / span)


def corrections(values: np.ndarray, x: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """What a cubic adds to the trapezoid in each interval, with slopes from the neighbours on the same side of `cuts`,
    the indices of the points between which the values are smooth; without them, nothing.

    >>> x = np.array([0.0, 0.5, 2.0, 3.0])
    >>> bool(np.isclose(np.trapezoid(x**2, x) + corrections(x**2, x, np.array([0, 3])).sum(), 9))
    True
    """
    found = np.zeros(len(x) - 1)
    if not np.isfinite(np.ptp(values)):
        return found
    for start, stop in pairwise(cuts):
        steps = np.diff(x[start : stop + 1])
        if len(steps) > 1 and (steps > 0).all():
            slopes = np.gradient(values[start : stop + 1], x[start : stop + 1], edge_order=2)
            most = JUMP * np.ptp(values) * steps
            found[start:stop] = np.clip(-(steps**2) * np.diff(slopes) / 12, -most, most)
    return found
