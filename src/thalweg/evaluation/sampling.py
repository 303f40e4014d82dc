"""Which points a scan measures: all at once, or in rounds, each placed by the results of the earlier ones."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..errors import ThalwegError, number_list, real_number, warn, whole_number
from ..results import Values, corrections
from ..results.levels import LEVELS, Scale
from ..results.scan import JUMP
from ..store.records import array
from ..weightspace.curves import Curve, check_t
from ..weightspace.planes import Plane
from ..weightspace.weights import Weights

Target = Curve | Plane | Sequence[Weights]
Place = dict[str, float]  # t, or x and y
Measured = Mapping[str, Mapping[str, float]]  # data set -> quantity -> value at one point
TOLERANCE = 0.002  # of an adaptive scan, as a share of how far the loss varies along the curve
FLAT = 0.02  # a loss that varies by less than this share of itself counts as varying by that much
FIRST = 12  # intervals of the first round of an adaptive scan
MOST = 121  # most points of an adaptive scan along a curve; the default number of equal steps
CUBIC = 4  # how many times smaller the error of a cubic is than that of a trapezoid, at least, if the loss is rough
FINEST = 1 / 64  # of the tolerance: narrower intervals, as at a jump, are not divided
COARSE = 10  # least cells along each side of an adaptive plane in its first round


class Sampling(ABC):
    """The points of a scan, a round at a time.

    Attributes:
        where: What the result says about the points, as far as that is known in advance.
        places: The coordinates of all points so far, in the order in which they are measured.
        rule: How points are chosen, if they are not known in advance.
    """

    rule = ""

    def __init__(self, target: Target, where: Mapping[str, Any]):
        self.target, self.where, self.places = target, dict(where), list[Place]()

    def more(self, found: Sequence[Measured]) -> list[Place]:
        """The points of the next round, given all that was measured so far; none at the end."""
        new = self.next_round(found) if self.places else self.first_round()
        self.places += new
        return new

    def weights(self, index: int) -> Weights:
        if isinstance(self.target, Curve | Plane):
            return self.target.point(**self.places[index])
        return self.target[index]

    @abstractmethod
    def first_round(self) -> list[Place]: ...

    def next_round(self, found: Sequence[Measured]) -> list[Place]:
        """By default there is none."""
        return []

    @abstractmethod
    def arranged(self, found: Sequence[Measured]) -> tuple[dict[str, Any], Values]:
        """What the result says about the points, and its values."""


class AllAtOnce(Sampling):
    """Points that are known in advance."""

    def __init__(self, target: Target, where: Mapping[str, Any], places: list[Place]):
        super().__init__(target, where)
        self.known = places

    def first_round(self) -> list[Place]:
        return self.known

    def arranged(self, found: Sequence[Measured]) -> tuple[dict[str, Any], Values]:
        shape = (len(self.where["y"]), len(self.where["x"])) if "y" in self.where else (len(found),)
        return self.where, _values(found, lambda column: column.reshape(shape))


class AlongCurve(Sampling):
    """Points where the profile bends: until the trapezoids between neighbours, and the highest point between them, are
    within a tolerance for the loss on every data set.
    """

    target: Curve

    def __init__(self, curve: Curve, tolerance: float):
        super().__init__(curve, {"name": type(curve).__name__, "kind": "curve"})
        self.tolerance, self.knots = tolerance, sorted({0.0, *curve.knots, 1.0})
        self.rule = f"adaptive, within {tolerance:g}"

    def first_round(self) -> list[Place]:
        each = max(2, -(-FIRST // (len(self.knots) - 1)))
        pieces = (np.linspace(*piece, each + 1).tolist() for piece in pairwise(self.knots))
        return [{"t": t} for t in sorted({t for piece in pieces for t in piece})]

    def next_round(self, found: Sequence[Measured]) -> list[Place]:
        where, values = self.arranged(found)
        t, cuts = where["t"], np.searchsorted(where["t"], self.knots)
        wanted = np.zeros(len(t) - 1, dtype=bool)
        for entry in values.values():
            wanted |= _unresolved(entry["loss"], t, where["length"], cuts, self.tolerance)
        new = [{"t": float(middle)} for middle in ((t[:-1] + t[1:]) / 2)[wanted]]
        if not new or len(t) + len(new) <= MOST:
            return new
        warn(
            f"this profile is too rough for a tolerance of {self.tolerance:g} with {MOST} points: after {len(t)}, "
            f"{len(new)} intervals are still not within it; give a number of points instead, or in Python "
            "a larger tolerance",
        )
        return []

    def arranged(self, found: Sequence[Measured]) -> tuple[dict[str, Any], Values]:
        order = np.argsort([place["t"] for place in self.places])
        t = [self.places[k]["t"] for k in order]
        where = {**self.where, **_along(self.target, t), "knots": self.knots}
        return where, _values(found, lambda column: column[order])


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # of losses that are nearly infinite, or straight
def _unresolved(loss: np.ndarray, t: np.ndarray, length: np.ndarray, cuts: np.ndarray, tolerance: float) -> np.ndarray:
    """The intervals that need a point in their middle; none where a loss is not finite."""
    spread = max(np.ptp(loss), FLAT * np.abs(loss).max())
    if not np.isfinite(spread) or spread == 0:
        return np.zeros(len(t) - 1, dtype=bool)
    share = np.abs(corrections(loss, length, cuts)) / (spread * max(length[-1], np.finfo(float).tiny))
    largest = (share >= share.max() / 2) & (share.sum() > CUBIC * tolerance)
    limited = (share * spread * length[-1] > 0.99 * JUMP * np.ptp(loss) * np.diff(length)) & (share > tolerance / 2)
    jumps = _jumps(loss, t, cuts) > 2 * tolerance * spread
    sharp = _bends_at_top(loss, t, cuts) > CUBIC * tolerance * spread
    unseen = _highest(loss, t, cuts) > loss.max() + tolerance * spread
    return (largest | limited | jumps | sharp | unseen) & (np.diff(t) > FINEST * tolerance)


def _jumps(loss: np.ndarray, t: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """How far off each trapezoid may be because the loss jumps in its interval: by how much its slope differs from that
    of the interval before, of the one after, or of one interpolated between the two, whichever is least.
    """
    found = np.zeros(len(t) - 1)
    for start, stop in pairwise(cuts):
        steps = np.diff(t[start : stop + 1])
        slopes, middles = np.diff(loss[start : stop + 1]) / steps, t[start:stop] + steps / 2
        before, after = np.r_[slopes[1], slopes[:-1]], np.r_[slopes[1:], slopes[-2]]
        between, inner = before.copy(), slice(1, -1)
        ways = (middles[inner] - middles[:-2]) / (middles[2:] - middles[:-2])
        between[inner] += ways * (after - before)[inner]
        found[start:stop] = steps**2 * np.abs(slopes - [before, after, between]).min(0) / 2
    return found


def _bends_at_top(loss: np.ndarray, t: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """How far the loss leaves a straight line next to its highest point, if that is not an end or a corner: where it
    bends sharply, an estimate of what is missed cannot be trusted.
    """
    found, top = np.zeros(len(t) - 1), int(loss.argmax())
    if top not in cuts:
        steps = np.diff(t[top - 1 : top + 2])
        rise, fall = np.diff(loss[top - 1 : top + 2]) / steps
        found[top - 1 : top + 1] = (rise - fall) / steps.sum() * steps**2 / 4
    return found


def _highest(loss: np.ndarray, t: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The most that the loss can reach in each interval if it is concave around it, a corner included: where the lines
    through the two points before it and the two after it meet, and next to an end what the only such line reaches.
    """
    found = np.empty(len(t) - 1)
    for start, stop in pairwise(cuts):
        values, steps = loss[start : stop + 1], np.diff(t[start : stop + 1])
        slopes = np.diff(values) / steps
        step = steps[1:-1]
        left, right = values[1:-2], values[2:-1]
        rise, fall = slopes[:-2], slopes[2:]
        meet = np.clip((right - left - fall * step) / (rise - fall), 0, step)
        inner = np.minimum(left + rise * meet, right - fall * (step - meet))  # NaN where both are the same line
        found[start:stop] = [values[1] - slopes[1] * steps[0], *inner, values[-2] + slopes[-2] * steps[-1]]
    return found


