"""Figures from results alone. Those of one panel take `ax=None` and return the axes they drew on; those of several take
`axes=None` and return an array of them. `save(ax.figure, "profile")` writes the figure of one, and
`save(axes[0].figure, "barriers")` that of several.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..results import Barriers, Scan, Trace, shown, titled
from ..results.levels import LEVELS, Scale
from ..store.files import write
from .axes import (
    FLAT,
    STYLES,
    drawn_height,
    ensure_axes,
    ensure_panels,
    factor,
    finish,
    place_legend,
    smooth,
    stretch,
    styled,
)
from .ensemble_figures import budget, curve_ensemble, equivalents, growth, pair_ensemble, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = [
    "barriers", "budget", "curve_ensemble", "equivalents", "growth", "lines", "pair_ensemble", "profile", "reliability",
    "save", "surface", "surfaces", "trace",
]  # fmt: skip
DISTANCE = "distance in weight space"
LEGIBLE = 12  # in a matrix of more networks, numbers would not be
ACROSS, UPRIGHT, LONGEST = 50, 12, 40  # letters along a matrix and left of it, in a name below, and in one left of it
FADED = 0.5  # opacity of what lies outside the plane, where its loss is not the one drawn
SHORT = ((0, (2, 2)), (0, (5, 2)), (0, (5, 2, 1, 2)), (0, (1, 1)))  # dashes of curves outside the plane


def profile(
    scans: Scan | Sequence[Scan] | Mapping[str, Scan | Sequence[Scan]],
    data: str | None = None,
    quantity: str = "loss",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot a quantity against t along one or several curves; of the same curve over several seeds, the mean and a band
    of one standard deviation to either side.

    Examples:
        >>> import tempfile, thalweg as tw
        >>> t = np.linspace(0, 1, 5)
        >>> scan = tw.Scan("Segment", "curve", {"train": {"loss": t * (1 - t)}}, t=t, length=t)
        >>> ax = profile(scan)
        >>> [path.name for path in save(ax.figure, Path(tempfile.mkdtemp()) / "profile")]
        ['profile.png', 'profile.pdf']

    Args:
        scans: One scan, or several by their name in the legend. A list of scans is one curve over several seeds.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    named = _runs(scans)
    ax, styles = ensure_axes(ax), styled(named) if isinstance(scans, Mapping) else STYLES[:1]
    for (name, runs), (colour, style) in zip(named.items(), styles, strict=True):
        t, values, label = _over_seeds(runs, data, quantity)
        of = f", mean ± SD of {len(runs)} seeds" if len(runs) > 1 else ""
        ax.plot(  # with dots if the points are not equally spaced
            t, values.mean(0), color=colour, linestyle=style, marker="." if runs[0].knots else None, label=f"{name}{of}"
        )
        if of:
            band = values.mean(0) + values.std(0, ddof=1) * np.array([[-1], [1]])
            ax.fill_between(t, *band, color=colour, alpha=0.2, linewidth=0)
    return finish(
        ax, "t", label, limits=(0, 1), legend=len(named) > 1, above=int(any(len(runs) > 1 for runs in named.values()))
    )


def _over_seeds(runs: Sequence[Scan], data: str | None, quantity: str) -> tuple[np.ndarray, np.ndarray, str]:
    """One row for each scan, at all t that any of them measured, interpolated where it did not."""
    where = [_need(scan.t, "a profile") for scan in runs]
    data = next(iter(runs[0].values)) if data is None else data  # of all of them the same
    picked = [_pick(scan, data, quantity) for scan in runs]
    t = np.unique(np.concatenate(where))
    t = t[(t >= max(own[0] for own in where)) & (t <= min(own[-1] for own in where))]
    if not len(t):
        raise ThalwegError("the scans of one curve over several seeds have no t in common: scan the same part of it")
    return t, np.array([np.interp(t, own, v) for own, (v, _) in zip(where, picked, strict=True)]), picked[0][1]


def surface(scan: Scan, data: str | None = None, quantity: str = "loss", ax: "Axes | None" = None) -> "Axes":
    """Plot a quantity over a plane: filled contours on a logarithmic scale, the three points, and the curve in it.

    Args:
        scan: The scan of a plane.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    [[scan]] = _runs(scan).values()
    _need(scan.x, "a surface")
    height = np.clip(5 * drawn_height(scan), 2, 8) + 0.9 + _room_above(scan) / 72
    ax = ensure_panels(ax and [ax], 1, 1, layout="compressed", height=height)[0]
    values, label = _pick(scan, data, quantity)
    scale = Scale.of([(scan, values)])
    filled = _contours(scan, values, ax, scale)
    ax.set_ylabel(_along(scan, 1))
    bar = ax.inset_axes((1.03, 0.0, 0.04, 1.0))  # as high as the map, however flat it is
    every = int(np.clip(1 / drawn_height(scan), 2, LEVELS - 1))  # fewer numbers at the bar of a flat map
    ax.figure.colorbar(filled, cax=bar, ticks=filled.levels[::every], format=scale.text).set_label(label)
    return ax


