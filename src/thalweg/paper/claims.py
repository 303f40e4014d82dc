"""Whether the paper's sentences hold on the rows that were found, and the one rule by which their bounds are set.

A bound is the paper's own value, and beyond it twice the spread that it prints there; where it prints none, half a
point of an error or a twentieth of a loss, a distance or a share. Where its public code gives a number too, that has a
verdict of its own.
"""

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any

from ..reporting.result import CODE, PAPER, Claim
from ..results import CurveEnsemble, Trace
from .published import figure

TWENTIETH = 0.05
Rows = Sequence[dict[str, Any]]


def limit(error: float, spread: float | None = None) -> float:
    """The bound of an error in percent.

    >>> limit(27.4, 0.1), limit(25.28)
    (27.6, 25.78)
    """
    return round(error + (2 * spread if spread is not None else 0.5), 9)


def on_budgets(rows: Rows, seeds: int) -> list[Claim]:
    """The order of the methods at each budget, and how far each is from the paper's error."""
    means = {row["method"]: row["1B (%)"] for row in rows}
    order = means["FGE"] < means["SSE"] < means["Ind"]
    first = Claim(f"FGE is better than SSE, and SSE than one network, at 1B (means of {seeds})", order, _listed(means))
    larger = [_at_budget(rows, k) for k in range(2, min(seeds, 3) + 1)]
    return [first, *larger, *(claim for row in rows for claim in _near(row))]


def _listed(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} %" for name, value in errors.items())


def _at_budget(rows: Rows, k: int) -> Claim:
    errors = {row["method"]: row[f"{k}B (%)"] for row in rows}
    best = min(errors, key=lambda name: errors[name])
    return Claim(f"FGE is better than both others at {k}B (one pool of {k} runs each)", best == "FGE", _listed(errors))


def _near(row: dict[str, Any]) -> list[Claim]:
    found = []
    for budget, (mark, whose) in product(("1B", "2B", "3B"), ((PAPER, "the paper's"), (CODE, "its public code's"))):
        ours, theirs = (row.get(f"{budget} (%){end}") for end in ("", mark))
        if ours is not None and theirs is not None:
            spread = row.get(f"+-{mark}") if budget == "1B" else None
            most, more = limit(theirs, spread), "half a point" if spread is None else "twice its spread"
            says = f"{row['method']} at {budget} is at most {most:.2f} %, {whose} {theirs:g} and {more}"
            found.append(Claim(says, ours <= most, f"{ours:.2f} %"))
    return found


def on_trace(trace: Trace, rows: Rows, seeds: int) -> list[Claim]:
    watched = dict(zip(trace.watched_at, trace.watched["test"]["error"], strict=True))
    low = statistics.mean(value for at, value in watched.items() if at in trace.collected)
    high = statistics.mean(value for at, value in watched.items() if at and at not in trace.collected)
    text = f"{100 * low:.2f} % where collected, {100 * high:.2f} % at other ends of epochs"
    found = [Claim("test error is lowest where the learning rate is", low < high, text)]
    errors = {
        name: [row["error of the ensemble (%)"] for row in rows if row["method"] == name] for name in ("FGE", "SSE")
    }
    for k in range(1, min(seeds, 2) + 1):
        fge, sse = (values[k * len(values) // seeds - 1] for values in errors.values())
        found.append(
            Claim(f"at {k}B FGE is below SSE (the first {k} of {seeds} runs)", fge < sse, f"{fge:.2f} and {sse:.2f} %")
        )
    return found


def on_points(found: CurveEnsemble, ends: float, three: float) -> list[Claim]:
    """The errors of the two ends and of three networks in percent."""
    kinds = ("none", "per point", "train loss", "inverse train loss")
    before, after, *by_loss = (100 * found.scores[name]["error"] for name in kinds)
    spread = [max(found.nll[name]) - min(found.nll[name]) for name in kinds]
    others = "temperatures that follow the train loss or its inverse"
    flatter = f"highest less lowest {spread[0]:.3g}, {spread[1]:.3g}; with {others} {spread[2]:.3g}, {spread[3]:.3g}"
    text = f"{before:.2f} to {after:.2f} %, {found.fitted_on}; with {others} {by_loss[0]:.2f}, {by_loss[1]:.2f} %"
    near = f"{before:.2f} before and {after:.2f} after scaling, {three:.2f} %"
    return [
        Claim(
            "the points of one curve together beat its two ends", before < ends, f"{before:.2f} against {ends:.2f} %"
        ),
        Claim("a temperature fitted for each point helps them", after < before, text),
        Claim("and flattens the test NLL along the curve", spread[1] < spread[0], flatter),
        Claim("after it they outperform three networks, which have as many weights", after < three, near),
    ]


def on_diversity(rows: Rows) -> list[Claim]:
    named = {row["networks"]: row for row in rows}
    near, far = (named[name]["disagreement (%)"] for name in ("FGE", "independent"))
    member, single = (named[name]["error of one (%)"] for name in ("FGE", "independent"))
    short, long = (named[name]["distance"] for name in ("FGE", "SSE"))
    kinds = [f"disagreement of two {of} (% of test)" for of in ("networks of one FGE run", "independent networks")]
    share = (1 - TWENTIETH) * figure(kinds[0]) / figure(kinds[1])
    accuracies = [figure(f"accuracy of a {of} (%)") for of in ("fully trained network", "single FGE member")]
    points = limit(accuracies[0] - accuracies[1])
    step = (1 + TWENTIETH) / figure("Euclidean distance between consecutive SSE members")
    step *= figure("Euclidean distance between consecutive FGE members")
    text = f"{near:.2f} and {far:.2f} % of the test set, {near / far:.2f}"
    much = f"networks of one FGE run disagree less than independent ones, but on at least {share:.2f} as much"
    worse = f"a network of FGE is a little worse than one trained to the end, by at most {points:.1f} points"
    return [
        Claim(much, share * far <= near < far, text),
        Claim(worse, single < member <= single + points, f"{member:.2f} and {single:.2f} %"),
        Claim(
            f"FGE takes much smaller steps than SSE, at most {step:.2f} as long",
            short <= step * long,
            f"{short:.1f} and {long:.1f}",
        ),
    ]


def on_pieces(rows: Rows, name: str) -> Claim:
    gains = [row[f"{name}, better member"] - row[f"{name}, best between"] for row in rows]
    lower, mean = sum(gain > 0 for gain in gains), statistics.mean(gains)
    says = f"between most consecutive members there are points with a lower {name} than either"
    return Claim(says, lower > len(gains) / 2, f"{lower} of {len(gains)}, by {mean:.3g} on average")
