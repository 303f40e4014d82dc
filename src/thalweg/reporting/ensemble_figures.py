"""Figures of ensembles: errors and calibration of their members together, and comparisons at equal cost."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ThalwegError
from ..results import Comparison, CurveEnsemble, Report, equivalent, known_score, titled
from .axes import STYLES, ensure_axes, ensure_panels, factor, finish, style_numbers, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUMBERS = (1, 2, 3, 4, 6, 8, 12, 20, 30, 50, 100, 200, 500, 1000)  # of networks, along an axis
# for single networks and ensembles, distinguishable in grey
MARKS = (("x", "D", "full"), ("+", "d", "full"), ("1", "D", "none"))
WITH_MARKS = (-4, 104)  # percent, so that marks at both ends are whole
# a curve ensemble's scalings, and their names in figures
SCALED = {"none": "before rescaling", "per point": "after rescaling"}


def pair_ensemble(found: CurveEnsemble | Mapping[str, CurveEnsemble], ax: "Axes | None" = None) -> "Axes":
    """Plot the test error of phi(0) and phi(t) ensembled against t; the level is that of both ends ensembled.

    Args:
        found: The ensemble of one curve, or of several by name.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    ax, named = ensure_axes(ax), {"phi(0) and phi(t)": found} if isinstance(found, CurveEnsemble) else dict(found)
    for (name, each), (colour, style) in zip(named.items(), styled(named), strict=True):
        ax.plot(each.t, 100 * np.array(each.pair_error), color=colour, linestyle=style, label=name)
    ax.axhline(100 * each.pair_error[-1], color="black", linestyle=":", linewidth=1, label="both ends")
    return finish(ax, "t", "test error of two networks (%)", limits=(0, 1), above=len(named) + 1)


