"""Figures of walks and ensembles; `figures` holds them all."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..results import Comparison, CurveEnsemble, Report, Trace, titled
from .axes import STYLES, factor, finish, one, places, several, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# for single networks and ensembles, distinguishable in grey
MARKS = (("x", "D", "full"), ("+", "d", "full"), ("1", "D", "none"))
# a curve ensemble's scalings, and their names in figures
SCALED = {"none": "before rescaling", "per point": "after rescaling"}


def pair_ensemble(found: CurveEnsemble | Mapping[str, CurveEnsemble], ax: "Axes | None" = None) -> "Axes":
    """Plot the test error of phi(0) and phi(t) ensembled against t; the level is that of both ends ensembled.

    Args:
        found: The ensemble of one curve, or of several by name.
        ax: Axes to draw into; new ones by default.
    """
    ax, named = one(ax), {"phi(0) and phi(t)": found} if isinstance(found, CurveEnsemble) else dict(found)
    for (name, each), (colour, style) in zip(named.items(), styled(named), strict=True):
        ax.plot(each.t, 100 * np.array(each.pair_error), color=colour, linestyle=style, label=name)
    last = next(reversed(named.values()))
    ax.axhline(100 * last.pair_error[-1], color="black", linestyle=":", linewidth=1, label="both ends")
    return finish(ax, "t", "test error of two networks (%)", limits=(0, 1), above=len(named) + 1)


def curve_ensemble(found: CurveEnsemble, axes: Any = None) -> Any:
    """Plot the test error and cross-entropy along a curve, with the ensemble's as levels, before and after temperature
    scaling.

    Args:
        found: The ensemble of points of a curve.
        axes: Two axes to draw into; new ones by default.
    """
    left, right = several(axes, 1, 2)
    left.plot(found.t, 100 * np.array(found.error), color="black", label="phi(t)")
    for (scaling, name), (colour, style) in zip(SCALED.items(), STYLES[1:], strict=False):
        left.axhline(100 * found.scores[scaling]["error"], color=colour, linestyle=style, label=f"ensemble {name}")
        right.plot(found.t, found.nll[scaling], color=colour, linestyle=style, label=name)
    finish(left, "t", "test error (%)", limits=(0, 1), above=2)
    finish(right, "t", "test cross-entropy", limits=(0, 1), above=2)
    return left, right


def reliability(
    found: CurveEnsemble | Report | Mapping[str, Sequence[Sequence[float]]], ax: "Axes | None" = None
) -> "Axes":
    """Plot accuracy against confidence; a calibrated prediction lies on the diagonal.

    Args:
        found: A curve ensemble, plotted before and after temperature scaling; the report of an ensemble; or name ->
            bins as in `Report.reliability`.
        ax: Axes to draw into; new ones by default.
    """
    if isinstance(found, Report):
        found = {"the ensemble": found.reliability}
    if isinstance(found, CurveEnsemble):
        found = {name: found.reliability[scaling] for scaling, name in SCALED.items()}
    ax = one(ax)
    ax.plot([0, 100], [0, 100], color="grey", linewidth=1, label="accuracy = confidence")
    for (name, bins), marker, (colour, style) in zip(found.items(), cycle("osD^v"), cycle(STYLES), strict=False):
        share, accuracy, confidence = 100 * np.array(bins).T
        ax.plot(
            confidence, accuracy, color=colour, linestyle=style, linewidth=1, marker=marker, markersize=3, label=name
        )
        ax.scatter(confidence, accuracy, 10 + 3 * share, color=colour, marker=marker, clip_on=False)
    ax.set_aspect("equal")
    return finish(ax, "confidence (%); size of marks: fraction of the data", "accuracy (%)", limits=(0, 100))


def growth(
    reports: Report | Mapping[str, Report],
    score: str | None = None,
    budget: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot a score against the epochs spent: crosses are single networks, diamonds the ensemble so far.

    Args:
        reports: One report, or several by the name of the method; without `epochs` the x axis is the number of
            networks.
        score: The score; the first by default.
        budget: Epochs of one budget, every multiple of which is marked.
        ax: Axes to draw into; new ones by default.
    """
    reports = {"networks": reports} if isinstance(reports, Report) else reports
    score = score or next(iter(next(iter(reports.values())).scores))
    ax, timed = one(ax), all(report.epochs is not None for report in reports.values())
    for (name, report), place in zip(reports.items(), places(reports), strict=True):
        (cross, diamond, fill), (colour, style) = MARKS[place % len(MARKS)], STYLES[place]
        at = report.epochs if timed and report.epochs else range(1, len(report.growth) + 1)
        alone, pooled = (
            [factor(score) * entry[score] for entry in entries] for entries in (report.members, report.growth)
        )
        ax.plot(at, alone, cross, color=colour, label=f"{name}, single")
        drawn: Any = {"marker": diamond, "fillstyle": fill, "markersize": 5, "linestyle": style, "linewidth": 1}
        ax.plot(at, pooled, color=colour, label=f"{name}, ensemble", **drawn)
    if timed and budget:
        spent = max(max(report.epochs or [0]) for report in reports.values())
        for k in range(1, round(spent / budget) + 1):
            ax.axvline(k * budget, color="grey", linestyle=":", linewidth=1)
            ax.annotate(f"{k}B", (k * budget, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    ax.locator_params(axis="x", integer=True)
    return finish(ax, "epochs spent" if timed else "networks", f"test {titled(score)}")


def trace(trace: Trace, data: str | None = None, quantity: str | None = None, axes: Any = None) -> Any:
    """Plot learning rate, a watched quantity and the distance from the start along a walk; collected networks are
    marked.

    Args:
        trace: One of the `traces` that `walk` returns.
        data: The watched data set; the last by default.
        quantity: The watched quantity; by default the error, or the loss if there is none.
        axes: Three axes to draw into; new ones by default.

    Returns:
        The three axes.
    """
    axes = several(axes, 3, 1, sharex=True)
    iterations = np.arange(1, len(trace.lr) + 1)
    collected = np.array(trace.collected, dtype=int)
    panels = [("learning rate", iterations, trace.lr), ("distance from the start", iterations, trace.distance)]
    panels.insert(1, _watched(trace, data, quantity) if trace.watched else ("mini-batch loss", iterations, trace.loss))
    for ax, (label, at, values) in zip(axes, panels, strict=True):
        marker = None if len(at) == len(iterations) else "."  # where it was measured, if not after every step
        ax.plot(at / trace.steps, values, color=STYLES[0][0], linewidth=1, marker=marker)
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
    if quantity not in trace.watched.get(name, {}):
        there = {key: sorted(entry) for key, entry in trace.watched.items()}
        raise ThalwegError(f"the trace has no '{quantity}' on '{name}'; it has {there}")
    values = factor(quantity, trace.units) * np.array(trace.watched[name][quantity])
    return f"{name} {titled(quantity, trace.units)}", np.array(trace.watched_at), values


def budget(comparison: Comparison, score: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot a score of each method against the budget; bars show the standard deviation over runs.

    Args:
        comparison: What `compare` returned.
        score: The score; the first by default.
        ax: Axes to draw into; new ones by default.
    """
    ax, entries, score = one(ax), comparison.entries, score or comparison.first_score
    shifts = np.linspace(-0.06, 0.06, len(entries))
    for name, shift, marker, (colour, style) in zip(entries, shifts, cycle("osD^v"), styled(entries), strict=False):
        pairs = factor(score) * np.array([comparison.score(name, k, score) for k in comparison.multiples])
        at = np.array(comparison.multiples) + shift  # the spread is not known for a pool of several runs
        ax.errorbar(
            at,
            pairs[:, 0],
            pairs[:, 1],
            color=colour,
            linestyle=style,
            marker=marker,
            capsize=3,
            label=comparison.titled(name),
        )
    ax.set_xticks(comparison.multiples, [f"{k}B" for k in comparison.multiples])
    return finish(ax, f"budget (B = {comparison.budget} epochs)", titled(score))