class OverPlane(Sampling):
    """Points of a grid where contours crowd: a cell with more than one contour of the loss is divided, down to the
    grid's own. Other points are interpolated.
    """

    target: Plane
    rule = "adaptive"

    def __init__(self, plane: Plane, where: Mapping[str, Any]):
        super().__init__(plane, where)
        self.shape = len(where["y"]), len(where["x"])
        self.coarse = 1
        while (min(self.shape) - 1) // (2 * self.coarse) >= COARSE:
            self.coarse *= 2
        self.stride, self.order = self.coarse, list[tuple[int, int]]()

    def first_round(self) -> list[Place]:
        return self._added(self._mask(np.ix_(*self._lines(self.coarse))))

    def next_round(self, found: Sequence[Measured]) -> list[Place]:
        if self.stride == 1:
            return []
        rows, columns = self._lines(self.stride)
        self.stride //= 2
        wanted = np.zeros(self.shape, dtype=bool)
        for row, column in np.argwhere(self._crowded(found, rows, columns)):
            inside = (slice(rows[row], rows[row + 1] + 1), slice(columns[column], columns[column + 1] + 1))
            wanted[inside] = True
        finer = self._mask(np.ix_(*self._lines(self.stride)))
        return self._added(wanted & finer & ~self._known())

    def arranged(self, found: Sequence[Measured]) -> tuple[dict[str, Any], Values]:
        known = self._known()
        return {**self.where, "measured": array(known)}, _values(found, lambda column: self._filled(column, known))

    def _lines(self, stride: int) -> list[np.ndarray]:
        """Every n-th row and column, the last one included."""
        return [np.unique([*range(0, size, stride), size - 1]) for size in self.shape]

    def _added(self, wanted: np.ndarray) -> list[Place]:
        new = [(int(row), int(column)) for row, column in np.argwhere(wanted)]
        self.order += new
        x, y = self.where["x"], self.where["y"]
        return [{"x": float(x[column]), "y": float(y[row])} for row, column in new]

    def _known(self) -> np.ndarray:
        return self._mask(tuple(np.transpose(self.order)))

    def _mask(self, places: tuple[np.ndarray, ...]) -> np.ndarray:
        mask = np.zeros(self.shape, dtype=bool)
        mask[places] = True
        return mask

    def _grid(self, column: np.ndarray) -> np.ndarray:
        values = np.full(self.shape, np.nan)
        values[tuple(np.transpose(self.order))] = column
        return values

    def _crowded(self, found: Sequence[Measured], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The cells between these lines in which the loss on some data set passes more than one level."""
        crowded = np.zeros((len(rows) - 1, len(columns) - 1), dtype=bool)
        for name in found[0]:
            loss = self._grid(np.array([point[name]["loss"] for point in found]))
            first = loss[np.ix_(*self._lines(self.coarse))]
            if np.isfinite(first).any():
                shares = np.clip(Scale.over([first]).share(loss[np.ix_(rows, columns)]), 0, 1)
                crowded |= np.ptp(sliding_window_view(shares, (2, 2)), axis=(2, 3)) * (LEVELS - 1) > 1
        return crowded

    def _filled(self, column: np.ndarray, known: np.ndarray) -> np.ndarray:
        """What was not measured, from the coarsest cells to the finest, between the corners of each."""
        values, stride = self._grid(column), self.coarse
        while stride > 1:
            coarse, stride = self._lines(stride), stride // 2
            finer = self._lines(stride)
            between = values[np.ix_(*coarse)]
            between = np.array([np.interp(finer[1], coarse[1], row) for row in between])
            between = np.array([np.interp(finer[0], coarse[0], each) for each in between.T]).T
            here = np.ix_(*finer)
            values[here] = np.where(known[here], values[here], between)
        return values


def _values(found: Sequence[Measured], arrange: Any) -> Values:
    return {
        name: {key: array(arrange(np.array([point[name][key] for point in found], dtype=float))) for key in entry}
        for name, entry in found[0].items()
    }


def sampling_of(
    target: Target, points: Any, grid: tuple[int, int] | None, margin: float | None, tolerance: float | None
) -> Sampling:
    """The points of a scan from its arguments, checked."""
    kind = "curve" if isinstance(target, Curve) else "plane" if isinstance(target, Plane) else "list of weights"
    adaptive = isinstance(points, str) and points == "adaptive" and kind != "list of weights"
    given = (("points", None if adaptive else points, "curve"), ("grid", grid, "plane"), ("margin", margin, "plane"))
    for name, value, wanted in given:
        if value is not None and kind != wanted:
            or_this = ', or give "adaptive"' if (name, kind) == ("points", "plane") else ""
            raise ThalwegError(f"{name}= is for a {wanted}, and this is a scan of a {kind}: leave it out{or_this}")
    if tolerance is not None and not (adaptive and kind == "curve"):
        raise ThalwegError('tolerance= is for the scan of a curve with points="adaptive": leave it out')
    if isinstance(target, Curve):
        return _curve_sampling(target, points, adaptive, tolerance)
    if isinstance(target, Plane):
        return _plane_sampling(target, grid, margin, adaptive)
    steps = [0.0, *(a.distance(b) for a, b in pairwise(target))]
    return AllAtOnce(
        target, {"name": "Weights", "kind": "points", "length": array(np.cumsum(steps))}, [{} for _ in target]
    )


def _curve_sampling(curve: Curve, points: Any, adaptive: bool, tolerance: float | None) -> Sampling:
    if adaptive:
        within = real_number(TOLERANCE if tolerance is None else tolerance, "tolerance")
        if not 0 < within < 1:
            raise ThalwegError(f"a tolerance lies between 0 and 1, as a share of how far the loss varies; got {within}")
        return AlongCurve(curve, within)
    ts = _increasing(points) if isinstance(points, Iterable) else curve.spaced(121 if points is None else points)
    where = {"name": type(curve).__name__, "kind": "curve", **_along(curve, ts)}
    return AllAtOnce(curve, where, [{"t": t} for t in ts])


def _plane_sampling(plane: Plane, grid: tuple[int, int] | None, margin: float | None, adaptive: bool) -> Sampling:
    counts = number_list(((61, 61) if adaptive else (21, 21)) if grid is None else grid, "grid", whole_number)
    beyond = real_number(plane.margin if margin is None else margin, "margin")
    if len(counts) != 2 or prod(counts) > 10**6:
        raise ThalwegError(
            f"grid is a pair, the number of points along x and along y, at most a million in all; got {grid!r}"
        )
    x, y = (_span(*ends, n, beyond) for ends, n in zip(plane.ranges, counts, strict=True))
    where = {"name": "Plane", "kind": "plane", "x": array(x), "y": array(y), "corners": list(plane.corners)}
    where |= {"shares": list(plane.shares or ())}
    if adaptive:
        return OverPlane(plane, where)
    return AllAtOnce(plane, where, [{"x": float(u), "y": float(v)} for v in y for u in x])


def _along(curve: Curve, ts: Sequence[float]) -> dict[str, Any]:
    steps = [curve.length(0.0, ts[0]), *(curve.length(a, b) for a, b in pairwise(ts))]
    ratio = None if curve.closed else curve.length_ratio()
    return {"t": array(ts), "length": array(np.cumsum(steps)), "length_ratio": ratio}


def _increasing(points: Iterable[float]) -> list[float]:
    ts = [] if isinstance(points, str) else [check_t(t) for t in points]
    if not ts or any(a >= b for a, b in pairwise(ts)):
        raise ThalwegError(f"points are a whole number, or values of t in increasing order; got {ts or points!r}")
    return ts


def _span(low: float, high: float, points: int, margin: float) -> np.ndarray:
    if points < 2 or not 0 <= margin < inf:
        raise ThalwegError(
            f"a plane needs a grid of at least 2 x 2 and a margin of 0 or more; got {points} and {margin}"
        )
    extra = margin * (high - low)
    return np.linspace(low - extra, high + extra, points)
