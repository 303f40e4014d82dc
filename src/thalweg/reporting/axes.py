"""Shared by figures and the page: line styles that can be distinguished without colours, smooth contours, and new axes
where none are given.
"""

from collections.abc import Iterable, Mapping
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import ThalwegError
from ..results import UNITS, Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#8a6d00")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (6, 2, 2, 2, 2, 2)))
# each colour with its own dash, then with the next one
STYLES = tuple((colour, DASHES[(k + turn) % len(DASHES)]) for turn in range(6) for k, colour in enumerate(COLOURS))
KNOWN = {
    "Segment": 0,
    "Bezier": 1,
    "PolyChain": 2,
    "Bezier, with dropout": 3,
    "Ind": 0,
    "Independent": 0,
    "SSE": 1,
    "Snapshot": 1,
    "FGE": 2,
    "SWA": 3,
}
FLATTEST, FLATTEST_FITTED = 0.4, 0.7  # height of a plane's map in its widths, at least
FLAT = 0.6  # below this height, a map has no room for a legend, nor its axis for a long label
FINE = 61  # points along each side from which on contours are drawn without interpolation


def style_numbers(names: Iterable[str]) -> list[int]:
    """The index of each name's style: known names have their own, unless an earlier one has it; others take what is
    left.
    """
    names = list(names)
    own = {KNOWN[name]: name for name in reversed(names) if name in KNOWN}
    left = cycle([k for k in range(len(STYLES)) if k not in own] or range(len(STYLES)))
    return [KNOWN[name] if own.get(KNOWN.get(name, -1)) == name else next(left) for name in names]


def styled(names: Iterable[str]) -> "list[tuple[str, Any]]":
    return [STYLES[place] for place in style_numbers(names)]


def ensure_axes(ax: "Axes | None") -> "Axes":
    return ax if ax is not None else ensure_panels(None, 1, 1)[0]


def ensure_panels(
    axes: Any,
    rows: int,
    columns: int,
    layout: Any = "constrained",
    height: float = 4.4,
    wider: float = 0.0,
    **settings: Any,
) -> Any:
    """The axes given, or new ones in a figure of suitable size, in reading order; `height` in inches, for one row, and
    `wider` by so many.
    """
    if axes is not None and len(axes) != rows * columns:
        raise ThalwegError(f"this figure needs {rows * columns} axes; got {len(axes)}: give that many, or none")
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    size = (wider + (7 if columns == 1 else 4.8 * columns), height if rows == 1 else 3 * rows)
    return plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **settings)[1].ravel()


def finish(
    ax: "Axes", x: str, y: str, limits: tuple[float, float] | None = None, legend: bool = True, above: int = 0
) -> "Axes":
    """Labels, limits and legend; `above` is the number of columns of a legend above the axes. Without it, a legend is
    in the axes if it covers no line there, and above them otherwise.
    """
    ax.set(xlabel=x, ylabel=y)
    if limits is not None:
        ax.set_xlim(*limits)
    ax.grid(alpha=0.3)
    if above or legend:
        place_legend(ax, above)
    return ax


def place_legend(ax: "Axes", above: int = 0, **style: Any) -> None:
    width, height = _legend_size(ax)
    if not above and _has_room(ax, width, height):
        ax.legend(**style)
        return
    above = above or max(1, min(len(ax.get_legend_handles_labels()[1]), int(1 / width)))
    ax.legend(  # above what is written there
        loc="lower center", bbox_to_anchor=(0.5, 1.06 if ax.texts else 1), ncols=above, frameon=False
    )


def _legend_size(ax: "Axes") -> tuple[float, float]:
    """About the width and height of a legend with one column, as shares of those of the axes."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font, names = FontProperties(size=rcParams["legend.fontsize"]), ax.get_legend_handles_labels()[1]
    widest = max((TextPath((0, 0), name, prop=font).get_extents().width for name in names if name.strip()), default=0)
    figure = cast("Figure", ax.figure)
    wide, high = (72 / figure.dpi * pixels for pixels in (ax.bbox.width, ax.bbox.height))
    spread = 1.0 if figure.get_layout_engine() is None else 1.1  # layouts leave less around axes
    return (45 + widest) / wide / spread, (12 + 1.5 * font.get_size_in_points() * len(names)) / high / spread


def _has_room(ax: "Axes", width: float, height: float) -> bool:
    """Whether a box of this size covers no line in one of the places where matplotlib may put a legend."""
    ax.autoscale_view()  # else limits are those of a figure without lines
    # not a mark at a budget, from end to end
    drawn = [line for line in ax.lines if all(line.get_transform().contains_branch_seperately(ax.transData))]
    points = np.concatenate([_within(ax, line) for line in drawn] or [np.empty((0, 2))])
    size = np.array([width, height])
    for place in product((0, 0.5, 1), repeat=2):
        start = place * (1 - size)
        if not ((points >= start) & (points <= start + size)).all(-1).any():
            return bool((size < 1).all())
    return False


def _within(ax: "Axes", line: "Line2D") -> np.ndarray:
    """Points all along a line, or its marks alone, in the coordinates of the axes."""
    corners = (line.get_transform() + ax.transAxes.inverted()).transform(line.get_xydata())
    if line.get_linestyle() == "None" or not len(corners):
        return corners
    places, fine = np.arange(len(corners)), np.linspace(0, len(corners) - 1, 20 * len(corners))
    return np.column_stack([np.interp(fine, places, values) for values in corners.T])


def factor(name: str, units: Mapping[str, str] = UNITS) -> int:
    """Fractions are drawn in percent."""
    return 100 if units.get(name) == "%" else 1


def drawn_height(scan: Scan) -> float:
    """The height of a plane's map in its widths: distances have one scale, unless the plane is much longer than high,
    as a fitted one often is, or one through aligned networks.
    """
    return max(_height(scan), FLATTEST_FITTED if scan.shares else FLATTEST)


def stretch(scan: Scan) -> float:
    """How many times longer a distance along y is drawn than one along x."""
    return drawn_height(scan) / _height(scan)


def _height(scan: Scan) -> float:
    assert scan.x is not None
    assert scan.y is not None
    return float(np.ptp(scan.y) / np.ptp(scan.x))


def smooth(x: np.ndarray, y: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A coarse map on a finer grid, by cubics through every value that overshoot none; unchanged if it has gaps.

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
