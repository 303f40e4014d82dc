"""The numbers of the paper and of its reference code, and whether its sentences hold on the rows that were found.

A bound is the paper's own value, and beyond it twice the spread that it prints there; where it prints none, half a
point of an error or a twentieth of anything else. Where its public code gives a number too, that has a
verdict of its own.
"""

import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files as resources
from itertools import product
from typing import Any

from ..reporting.result import CODE, PAPER, Claim
from ..results import CurveEnsemble, Trace

HALF, TWENTIETH = 0.5, 0.05
DIVERSITY = {  # what the paper calls the disagreement, the distance, and the accuracy of one, where it has them
    "independent": (
        "disagreement of two independent networks (% of test)",
        "",
        "accuracy of a fully trained network (%)",
    ),
    "FGE": (
        "disagreement of two networks of one FGE run (% of test)",
        "Euclidean distance between consecutive FGE members",
        "accuracy of a single FGE member (%)",
    ),
    "SSE": ("", "Euclidean distance between consecutive SSE members", ""),
}
Rows = Sequence[dict[str, Any]]


@cache
def published(table: str) -> list[dict[str, Any]]:
    """One of the paper's tables: "curves", "ensembles", "ptb", "figures"; numbers as numbers, absent ones as None.

    >>> next(row["error_1B"] for row in published("ensembles") if row["method"] == "FGE")
    25.7
    """
    content = (resources(__package__) / "numbers" / f"table_{table}.csv").read_text()
    return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(content.splitlines())]


def paper_number(what: str) -> float:
    """One of the paper's other numbers.

    >>> paper_number("distance between those ends")
    50.0
    """
    return row_of("figures", what=what)["value"]


def row_of(table: str, **wanted: Any) -> Mapping[str, Any]:
    """The row of one of the paper's tables that agrees with all of `wanted`; nothing where it has none."""
    return next((row for row in published(table) if wanted.items() <= row.items()), {})


def _number(value: str) -> Any:
    try:
        return float(value) if value else None
    except ValueError:
        return value


def with_published(key: str, ours: Any, table: str, name: str, **wanted: Any) -> dict[str, Any]:
    """A cell: our value, and those of the paper and of its reference code under `name` in their rows of a table.

    >>> with_published("1B", 26.0, "ensembles", "error_1B", dataset="CIFAR-100", model="VGG-16", method="FGE")
    {'1B': 26.0, '1B (paper)': 25.7, '1B [code]': 25.4}
    """
    rows = {PAPER: row_of(table, **wanted), CODE: row_of(f"reference_{table}", **wanted)}
    return {key: ours, **{key + mark: row[name] for mark, row in rows.items() if row.get(name) is not None}}


def quoted(key: str, ours: Any, what: str | None, same: bool = True) -> dict[str, Any]:
    """A cell: our value and one of the paper's other numbers; None for that where there is none, or not of the same
    network.
    """
    return {key: ours, key + PAPER: paper_number(what) if what and same else None}


def limit(error: float, spread: float | None = None) -> float:
    """The bound of an error in percent.

    >>> limit(27.4, 0.1), limit(25.28)
    (27.6, 25.78)
    """
    return round(error + (2 * spread if spread is not None else HALF), 9)


def on_budgets(rows: Rows, seeds: int) -> Iterator[Claim]:
    """The order of the methods at each budget, and how far each is from the paper's error."""
    yield from (_at_budget(rows, k, seeds) for k in range(1, min(seeds, 3) + 1))
    for row in rows:
        yield from _near(row)


def _at_budget(rows: Rows, k: int, seeds: int) -> Claim:
    errors = {row["method"]: row[f"{k}B (%)"] for row in rows}
    fge, sse, alone = (errors[name] for name in ("FGE", "SSE", "Ind"))
    text = ", ".join(f"{name} {value:.2f} %" for name, value in errors.items())
    if k > 1:
        return Claim(f"FGE is better than both others at {k}B (one pool of {k} runs each)", fge < min(sse, alone), text)
    return Claim(f"FGE is better than SSE, and SSE than one network, at 1B (means of {seeds})", fge < sse < alone, text)


def _near(row: dict[str, Any]) -> Iterator[Claim]:
    for budget, (mark, whose) in product(("1B", "2B", "3B"), ((PAPER, "the paper's"), (CODE, "its public code's"))):
        ours, theirs = (row.get(f"{budget} (%){end}") for end in ("", mark))
        if ours is not None and theirs is not None:
            spread = row.get(f"+-{mark}") if budget == "1B" else None
            most, more = limit(theirs, spread), "half a point" if spread is None else "twice its spread"
            yield Claim(
                f"{row['method']} at {budget} is at most {most:.2f} %, {whose} {theirs:g} and {more}",
                ours <= most,
                f"{ours:.2f} %",
            )


