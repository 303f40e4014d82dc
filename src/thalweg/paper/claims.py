"""Whether the paper's sentences on ensembles hold on the rows that were found."""

import statistics
from collections.abc import Sequence
from typing import Any

from ..evaluation.curve_ensemble import CurveEnsemble
from ..evaluation.results import Trace
from ..reporting.result import Claim

Rows = Sequence[dict[str, Any]]


def on_budgets(rows: Rows, seeds: int) -> list[Claim]:
    """The order of the methods at each budget, and how far each is from the paper's error."""
    means = {row["method"]: row["1B (%)"] for row in rows}
    order = means["FGE"] < means["SSE"] < means["Ind"]
    first = Claim(f"FGE is better than SSE, and SSE than one network, at 1B (means of {seeds})", order, _listed(means))
    larger = [_at_budget(rows, k) for k in range(2, min(seeds, 3) + 1)]
    return [first, *larger, *(claim for row in rows for claim in _near(row, 0.4 if seeds > 2 else 0.7))]


def _listed(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} %" for name, value in errors.items())


def _at_budget(rows: Rows, k: int) -> Claim:
    errors = {row["method"]: row[f"{k}B (%)"] for row in rows}
    best = min(errors, key=lambda name: errors[name])
    return Claim(f"FGE is better than both others at {k}B (one pool of {k} runs each)", best == "FGE", _listed(errors))


def _near(row: dict[str, Any], margin: float) -> list[Claim]:
    """What pools several runs is one run of its kind."""
    found = []
    for key, points in (("1B (%)", margin), ("2B (%)", 0.7), ("3B (%)", 0.7)):
        if row.get(f"{key} (paper)") is not None and key in row:
            above = row[key] - row[f"{key} (paper)"]
            says = f"{row['method']} at {key[:2]} is at most {points} points above the paper's"
            found.append(Claim(says, above <= points, f"{above:+.2f}"))
    return found


def on_trace(trace: Trace, rows: Rows, seeds: int) -> list[Claim]:
    watched = dict(zip(trace.watched_at, trace.watched["test"]["error"], strict=True))
    low = statistics.mean(value for at, value in watched.items() if at in trace.collected)
    high = statistics.mean(value for at, value in watched.items() if at and at not in trace.collected)
    text = f"{100 * low:.2f} % where collected, {100 * high:.2f} % at other ends of epochs"
    found = [Claim("test error is lowest where the learning rate is", low < high, text)]
    errors = {name: [row["error of the ensemble (%)"] for row in rows if row["method"] == name] for name in ("FGE", "SSE")}
    for k in range(1, min(seeds, 2) + 1):
        fge, sse = (values[k * len(values) // seeds - 1] for values in errors.values())
        found.append(Claim(f"at {k}B FGE is below SSE (the first {k} of {seeds} runs)", fge < sse, f"{fge:.2f} and {sse:.2f} %"))
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
        Claim("the points of one curve together beat its two ends", before < ends, f"{before:.2f} against {ends:.2f} %"),
        Claim("a temperature fitted for each point helps them", after < before, text),
        Claim("and flattens the test NLL along the curve", spread[1] < spread[0], flatter),
        Claim("they come within half a point of three networks, which have as many weights", after < three + 0.5, near),
    ]


def on_diversity(rows: Rows) -> list[Claim]:
    named = {row["networks"]: row for row in rows}
    near, far = (named[name]["disagreement (%)"] for name in ("FGE", "independent"))
    member, single = (named[name]["error of one (%)"] for name in ("FGE", "independent"))
    short, long = (named[name]["distance"] for name in ("FGE", "SSE"))
    text = f"{near:.2f} and {far:.2f} % of the test set"
    worse = "a network of FGE is a little worse than one trained to the end, by less than two points"
    return [
        Claim("networks of one FGE run disagree less than independent ones, but much", 0.2 * far < near < far, text),
        Claim(worse, single < member < single + 2, f"{member:.2f} and {single:.2f} %"),
        Claim("FGE takes much smaller steps than SSE", short < 0.5 * long, f"{short:.1f} and {long:.1f}"),
    ]


def on_pieces(rows: Rows, name: str) -> Claim:
    gains = [row[f"{name}, better member"] - row[f"{name}, best between"] for row in rows]
    lower, mean = sum(gain > 0 for gain in gains), statistics.mean(gains)
    says = f"between most consecutive members there are points with a lower {name} than either"
    return Claim(says, lower > len(gains) / 2, f"{lower} of {len(gains)}, by {mean:.3g} on average")