def surfaces(
    scans: Mapping[str, Scan], data: str | None = None, quantity: str = "loss", axes: "Sequence[Axes] | None" = None
) -> Any:
    """Plot several surfaces side by side with a common colour scale, as in the paper's first figure.

    Args:
        scans: Scans of planes, by their title.
        data: The data set; the first of the scan by default.
        quantity: What to plot.
        axes: Axes to draw into; new ones by default.

    Returns:
        The axes, one for each scan: those given, or an array of new ones, whose figure is `axes[0].figure`.
    """
    axes = ensure_panels(axes, 1, len(scans), layout="compressed")
    picked = {name: _pick(scan, data, quantity) for name, scan in scans.items()}
    scale = Scale.of([(scan, picked[name][0]) for name, scan in scans.items()])
    for ax, (name, scan) in zip(axes, scans.items(), strict=True):
        filled = _contours(scan, picked[name][0], ax, scale)
        if list(scan.paths) == [name] and not scan.marks:
            ax.get_legend().remove()  # the title says it
        ax.set_title(name, pad=6 + (_room_above(scan) if ax.get_legend() else 0))
    # room for maps of one height
    if (grid := axes[0].get_gridspec()) is not None and (grid.nrows, grid.ncols) == (1, len(axes)):
        grid.set_width_ratios([np.clip(np.ptp(ax.get_xlim()) / np.ptp(ax.get_ylim()), 0.5, 2.5) for ax in axes])
    axes[0].set_ylabel(_along(next(iter(scans.values())), 1))
    axes[0].figure.colorbar(filled, ax=list(axes), format=scale.text).set_label(picked[name][1])
    return axes


def _contours(scan: Scan, values: np.ndarray, ax: "Axes", scale: Scale) -> Any:
    from matplotlib.patheffects import withStroke

    x, y, shares = smooth(_need(scan.x, "a surface"), _need(scan.y, "a surface"), scale.share(values))
    levels = np.linspace(0, 1, LEVELS)
    filled = ax.contourf(x, y, shares, levels, cmap="viridis_r", extend="both")
    ax.contour(x, y, shares, levels, colors="white", linewidths=0.5)
    off = scan.off_plane()
    for (name, path), (_, style), short in zip(scan.paths.items(), cycle(STYLES), cycle(SHORT), strict=False):
        own: Any = {"alpha": FADED, "linestyle": short} if name in off else {"linestyle": style}
        ax.plot(
            *zip(*path, strict=True),
            color="black",
            linewidth=2,
            path_effects=[withStroke(linewidth=4, foreground="white")],  # for dark parts of the map
            label=_legend(name, off),
            **own,
        )
    if not scan.shares:  # below the marks, which may name them
        ax.plot(
            *zip(*scan.corners, strict=True),
            "o",
            color="white",
            markeredgecolor="black",
            markersize=11 if scan.marks else 8,
        )
    farthest = max((max(scan.away[name]) for name in scan.marks if scan.away.get(name)), default=0.0)
    for (name, points), marker in zip(scan.marks.items(), cycle("sD^v*"), strict=False):
        if scan.shares:
            _mark_fitted(ax, points, np.array(scan.away[name]) / (farthest or 1.0), marker, _legend(name, off))
            continue
        own = {"alpha": FADED, "fillstyle": "none"} if name in off else {"markeredgecolor": "white"}
        ax.plot(*zip(*points, strict=True), marker, color="black", markersize=6, label=_legend(name, off), **own)
    ax.set(aspect=drawn_height(scan) * np.ptp(x) / np.ptp(y))
    ax.set_xlabel("\n".join([_along(scan, 0), *_caption(scan, values, shares)]))
    if scan.paths or scan.marks:
        if _room_above(scan):
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderaxespad=0.2)
        else:
            ax.legend(loc="best")
    return filled


