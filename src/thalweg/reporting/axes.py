"""Shared by figures and the page: line styles that can be distinguished without colours, the colour scale of a plane,
and new axes where none are given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..results import SHARES, Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colour, dash
STYLES = (("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#cc79a7", ":"), ("#000000", (0, (5, 1))))
KNOWN = {
    "Segment": 0,
    "Bezier": 1,
    "PolyChain": 2,
    "Ind": 0,
    "Independent": 0,
    "SSE": 1,
    "Snapshot": 1,
    "FGE": 2,
    "SWA": 3,
}
NEAR, WALL = 0.4, 4.0  # a bowl is drawn whole: two fifths of a square lie below a quarter of what its corners reach
FINE = 61  # points along each side from which on contours are drawn without interpolation
DEPTH = 5.0  # how many factors of e lie between the first level above the lowest point and the highest


def places(names: Iterable[str]) -> list[int]:
    """The index of each name's style: known names have their own, unless an earlier one has it; others take what is
    left.
    """
    names = list(names)
    own = {KNOWN[name]: name for name in reversed(names) if name in KNOWN}
    left = cycle([k for k in range(len(STYLES)) if k not in own] or range(len(STYLES)))
    return [KNOWN[name] if own.get(KNOWN.get(name, -1)) == name else next(left) for name in names]


def styled(names: Iterable[str]) -> "list[tuple[str, Any]]":
    return [STYLES[place] for place in places(names)]


def one(ax: "Axes | None") -> "Axes":
    return ax if ax is not None else several(None, 1, 1)[0]


def several(
    axes: Any, rows: int, columns: int, layout: Any = "constrained", height: float = 4.4, **settings: Any
) -> Any:
    """The axes given, or new ones in a figure of suitable size, in reading order; `height` in inches, for one row."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    size = (7 if columns == 1 else 4.8 * columns, height if rows == 1 else 3 * rows)
    return plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **settings)[1].ravel()


def finish(
    ax: "Axes", x: str, y: str, limits: tuple[float, float] | None = None, legend: bool = True, above: int = 0
) -> "Axes":
    """Labels, limits and legend; `above` is the number of columns of a legend above the axes, where there is no free
    space.
    """
    ax.set(xlabel=x, ylabel=y)
    if limits is not None:
        ax.set_xlim(*limits)
    ax.grid(alpha=0.3)
    if above:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=above, frameon=False)
    elif legend:
        ax.legend()
    return ax


def factor(name: str, units: Mapping[str, str] = SHARES) -> int:
    """Fractions are drawn in percent."""
    return 100 if units.get(name) == "%" else 1


@dataclass(frozen=True)
class Scale:
    """Logarithmic above the lowest value, and no higher than needed, so that both the valley and the barrier are
    visible.
    """

    low: float
    high: float

    @classmethod
    def of(cls, planes: Sequence[tuple[Scan, np.ndarray]]) -> "Scale":
        """Up to the values between the first two networks and around them, but not to losses of millions farther away.

        Args:
            planes: Scans, each with the values to draw.
        """
        finite = np.concatenate([values[np.isfinite(values)] for _, values in planes])
        if finite.size == 0:
            raise ThalwegError(
                "there is no finite value to draw: the networks of this plane have diverged, or the data hold NaN"
            )
        low, near, high = np.quantile(finite, (0, NEAR, 1))
        barrier = max(_barrier(scan, values, low) for scan, values in planes)
        flat = max(1e-6, 1e-6 * abs(low))
        return cls(float(low), float(low + max(min(high - low, max(WALL * (near - low), barrier - low)), flat)))

    def share(self, values: np.ndarray) -> np.ndarray:
        """The position of values between the lowest level, 0, and the highest, 1; a little outside for values beyond
        them.
        """
        above = (np.where(np.isneginf(values), np.nan, values) - self.low) / (self.high - self.low)
        return 1 + np.log(np.clip(above, np.exp(-1.1 * DEPTH), np.exp(0.1 * DEPTH))) / DEPTH

    def text(self, share: float, _: Any = None) -> str:
        return f"{self.low + (self.high - self.low) * np.exp(DEPTH * (share - 1)):.3g}"


def smooth(x: np.ndarray, y: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A coarse map on a finer grid, by cubics that pass through every value and overshoot none; one with gaps as it is.

    >>> x = np.linspace(0, 1, 3)
    >>> finer, _, shares = smooth(x, x, np.outer(x, [1.0, 1.0, 1.0]))
    >>> finer.shape, shares.shape, bool(np.isclose(shares[finer == 0.5], 0.5).all())
    ((121,), (121, 121), True)
    """
    if min(shares.shape) >= FINE or not np.isfinite(shares).all():
        return x, y, shares
    from scipy.interpolate import PchipInterpolator

    finer = []
    for axis, own in ((1, x), (0, y)):
        places = np.linspace(0, len(own) - 1, (len(own) - 1) * -(-2 * (FINE - 1) // (len(own) - 1)) + 1)
        finer.append(np.interp(places, np.arange(len(own)), own))
        shares = PchipInterpolator(own, shares, axis=axis)(finer[-1])
    return finer[0], finer[1], shares


def _barrier(scan: Scan, values: np.ndarray, low: float) -> float:
    """The highest value in the grid row of the straight line between the first two networks."""
    if scan.x is None or scan.y is None or len(scan.corners) < 2:
        return low
    (start, height), (end, _) = scan.corners[:2]
    between = values[np.abs(scan.y - height).argmin(), (scan.x >= start) & (scan.x <= end)]
    return max(between[np.isfinite(between)], default=low)
