"""Figures from results alone; each takes `ax=None` and returns the axes it drew on."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..results import Scan, titled
from ..store.files import write
from .axes import STYLES, Scale, factor, finish, one, several, styled
from .ensemble_figures import budget, curve_ensemble, growth, pair_ensemble, reliability, trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = [
    "budget", "chain", "curve_ensemble", "growth", "lines", "pair_ensemble", "profile", "reliability", "save",
    "surface", "surfaces", "trace", "width",
]  # fmt: skip
DISTANCE = "distance in weight space"
LEVELS = 14
FADED = {"alpha": 0.5, "linestyle": (0, (2, 2))}  # what is outside the plane: the loss drawn below it is not its own


def profile(
    scans: Scan | Mapping[str, Scan], data: str | None = None, quantity: str = "loss", ax: "Axes | None" = None
) -> "Axes":
    """Plot a quantity against t along one or several curves.

    Args:
        scans: One scan, or several by their name in the legend.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        ax: Axes to draw into; new ones by default.
    """
    named = _named(scans)
    ax, styles = one(ax), styled(named) if isinstance(scans, Mapping) else STYLES[:1]
    for (name, scan), (colour, style) in zip(named.items(), styles, strict=True):
        t, values = _need(scan.t, "a profile"), _pick(scan, data, quantity)
        ax.plot(t, values, color=colour, linestyle=style, label=name)
    return finish(ax, "t", _label(next(iter(named.values())), data, quantity), limits=(0, 1), legend=len(named) > 1)


def chain(
    scan: Scan,
    members: int,
    quantities: Sequence[tuple[str, str]] = (("train", "loss"), ("test", "error")),
    axes: Any = None,
) -> Any:
    """Plot quantities along a chain through networks, which are marked.

    Args:
        scan: The scan of the chain.
        members: The number of networks that the chain passes through, equally spaced in t.
        quantities: Pairs of data set and quantity.
        axes: Axes to draw into; new ones by default.
    """
    axes, knots = several(axes, 1, len(quantities)), np.linspace(0, 1, members)
    for ax, (data, quantity) in zip(axes, quantities, strict=True):
        profile(scan, data, quantity, ax)
        values = np.interp(knots, _need(scan.t, "a chain"), _pick(scan, data, quantity))
        ax.plot(knots, values, "o", color="black", fillstyle="none", label="networks", clip_on=False)
        ax.legend()
    return axes


def width(scans: "Mapping[float, tuple[Scan, Scan]]", data: str | None = None, axes: Any = None) -> Any:
    """Plot the worst loss on a curve and at its ends, and its length ratio, against the width of the network.

    Args:
        scans: Width -> the scan of the curve, and that of its ends.
        data: The data set; the first of the scan by default.
        axes: Axes to draw into; new ones by default.
    """
    left, right = several(axes, 1, 2)
    at, worst = list(scans), [[float(_pick(scan, data, "loss").max()) for scan in pair] for pair in scans.values()]
    bent, ends = (list(part) for part in zip(*worst, strict=True))
    first = next(iter(scans.values()))[0]
    lines({"worst on the curve": (at, bent), "worse end": (at, ends)}, "width K", _label(first, data, "loss"), left)
    lines(
        {first.name: (at, [np.nan if scan.length_ratio is None else scan.length_ratio for scan, _ in scans.values()])},
        "width K",
        "length ratio",
        right,
    )
    right.set_ylim(bottom=1, top=max(1.5, right.get_ylim()[1]))  # a hundredth is no difference
    return left, right


def surface(scan: Scan, data: str | None = None, quantity: str = "loss", ax: "Axes | None" = None) -> "Axes":
    """Plot a quantity over a plane: filled contours on a logarithmic scale, the three points, and the curve in it.

    Args:
        scan: The scan of a plane.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        ax: Axes to draw into; new ones by default.
    """
    [scan] = _named(scan).values()
    flat = np.ptp(_need(scan.y, "a surface")) / np.ptp(_need(scan.x, "a surface"))
    ax = several(ax and [ax], 1, 1, layout="compressed", height=np.clip(5 * flat, 2, 8) + 0.9)[0]
    scale = Scale.of([(scan, _pick(scan, data, quantity))])
    filled = _contours(scan, data, quantity, ax, scale)
    ax.set_ylabel(DISTANCE)
    bar = ax.inset_axes((1.03, 0.0, 0.04, 1.0))  # as high as the map, however flat it is
    ax.figure.colorbar(filled, cax=bar, format=scale.text).set_label(_label(scan, data, quantity))
    return ax


def surfaces(scans: Mapping[str, Scan], data: str | None = None, quantity: str = "loss", axes: Any = None) -> Any:
    """Plot several surfaces side by side with a common colour scale, as in the paper's first figure.

    Args:
        scans: Scans of planes, by their title.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        axes: Axes to draw into; new ones by default.
    """
    axes = several(axes, 1, len(scans), layout="compressed")
    scale = Scale.of([(scan, _pick(scan, data, quantity)) for scan in scans.values()])
    for ax, (name, scan) in zip(axes, scans.items(), strict=True):
        filled = _contours(scan, data, quantity, ax, scale)
        ax.set_title(name)
        if list(scan.paths) == [name] and not scan.marks:
            ax.get_legend().remove()  # the title says it
    # room for maps of one height
    if (grid := axes[0].get_gridspec()) is not None and (grid.nrows, grid.ncols) == (1, len(axes)):
        grid.set_width_ratios([np.clip(np.ptp(ax.get_xlim()) / np.ptp(ax.get_ylim()), 0.5, 2.5) for ax in axes])
    axes[0].set_ylabel(DISTANCE)
    axes[0].figure.colorbar(filled, ax=list(axes), format=scale.text).set_label(_label(scan, data, quantity))
    return axes


def _contours(scan: Scan, data: str | None, quantity: str, ax: "Axes", scale: Scale) -> Any:
    x, y, levels = _need(scan.x, "a surface"), _need(scan.y, "a surface"), np.linspace(0, 1, LEVELS)
    shares = scale.share(_pick(scan, data, quantity))
    filled = ax.contourf(x, y, shares, levels, cmap="viridis_r", extend="both")
    ax.contour(x, y, shares, levels, colors="white", linewidths=0.5)
    off = scan.off_plane()
    for (name, path), (_, style) in zip(scan.paths.items(), cycle(STYLES), strict=False):
        own: Any = FADED if name in off else {"linestyle": style}
        ax.plot(*zip(*path, strict=True), color="black", linewidth=2, label=_legend(name, off), **own)
    for (name, places), marker in zip(scan.marks.items(), cycle("sD^v*"), strict=False):
        own = {"alpha": FADED["alpha"], "fillstyle": "none"} if name in off else {"markeredgecolor": "white"}
        ax.plot(*zip(*places, strict=True), marker, color="black", markersize=6, label=_legend(name, off), **own)
    ax.plot(*zip(*scan.corners, strict=True), "o", color="white", markeredgecolor="black", markersize=8)
    ax.set_aspect("equal")
    ax.set_xlabel(DISTANCE)
    if scan.paths or scan.marks:
        ax.legend(loc="best")
    return filled


def _legend(name: str, off: Mapping[str, tuple[float, float]]) -> str:
    return f"{name}, up to {off[name][0]:.3g} off the plane" if name in off else name


def lines(
    series: "Mapping[str, tuple[Sequence[float], Sequence[float]]]",
    x: str,
    y: str,
    ax: "Axes | None" = None,
    levels: "Mapping[str, float] | None" = None,
) -> "Axes":
    """Plot named series over a common x axis, and horizontal lines for values that do not depend on it.

    Args:
        series: Name -> x values and y values.
        x: Label of the x axis, with its unit.
        y: Label of the y axis, with its unit.
        ax: Axes to draw into; new ones by default.
        levels: Name -> value of a dashed line.
    """
    ax = one(ax)
    for (name, (places, values)), (colour, style) in zip(series.items(), cycle(STYLES), strict=False):
        ax.plot(places, values, color=colour, linestyle=style, marker="o", markersize=3, label=name)
    for (name, value), (colour, _) in zip((levels or {}).items(), cycle(STYLES), strict=False):
        ax.axhline(value, color=colour, linestyle="--", linewidth=1, label=name)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if len(series) + len(levels or {}) > 1:
        ax.legend(frameon=False)
    return ax


def save(figure: "Figure", stem: str | Path) -> list[Path]:
    """Write a figure as PNG and PDF.

    Args:
        figure: The figure.
        stem: The path without a suffix.
    """
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "pdf")]
    for path in paths:
        write(path, partial(figure.savefig, format=path.suffix[1:], dpi=150))
    return paths


def _named(scans: Scan | Mapping[str, Scan]) -> dict[str, Scan]:
    if isinstance(scans, Scan):
        return {scans.name: scans}
    if not isinstance(scans, Mapping) or not scans or not all(isinstance(scan, Scan) for scan in scans.values()):
        raise ThalwegError(
            f"a figure needs a Scan, or several by name; got {type(scans).__name__}: files load with Scan.load"
        )
    return dict(scans)


def _need(values: np.ndarray | None, what: str) -> np.ndarray:
    if values is None:
        kind = "plane" if what == "a surface" else "curve"
        raise ThalwegError(f"{what} needs a scan of a {kind}; this scan is of another kind")
    return values


def _pick(scan: Scan, data: str | None, quantity: str) -> np.ndarray:
    name = _data(scan, data)
    if name not in scan.values or quantity not in scan.values[name]:
        there = {key: sorted(entry) for key, entry in scan.values.items()}
        raise ThalwegError(f"the scan has no '{quantity}' on '{name}'; it has {there}")
    return scan.values[name][quantity] * factor(quantity, scan.units)


def _data(scan: Scan, data: str | None) -> str:
    return next(iter(scan.values)) if data is None else data


def _label(scan: Scan, data: str | None, quantity: str) -> str:
    return f"{_data(scan, data)} {titled(quantity, scan.units)}"