def _room_above(scan: Scan) -> float:
    """The height of a legend above the map, in points; 0 where it is in the map."""
    return 18 * len([*scan.paths, *scan.marks]) if scan.shares or drawn_height(scan) < FLAT else 0


def _mark_fitted(ax: "Axes", points: Any, away: np.ndarray, marker: str, label: str) -> None:
    """Points in their order, each the darker the farther it is off the plane."""
    x, y = zip(*points, strict=True)
    ax.plot(x, y, color="black", linewidth=1, alpha=FADED)
    ax.scatter(
        x, y, 24, 1 - away, marker=marker, cmap="gray", vmin=0, vmax=1, edgecolors="black", zorder=3, label=label
    )


def _caption(scan: Scan, measured: np.ndarray, drawn: np.ndarray) -> list[str]:
    """What the reader of a map must know to trust it."""
    size = f"{measured.shape[1]} x {measured.shape[0]} points"
    lines = [f"contours interpolated between {size}"] if drawn.size > measured.size else []
    if scan.measured is not None and not scan.measured.all():
        lines = [f"interpolated between {scan.measured.sum():.0f} of {size}"]
    if scan.shares and scan.marks:
        lines.append("the darker a point, the farther off the plane")
    if (times := stretch(scan)) > 1:
        rounded = f"{float(f'{times:.2g}'):g}"
        lines.append("the axes have different scales" if scan.shares else f"the y axis is stretched {rounded} x")
    return lines


def _along(scan: Scan, axis: int) -> str:
    if scan.shares:
        return f"distance ({scan.shares[axis]:.0%} of the variance)"
    return "distance" if axis and drawn_height(scan) < FLAT else DISTANCE


def _legend(name: str, off: Mapping[str, tuple[float, float]]) -> str:
    shown = f" {name}" if name.startswith("_") else name  # a legend leaves out labels that start with it
    return f"{shown}, up to {off[name][0]:.3g} off the plane" if name in off else shown