def on_trace(trace: Trace, rows: Rows, seeds: int) -> Iterator[Claim]:
    watched = dict(zip(trace.watched_at, trace.watched["test"]["error"], strict=True))
    low = statistics.mean(value for at, value in watched.items() if at in trace.collected)
    high = statistics.mean(value for at, value in watched.items() if at and at not in trace.collected)
    yield Claim(
        "test error is lowest where the learning rate is",
        low < high,
        f"{100 * low:.2f} % where collected, {100 * high:.2f} % at other ends of epochs",
    )
    errors = [[row["error of the ensemble (%)"] for row in rows if row["method"] == name] for name in ("FGE", "SSE")]
    for k in range(1, min(seeds, 2) + 1):
        fge, sse = (values[k * len(values) // seeds - 1] for values in errors)
        yield Claim(
            f"at {k}B FGE is below SSE (the first {k} of {seeds} runs)", fge < sse, f"{fge:.2f} and {sse:.2f} %"
        )


def _correlation(one: Sequence[float], two: Sequence[float]) -> float:
    return statistics.correlation(one, two) if min(len({*one}), len({*two})) > 1 else 0.0


def on_points(found: CurveEnsemble, ends: float, three: float) -> list[Claim]:
    """The errors of the two ends and of three networks in percent."""
    kinds = ("none", "per point", "train loss", "inverse train loss")
    before, after, *by_loss = (100 * found.scores[name]["error"] for name in kinds)
    spread = [max(found.nll[name]) - min(found.nll[name]) for name in kinds]
    fitted = found.temperatures["per point"]
    follows, plainly = (_correlation(fitted, losses) for losses in (found.train_loss, found.train_data_loss))
    papers, plain = by_loss[0], 100 * found.scores["train data loss"]["error"]
    others = "temperatures that follow the train loss or its inverse"
    return [
        Claim(
            "the points of one curve together beat its two ends", before < ends, f"{before:.2f} against {ends:.2f} %"
        ),
        Claim(
            "a temperature fitted for each point helps them",
            after < before,
            f"{before:.2f} to {after:.2f} %, {found.fitted_on}; with {others} {by_loss[0]:.2f}, {by_loss[1]:.2f} %",
        ),
        Claim(
            "and flattens the test NLL along the curve",
            spread[1] < spread[0],
            f"highest less lowest {spread[0]:.3g}, {spread[1]:.3g}; with {others} {spread[2]:.3g}, {spread[3]:.3g}",
        ),
        Claim(
            "the temperatures fitted for each point follow the train loss, l2-regularised as in the paper",
            follows > 0,
            f"correlation {follows:+.2f}; {plainly:+.2f} with the loss without weight decay",
        ),
        Claim(
            "after it they outperform three networks, which have as many weights",
            after < three,
            f"{before:.2f} before and {after:.2f} after scaling, {three:.2f} %",
        ),
        Claim(
            "the paper's temperature, proportional to the train loss with its l2 penalty, helps them too",
            papers < before,
            f"{before:.2f} to {papers:.2f} %; {plain:.2f} % with one proportional to the loss without it",
        ),
        Claim("and with it they are better than the three networks", papers < three, f"{papers:.2f}, {three:.2f} %"),
    ]


def on_diversity(rows: Rows) -> list[Claim]:
    named = {row["networks"]: row for row in rows}
    near, far = (named[name]["disagreement (%)"] for name in ("FGE", "independent"))
    member, single = (named[name]["error of one (%)"] for name in ("FGE", "independent"))
    short, long = (named[name]["distance"] for name in ("FGE", "SSE"))
    disagreement, distance, accuracy = (
        {kind: paper_number(names[k]) for kind, names in DIVERSITY.items() if names[k]} for k in range(3)
    )
    share = (1 - TWENTIETH) * disagreement["FGE"] / disagreement["independent"]
    points = limit(accuracy["independent"] - accuracy["FGE"])
    step = (1 + TWENTIETH) / distance["SSE"] * distance["FGE"]
    return [
        Claim(
            f"networks of one FGE run disagree less than independent ones, but on at least {share:.2f} as much",
            share * far <= near < far,
            f"{near:.2f} and {far:.2f} % of the test set, {near / far:.2f}",
        ),
        Claim(
            f"a network of FGE is a little worse than one trained to the end, by at most {points:.1f} points",
            single < member <= single + points,
            f"{member:.2f} and {single:.2f} %",
        ),
        Claim(
            f"FGE takes much smaller steps than SSE, at most {step:.2f} as long",
            short <= step * long,
            f"{short:.1f} and {long:.1f}",
        ),
    ]


def on_pieces(rows: Rows, name: str) -> Claim:
    gains = [row[f"{name}, better member"] - row[f"{name}, best between"] for row in rows]
    lower = sum(gain > 0 for gain in gains)
    return Claim(
        f"between most consecutive members there are points with a lower {name} than either",
        lower > len(gains) / 2,
        f"{lower} of {len(gains)}, by {statistics.mean(gains):.3g} on average",
    )
