"""Figures from results alone; each takes `ax=None` and returns the axes it drew on."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..evaluation.results import PERCENT, Comparison, Scan, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STYLES = (("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#cc79a7", ":"), ("#000000", (0, (5, 1))))
LEVELS = 14
DEPTH = 5.0  # how many factors of e lie between the first level above the lowest point and the highest


def profile(
    scans: Scan | Mapping[str, Scan], data: str | None = None, quantity: str = "loss", ax: "Axes | None" = None
) -> "Axes":
    """A quantity against t along one or several curves.

    scans: one scan, or several by the name they get in the legend.
    data: which data set; the first one of the scan if not given.
    """
    named = _named(scans)
    ax = _axes(ax)
    for (name, scan), (colour, style) in zip(named.items(), _styles(len(named)), strict=True):
        t, values = _need(scan.t, "a profile"), _pick(scan, data, quantity)
        ax.plot(t, values, color=colour, linestyle=style, label=name)
    ax.set_xlim(0, 1)
    ax.set_xlabel("t")
    ax.set_ylabel(_label(next(iter(named.values())), data, quantity))
    ax.grid(alpha=0.3)
    if len(named) > 1:
        ax.legend()
    return ax


def surface(scan: Scan, data: str | None = None, quantity: str = "loss", ax: "Axes | None" = None) -> "Axes":
    """A quantity over a plane: filled contours on a logarithmic scale of levels, the three points, the curve drawn in it."""
    [scan] = _named(scan).values()
    ax = _axes(ax)
    filled = _contours(scan, data, quantity, ax, _levels(_pick(scan, data, quantity)))
    _bar(filled, ax, _label(scan, data, quantity))
    return ax


def surfaces(scans: Mapping[str, Scan], data: str | None = None, quantity: str = "loss", axes: Any = None) -> Any:
    """Several surfaces side by side with one scale of colours, as in the paper's first figure."""
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(1, len(scans), figsize=(4.6 * len(scans), 4.2), layout="constrained", squeeze=False)[1][0]
    levels = _levels(*(_pick(scan, data, quantity) for scan in scans.values()))
    for ax, (name, scan) in zip(axes, scans.items(), strict=True):
        filled = _contours(scan, data, quantity, ax, levels)
        ax.set_title(name)
        ax.set_anchor("S")
    axes[0].figure.colorbar(filled, ax=list(axes), format="%.3g").set_label(_label(scan, data, quantity))
    return axes


def _contours(scan: Scan, data: str | None, quantity: str, ax: "Axes", levels: np.ndarray) -> Any:
    x, y, values = _need(scan.x, "a surface"), _need(scan.y, "a surface"), _pick(scan, data, quantity)
    filled = ax.contourf(x, y, values, levels, cmap="viridis_r", norm=_norm(levels), extend="both")
    ax.contour(x, y, values, levels, colors="white", linewidths=0.5)
    for (name, path), (_, style) in zip(scan.paths.items(), _styles(len(scan.paths)), strict=True):
        ax.plot(*zip(*path, strict=True), color="black", linestyle=style, linewidth=2, label=name)
    for (name, places), marker in zip(scan.marks.items(), cycle("sD^v*"), strict=False):
        ax.plot(*zip(*places, strict=True), marker, color="black", markeredgecolor="white", markersize=6, label=name)
    ax.plot(*zip(*scan.corners, strict=True), "o", color="white", markeredgecolor="black", markersize=8)
    ax.set_aspect("equal")
    ax.set_xlabel("distance in weight space")
    if scan.paths or scan.marks:
        ax.legend(loc="best")
    return filled


def _bar(filled: Any, ax: "Axes", label: str) -> None:
    """A scale as high as the map, however flat that is."""
    scale = ax.inset_axes((1.03, 0.0, 0.04, 1.0))
    ax.figure.colorbar(filled, cax=scale, format="%.3g").set_label(label)


def _levels(*values: np.ndarray) -> np.ndarray:
    """Levels that crowd near the lowest value, so that the valley and the barrier both show."""
    finite = np.concatenate([v[np.isfinite(v)].ravel() for v in values])
    if finite.size == 0:
        raise ThalwegError("there is no finite value to draw: the networks of this plane have diverged")
    low, high = finite.min(), finite.max()
    high = max(high, low + max(1e-6, 1e-6 * abs(low)))
    return low + (high - low) * np.geomspace(np.exp(-DEPTH), 1.0, LEVELS)