def barriers(found: Barriers, data: str | None = None, quantity: str = "loss", axes: Any = None) -> Any:
    """Plot the barriers between all pairs of networks as a matrix, as they are and, if measured, aligned; on the
    diagonal is the value of each network by itself.

    Examples:
        >>> import tempfile, thalweg as tw
        >>> losses = np.array([[[0.1, 0.1, 0.1], [0.1, 0.9, 0.2]], [[0.2, 0.9, 0.1], [0.2, 0.2, 0.2]]])
        >>> axes = barriers(tw.Barriers(["a", "b"], np.linspace(0, 1, 3), {"test": {"loss": losses}}))
        >>> len(axes)
        1
        >>> [path.name for path in save(axes[0].figure, Path(tempfile.mkdtemp()) / "barriers")]
        ['barriers.png', 'barriers.pdf']

    Args:
        found: What `barriers` returned.
        data: The data set; the first by default.
        quantity: What to plot.
        axes: Axes to draw into, one or two; new ones by default.

    Returns:
        A numpy array of the axes: of the networks as they are and, if measured, aligned. Their figure is
        `axes[0].figure`.
    """
    panels = found.panels()
    given = None if axes is None else np.atleast_1d(axes)
    beside = 0.08 * min(LONGEST, max(map(len, found.networks)))  # for names, in inches
    axes = ensure_panels(given, 1, len(panels), layout="compressed", height=5.0, wider=max(0.0, beside - 1))
    matrices = [found.between(data, quantity, aligned) for aligned in panels.values()]
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    highest = max(finite.max(initial=0.0), 1e-12)
    for place, (ax, title, matrix) in enumerate(zip(axes, panels, matrices, strict=True)):
        own = np.eye(len(matrix), dtype=bool)
        drawn = ax.imshow(np.where(own, np.nan, matrix), cmap="viridis_r", vmin=0.0, vmax=highest)
        ax.set_title(title if len(panels) > 1 else "")
        _name_rows_and_columns(ax, found.networks, place == 0)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        _write_cells(ax, np.where(own, found.own(data, quantity), matrix), drawn.norm, quantity, found.units)
    if len(found.networks) <= LEGIBLE:
        axes[0].set_xlabel("on the diagonal: each network by itself")
    scale, name = factor(quantity, found.units), next(iter(found.values)) if data is None else data
    bar = axes[0].figure.colorbar(drawn, ax=list(axes), format=lambda value, _: f"{scale * value:.3g}")
    bar.set_label(f"barrier of {name} {titled(quantity, found.units)}")
    return axes


