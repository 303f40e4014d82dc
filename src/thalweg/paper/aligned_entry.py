"""The entry on alignment: lines and curves between networks as they are and aligned, of different lengths."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import thalweg as tw

from ..reporting.result import Claim
from ..store.files import SCAN
from .curve_entries import NETWORKS, Outcome, keep
from .experiment import Experiment, Need

WAYS = ("", "weights", "activations")  # by what networks are aligned
POINTS = 61
LENGTHS = {"full": (10, 25, 100), "smoke": (1, 2)}  # epochs of curves
LONG = (10, 25, 50, 100, 200)  # and of those that are compared with the paper's own
Measured = dict[tuple[str, int], list[tw.Scan]]  # alignment and epochs (0: the line) -> a scan for each pair


def pairs_of(experiment: Experiment, seeds: int) -> list[Experiment]:
    """Networks 0 and 1, 2 and 3, and so on, or those listed, two at a time; each pair with its own curves."""
    listed = experiment.seeds or range(2 * seeds)
    return [experiment.between(*pair) for pair in zip(listed[::2], listed[1::2], strict=False)]


def curves_of(experiment: Experiment) -> Iterator[Need]:
    """Alignment and epochs of the curves between two networks; the paper's own where it has one."""
    in_paper = experiment.recipe.in_curves is not None and experiment.scale.name == "full"
    for by, epochs in product(WAYS, LONG if in_paper else LENGTHS[experiment.scale.name]):
        yield Need("bezier", 0, by, epochs)
    if experiment.recipe.in_curves is not None:
        yield Need("bezier", 0)


def of_all_pairs(experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
    pairs = pairs_of(experiment, seeds)
    return [(pair, need) for pair in pairs for need in (*NETWORKS, *curves_of(pair))]


def aligned(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Means over pairs; a row for each alignment and number of epochs."""
    pairs, paper = pairs_of(experiment, seeds), experiment.recipe.curve_epochs
    found: Measured = {(by, 0): [_line(pair, by) for pair in pairs] for by in WAYS}
    found |= {
        (need.by, need.epochs or paper): [_measured(pair, pair.place(need).name, need) for pair in pairs]
        for need in curves_of(experiment)
    }
    for (by, epochs), scans in found.items():
        keep({f"{by or 'plain'}-{epochs}-{k}": scan for k, scan in enumerate(scans)}, out)
    rows = [
        {"aligned by": by or "-", "epochs": epochs or "line", **_means(map(qualities, scans))}
        for (by, epochs), scans in sorted(found.items(), key=lambda item: (WAYS.index(item[0][0]), item[0][1]))
    ]
    return rows, _claims(found, paper if experiment.recipe.in_curves else None)


def _line(pair: Experiment, by: str) -> tw.Scan:
    return _measured(pair, f"line-{by or 'plain'}", by)


def _measured(pair: Experiment, name: str, what: Need | str) -> tw.Scan:
    """Along a curve, or the line between networks aligned in some way; a finished scan needs neither of them."""
    folder = pair.results / f"scan-{name}"
    if (folder / SCAN).is_file():
        return tw.Scan.load(folder)
    target = pair.fulfil(what) if isinstance(what, Need) else tw.Segment(*pair.ends(what))
    return pair.scan(name, target, points=min(POINTS, pair.scale.points))


def qualities(scan: tw.Scan) -> dict[str, float]:
    """What a curve is judged by."""
    errors, losses = 100 * scan.values["test"]["error"], scan.values["train"]["loss"]
    assert scan.length is not None
    assert scan.length_ratio is not None
    return {
        "mean test error (%)": float(errors.mean()),
        "max test error (%)": float(errors.max()),
        "test error at t = 1/2 (%)": float(errors[len(errors) // 2]),
        "train loss above the ends": max(0.0, float(losses.max() - max(losses[0], losses[-1]))),
        "length ratio": scan.length_ratio,
        "distance of the ends": float(scan.length[-1]) / scan.length_ratio,
    }


def _means(each: Iterable[dict[str, float]]) -> dict[str, float]:
    found = list(each)
    return {key: statistics.mean(own[key] for own in found) for key in found[0]}


def _claims(found: Measured, paper: int | None) -> list[Claim]:
    """On means over pairs: against the paper's curve where there is one, else against the longest plain one."""
    table = {key: _means(map(qualities, scans)) for key, scans in found.items()}
    lengths = sorted({epochs for by, epochs in found if by and epochs})
    few, many, other = lengths[1], paper or lengths[-1], "the paper's" if paper else "a plain one"
    ends = statistics.mean(100 * max(scan.values["test"]["error"][[0, -1]]) for scan in found["", 0])
    claims = []
    for by in WAYS[1:]:
        before, after, short, long = table["", 0], table[by, 0], table[by, few], table["", many]
        errors = ("mean test error (%)", "max test error (%)")
        better = [n for n in lengths if all(table[by, n][key] < table["", n][key] for key in errors)]
        claims += [
            Claim(
                f"aligned by {by}, networks are nearer to each other",
                after["distance of the ends"] < before["distance of the ends"],
                f"{before['distance of the ends']:.1f} before, {after['distance of the ends']:.1f} after",
            ),
            Claim(
                f"the straight line between networks aligned by {by} has a lower mean test error",
                after[errors[0]] < before[errors[0]],
                f"{after[errors[0]]:.2f} against {before[errors[0]]:.2f} %, train loss above the ends "
                f"{after['train loss above the ends']:.3g} against {before['train loss above the ends']:.3g}",
            ),
            Claim(
                f"a curve of {few} epochs between them has a lower mean and highest test error than {other} of {many}",
                all(short[key] < long[key] for key in errors),
                f"{_both(short)} against {_both(long)}; the worse end {ends:.2f}",
            ),
            Claim(
                "and no train loss above its ends",
                short["train loss above the ends"] == 0,
                f"{short['train loss above the ends']:.3g}; on the other {long['train loss above the ends']:.3g}",
            ),
            Claim(
                f"curves between networks aligned by {by} have a lower mean and highest test error than plain ones of "
                "as many epochs",
                better == lengths,
                "; ".join(f"{n} epochs: {_both(table[by, n])} against {_both(table['', n])}" for n in lengths),
            ),
        ]
    return claims


def _both(row: Mapping[str, float]) -> str:
    return f"{row['mean test error (%)']:.2f} and {row['max test error (%)']:.2f} %"