def trace(trace: Trace, data: str | None = None, quantity: str | None = None, axes: Any = None) -> Any:
    """Learning rate, a watched quantity and the distance from the start along a walk, collected networks marked.

    data, quantity: what of the watched data to show; the error, or else the loss, of the last set if not given.
    """
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(3, 1, sharex=True, figsize=(7, 8), layout="constrained")[1]
    iterations = np.arange(1, len(trace.lr) + 1)
    collected = np.array(trace.collected, dtype=int)
    panels = [("learning rate", iterations, trace.lr), ("distance from the start", iterations, trace.distance)]
    if trace.watched:
        name = list(trace.watched)[-1] if data is None else data
        quantity = quantity or ("error" if "error" in trace.watched[name] else "data_loss")
        if quantity not in trace.watched.get(name, {}):
            there = {key: sorted(entry) for key, entry in trace.watched.items()}
            raise ThalwegError(f"the trace has no '{quantity}' on '{name}'; it has {there}")
        values = np.array(trace.watched[name][quantity]) * (100 if quantity in PERCENT else 1)
        label = f"{name} {quantity.replace('_', ' ')}{' (%)' if quantity in PERCENT else ''}"
        panels.insert(1, (label, np.array(trace.watched_at), values))
    else:
        panels.insert(1, ("train loss", iterations, trace.loss))
    for ax, (label, at, values) in zip(axes, panels, strict=True):
        ax.plot(at / trace.steps, values, color=STYLES[0][0], linewidth=1)
        ax.plot(collected / trace.steps, values[np.searchsorted(at, collected)], "o", color=STYLES[1][0], label="collected")
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    axes[0].legend()
    axes[-1].set_xlabel("epoch")
    return axes


def budget(comparison: Comparison, score: str = "error", ax: "Axes | None" = None) -> "Axes":
    """A score of each method against the budget; bars show the standard deviation over runs."""
    ax = _axes(ax)
    factor = 100 if score in PERCENT else 1
    shifts = np.linspace(-0.06, 0.06, len(comparison.entries))
    for name, shift, marker, (colour, style) in zip(
        comparison.entries, shifts, cycle("osD^v"), _styles(len(comparison.entries)), strict=False
    ):
        pairs = np.array([comparison.score(name, k, score) for k in comparison.multiples])
        spread = pairs[:, 1]  # not known for a pool of several runs
        at = np.array(comparison.multiples) + shift
        ax.errorbar(
            at, factor * pairs[:, 0], factor * spread, color=colour, linestyle=style, marker=marker, capsize=3, label=name
        )
    ax.set_xticks(comparison.multiples, [f"{k}B" for k in comparison.multiples])
    ax.set_xlabel(f"budget (B = {comparison.budget} epochs)")
    ax.set_ylabel(f"{score}{' (%)' if score in PERCENT else ''}")
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def lines(
    series: "Mapping[str, tuple[Sequence[float], Sequence[float]]]",
    x: str,
    y: str,
    ax: "Axes | None" = None,
    levels: "Mapping[str, float] | None" = None,
) -> "Axes":
    """Curves by name over a common axis, and horizontal lines for what does not depend on it.

    series: name -> places and values. x, y: what the axes are called, with units. levels: name -> value of a dashed line.
    """
    ax = _axes(ax)
    for (name, (places, values)), (colour, style) in zip(series.items(), _styles(len(series)), strict=True):
        ax.plot(places, values, color=colour, linestyle=style, marker="o", markersize=3, label=name)
    for (name, value), (colour, _) in zip((levels or {}).items(), _styles(len(levels or {})), strict=True):
        ax.axhline(value, color=colour, linestyle="--", linewidth=1, label=name)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if len(series) + len(levels or {}) > 1:
        ax.legend(frameon=False)
    return ax


def save(figure: "Figure", stem: str | Path) -> list[Path]:
    """Write a figure as PNG and PDF."""
    from ..store.files import write

    def draw(path: Path, kind: str) -> Path:
        write(path, lambda temporary: figure.savefig(temporary, format=kind, dpi=150))
        return path

    return [draw(Path(f"{stem}.{kind}"), kind) for kind in ("png", "pdf")]


def _named(scans: Scan | Mapping[str, Scan]) -> dict[str, Scan]:
    if isinstance(scans, Scan):
        return {scans.name: scans}
    if not isinstance(scans, Mapping) or not all(isinstance(scan, Scan) for scan in scans.values()):
        raise ThalwegError(f"a figure needs a Scan, or several by name; got {type(scans).__name__}: files load with Scan.load")
    return dict(scans)


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _norm(levels: np.ndarray) -> Any:
    from matplotlib.colors import BoundaryNorm

    return BoundaryNorm(levels, ncolors=256, extend="both")


def _styles(count: int) -> list[tuple[str, Any]]:
    return [STYLES[i % len(STYLES)] for i in range(count)]


def _need(values: np.ndarray | None, what: str) -> np.ndarray:
    if values is None:
        raise ThalwegError(
            f"{what} needs a scan of a {'plane' if what == 'a surface' else 'curve'}; this scan is of another kind"
        )
    return values


def _pick(scan: Scan, data: str | None, quantity: str) -> np.ndarray:
    name = _data(scan, data)
    if name not in scan.values or quantity not in scan.values[name]:
        there = {key: sorted(entry) for key, entry in scan.values.items()}
        raise ThalwegError(f"the scan has no '{quantity}' on '{name}'; it has {there}")
    return scan.values[name][quantity] * (100 if quantity in PERCENT else 1)


def _data(scan: Scan, data: str | None) -> str:
    return next(iter(scan.values)) if data is None else data


def _label(scan: Scan, data: str | None, quantity: str) -> str:
    return f"{_data(scan, data)} {quantity.replace('_', ' ')}{' (%)' if quantity in PERCENT else ''}"