def _name_rows_and_columns(ax: "Axes", names: Sequence[str], first: bool) -> None:
    """Below the matrix upright names, or numbers for long ones, which would leave it no room; these are explained left
    of the first panel.
    """
    longest = max(map(len, names))
    rotation = 90 if longest * (len(names) + 1) > ACROSS else 0
    rows, columns = list(names), list(names)
    if rotation and longest > UPRIGHT:
        rotation, columns = 0, [str(k) for k in range(1, len(names) + 1)]
        rows = [f"{_shortened(name)}   {k}" for name, k in zip(names, columns, strict=True)] if first else columns
    ax.set_yticks(range(len(names)), rows)
    ax.set_xticks(range(len(names)), columns, rotation=rotation)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2 - 1]}…{name[-LONGEST // 2 :]}"


def _write_cells(ax: "Axes", cells: np.ndarray, norm: Any, quantity: str, units: Mapping[str, str]) -> None:
    texts = [[shown(quantity, float(cell), units) for cell in row] for row in cells]
    widest = 0.64 * max(len(text) for row in texts for text in row) - 0.32  # in heights: of digits and a point
    size = min(10.0, 60 / len(cells), 174 / len(cells) / widest)  # so that cells hold it
    for i, j in np.ndindex(*cells.shape) if len(cells) <= LEGIBLE else ():
        colour = "grey" if i == j else "white" if norm(cells[i, j]) > 0.5 else "black"
        ax.text(j, i, texts[i][j], ha="center", va="center", color=colour, fontsize=size)


def lines(
    series: "Mapping[str, tuple[Sequence[float], Sequence[float]]]", x: str, y: str, ax: "Axes | None" = None
) -> "Axes":
    """Plot named series over a common x axis.

    Args:
        series: Name -> x values and y values.
        x: Label of the x axis, with its unit.
        y: Label of the y axis, with its unit.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    ax = ensure_axes(ax)
    for (name, (at, values)), (colour, style) in zip(series.items(), cycle(STYLES), strict=False):
        ax.plot(at, values, color=colour, linestyle=style, marker="o", markersize=3, label=name)
    ax.set(xlabel=x, ylabel=y)
    if len(series) > 1:
        place_legend(ax, frameon=False)
    return ax


def trace(
    trace: Trace, data: str | None = None, quantity: str | None = None, axes: "Sequence[Axes] | None" = None
) -> Any:
    """Plot learning rate, a watched quantity and the distance from the start along a walk; collected networks are
    marked.

    Args:
        trace: One of the `traces` that `walk` returns.
        data: The watched data set; the last by default.
        quantity: The watched quantity; by default the error, or the loss if there is none.
        axes: Three axes to draw into; new ones by default.

    Returns:
        The three axes; their figure is `axes[0].figure`.
    """
    axes = ensure_panels(axes, 3, 1, sharex=True)
    iterations = np.arange(1, len(trace.lr) + 1)
    collected = np.array(trace.collected, dtype=int)
    panels = [
        ("learning rate", iterations, trace.lr),
        _watched(trace, data, quantity) if trace.watched else ("mini-batch loss", iterations, trace.loss),
        ("distance from the start", iterations, trace.distance),
    ]
    for ax, (label, at, values) in zip(axes, panels, strict=True):
        every = len(at) == len(iterations)  # else with dots where it was measured
        ax.plot(at / trace.steps, values, color=STYLES[0][0], linewidth=1, marker=None if every else ".")
        ax.plot(
            collected / trace.steps, values[np.searchsorted(at, collected)], "o", color=STYLES[1][0], label="collected"
        )
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    axes[-1].legend()  # distances leave a corner free
    axes[-1].set_xlabel("epoch")
    return axes


def _watched(trace: Trace, data: str | None, quantity: str | None) -> tuple[str, np.ndarray, np.ndarray]:
    name = list(trace.watched)[-1] if data is None else data
    quantity = quantity or ("error" if "error" in trace.watched.get(name, {}) else "data_loss")
    values, label = _values("trace", trace.watched, trace.units, name, quantity)
    return label, np.array(trace.watched_at), values


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


def panels(
    plot: Callable[[Any], object],
    size: tuple[float, float] | None = None,
    rows: int = 1,
    columns: int = 1,
    layout: Any = "constrained",
    **settings: Any,
) -> "Figure":
    """A new figure, after `plot` has drawn into its axes, an array of them if there are several.

    Args:
        plot: Gets the axes.
        size: Width and height in inches.
        rows: Of panels.
        columns: Of panels.
        layout: How matplotlib arranges them.
        settings: Further arguments of matplotlib's `subplots`.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(size, layout=layout)
    with rc_context({"text.parse_math": False}):  # since names of folders and data may hold dollar signs
        plot(figure.subplots(rows, columns, **settings))
    return figure


def _runs(scans: Any) -> dict[str, list[Scan]]:
    """By name, the scans of one curve, one for each seed."""
    given = scans if isinstance(scans, Mapping) else {"": scans}
    runs = {name: list(each) if isinstance(each, Sequence) else [each] for name, each in given.items()}
    if not runs or not all(each and all(isinstance(scan, Scan) for scan in each) for each in runs.values()):
        raise ThalwegError(
            f"a figure needs a Scan, or several by name; got {type(scans).__name__}: load files with Scan.load"
        )
    return runs if isinstance(scans, Mapping) else {each[0].name: each for each in runs.values()}


def _need(values: np.ndarray | None, what: str) -> np.ndarray:
    if values is None:
        kind = "plane" if what == "a surface" else "curve"
        raise ThalwegError(f"{what} needs a scan of a {kind}; this scan is of another kind")
    return values


def _pick(scan: Scan, data: str | None, quantity: str) -> tuple[np.ndarray, str]:
    return _values("scan", scan.values, scan.units, next(iter(scan.values)) if data is None else data, quantity)


def _values(
    what: str, held: Mapping[str, Mapping[str, Any]], units: Mapping[str, str], data: str, quantity: str
) -> tuple[np.ndarray, str]:
    """The values of a result, and the label of their axis."""
    if quantity not in held.get(data, {}):
        there = {key: sorted(entry) for key, entry in held.items()}
        raise ThalwegError(f"the {what} has no '{quantity}' on '{data}'; it has {there}")
    return factor(quantity, units) * np.asarray(held[data][quantity]), f"{data} {titled(quantity, units)}"