def curve_ensemble(found: CurveEnsemble, axes: "Sequence[Axes] | None" = None) -> Any:
    """Plot the test error and cross-entropy along a curve, with the ensemble's as levels, before and after temperature
    scaling.

    Args:
        found: The ensemble of points of a curve.
        axes: Two axes to draw into; new ones by default.

    Returns:
        Both axes; their figure is `axes[0].figure`.
    """
    left, right = ensure_panels(axes, 1, 2)
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
        found: A curve ensemble or the report of an ensemble, plotted before and after temperature scaling; or name ->
            bins as in `Report.reliability`.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    match found:
        case Report():
            both = {"the ensemble": found.reliability, "after temperature scaling": found.calibrated_reliability}
            found = {name: bins for name, bins in both.items() if bins}
        case CurveEnsemble():
            found = {name: found.reliability[scaling] for scaling, name in SCALED.items()}
    if not found:
        raise ThalwegError("reliability is that of predicted labels, and this report has none, as for regression")
    ax = ensure_axes(ax)
    ax.plot([0, 100], [0, 100], color="grey", linewidth=1, label="accuracy = confidence")
    for (name, bins), marker, (colour, style) in zip(found.items(), cycle("osD^v"), cycle(STYLES), strict=False):
        share, accuracy, confidence = 100 * np.array(bins).T
        ax.plot(
            confidence, accuracy, color=colour, linestyle=style, linewidth=1, marker=marker, markersize=3, label=name
        )
        # where marks lie on each other, the smaller ones are seen through the larger
        ax.scatter(confidence, accuracy, 10 + 3 * share, color=colour, marker=marker, alpha=0.5)
    ax.set_aspect("equal")
    ax.set(xticks=range(0, 101, 20), yticks=range(0, 101, 20), ylim=WITH_MARKS)
    return finish(ax, "confidence (%); size of marks: fraction of the data", "accuracy (%)", limits=WITH_MARKS)


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

    Returns:
        The axes; their figure is `ax.figure`.
    """
    reports = {"networks": reports} if isinstance(reports, Report) else reports
    score = known_score(score, [entry for report in reports.values() for entry in report.growth])
    ax, timed = ensure_axes(ax), all(report.epochs is not None for report in reports.values())
    for (name, report), place in zip(reports.items(), style_numbers(reports), strict=True):
        (cross, diamond, fill), (colour, style) = MARKS[place % len(MARKS)], STYLES[place]
        at = report.epochs if timed and report.epochs else range(1, len(report.growth) + 1)
        alone, pooled = (
            [factor(score) * entry.get(score, np.nan) for entry in entries]
            for entries in (report.members, report.growth)
        )
        ax.plot(at, alone, cross, color=colour, label=f"{name}, single")
        ax.plot(
            at,
            pooled,
            color=colour,
            linestyle=style,
            linewidth=1,
            marker=diamond,
            fillstyle=fill,
            markersize=5,
            label=f"{name}, ensemble",
        )
    if timed and budget:
        spent = max(max(report.epochs or [0]) for report in reports.values())
        for k in range(1, round(spent / budget) + 1):
            ax.axvline(k * budget, color="grey", linestyle=":", linewidth=1)
            ax.annotate(f"{k}B", (k * budget, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    ax.locator_params(axis="x", integer=True)
    return finish(ax, "epochs spent" if timed else "networks", titled(score))


def budget(comparison: Comparison, score: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot a score of each method against the budget; bars show the standard deviation over runs.

    Args:
        comparison: What `compare` returned.
        score: The score; the first by default.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    ax = ensure_axes(ax)
    entries = comparison.entries
    score = comparison.known_score(score)
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


def equivalents(
    found: Comparison | Mapping[str, Report], reference: Report | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Plot how many independent networks have the calibrated NLL of an ensemble, against the networks in it.

    A triangle on a mark means more than all independent networks that were trained, or fewer than one.

    Args:
        found: A comparison; or reports by the name of the method.
        reference: The report of an ensemble of independent networks, if `found` are reports.
        ax: Axes to draw into; new ones by default.

    Returns:
        The axes; their figure is `ax.figure`.
    """
    series, independent = _worth(found, reference)
    ax, most = ensure_axes(ax), max(independent, default=1)
    ax.plot([*independent], [*independent.values()], color="grey", linewidth=1, label="independent networks")
    for (label, at, worth), (colour, style) in zip(series.values(), styled(series), strict=True):
        drawn = np.clip(worth, 1, most)
        ax.plot(at, drawn, color=colour, linestyle=style, linewidth=1, marker="o", markersize=4, label=label)
        for beyond, triangle in ((worth > most, 10), (worth < 1, 11)):  # based on the point, up and down
            ax.plot(at[beyond], drawn[beyond], marker=triangle, markersize=8, linestyle="", color=colour)
    widest = max([most, *(at.max() for _, at, _ in series.values())])
    ax.set(xscale="log", yscale="log", ylim=(0.95 * most**-0.05, 1.05 * most**1.05))  # also where nothing is known
    for axis, end in ((ax.xaxis, widest), (ax.yaxis, most)):
        ticks = [*(k for k in NUMBERS if 1.15 * k < end), int(end)]
        axis.set_ticks(ticks, map(str, ticks))
        axis.set_ticks([], minor=True)
    return finish(
        ax, "networks in the ensemble (forward passes)", "independent networks with that calibrated NLL", above=2
    )


def _worth(
    found: Comparison | Mapping[str, Report], reference: Report | None
) -> tuple[dict[str, tuple[str, np.ndarray, np.ndarray]], dict[int, float]]:
    """For each method its label, its numbers of networks and their equivalents; and the equivalents of each number of
    independent networks, which chance can make smaller than the number.
    """
    if isinstance(found, Comparison):
        budgets, known = found.multiples, found.independent()
        return {
            name: (
                found.titled(name),
                np.array([found.networks(name, k) for k in budgets]),
                np.array([found.equivalent(name, k) for k in budgets]),
            )
            for name in found.entries
            if name not in ("Independent", "Ind")
        }, {k: equivalent(nll, known) for k, nll in known.items()}
    if reference is None:
        raise ThalwegError("reports are compared with that of independent networks: give it as reference=")
    return {
        name: (name, np.arange(1, len(report.growth) + 1), np.array(report.equivalents(reference)))
        for name, report in found.items()
    }, dict(enumerate(reference.equivalents(reference), start=1))
