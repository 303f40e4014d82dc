"""The entry on alignment: lines and curves between networks as they are and aligned, of different lengths."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import thalweg as tw

from ..reporting.result import Claim
from ..store.files import SCAN
from .curve_entries import NETWORKS, Outcome, keep
from .experiment import Experiment, Need, prepare

WAYS = ("", "weights", "activations")  # by what networks are aligned
POINTS = {True: 61, False: 31}  # along a curve, if the paper has the network, and if not
MEAN, HIGHEST, ABOVE = "mean test error (%)", "max test error (%)", "train loss above the ends"
DISTANCE = "distance of the ends"
LENGTHS = {"full": (10, 25, 100), "smoke": (1, 2)}  # epochs of curves
LONG = (10, 25, 50, 100, 200)  # and of those that are compared with the paper's own
FASTER = (2, 4)  # times the recipe's rate, for the curves of 25 epochs
Row = Mapping[str, float]
Key = tuple[str, int, int]  # alignment, epochs (0: the line), and times the recipe's rate
Measured = dict[Key, list[tw.Scan]]  # a scan for each pair


def curves_of(experiment: Experiment, ways: Iterable[str]) -> Iterator[Need]:
    """Alignment and epochs of the curves between two networks; the paper's own where it has one."""
    lengths = LONG if _in_paper(experiment) and experiment.scale.name == "full" else LENGTHS[experiment.scale.name]
    for by, epochs in product(ways, lengths):
        yield Need("bezier", 0, by, epochs)
    if _in_paper(experiment):
        yield Need("bezier", 0)
        short = LENGTHS[experiment.scale.name][1]
        yield from (Need("bezier", 0, "weights", short, times) for times in FASTER)


def of_all_pairs(experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
    """Of a network that the paper does not have, without aligned curves: see `aligned`."""
    ways = WAYS if _in_paper(experiment) else WAYS[:1]
    return [(pair, need) for pair in experiment.pairs(seeds) for need in (*NETWORKS, *curves_of(pair, ways))]


def aligned(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Means over pairs; a row for each alignment and number of epochs. Curves are aligned in both ways for a network
    that the paper has, else by what gives the lines with the lower mean test error.
    """
    pairs, paper = experiment.pairs(seeds), experiment.recipe.curve_epochs
    found: Measured = {(by, 0, 1): [_line(pair, by) for pair in pairs] for by in WAYS}
    better = min(WAYS[1:], key=lambda by: _means(map(qualities, found[by, 0, 1]))[MEAN])
    needs = [*curves_of(experiment, WAYS if _in_paper(experiment) else ("", better))]
    prepare([(pair, need) for pair in pairs for need in needs if not _scanned(pair, pair.place(need).name)])
    found |= {
        (need.by, need.epochs or paper, need.times): [_measured(pair, pair.place(need).name, need) for pair in pairs]
        for need in needs
    }
    for (by, epochs, times), scans in found.items():
        name = f"{by or 'plain'}-{epochs}{f'-x{times}' if times > 1 else ''}"
        keep({f"{name}-{k}": scan for k, scan in enumerate(scans)}, out)
    rows = [
        {
            "aligned by": by or "-",
            "epochs": epochs or "line",
            "lr": times * experiment.recipe.curve_lr if epochs else None,
            **_means(map(qualities, scans)),
        }
        for (by, epochs, times), scans in sorted(found.items(), key=lambda item: (WAYS.index(item[0][0]), *item[0][1:]))
    ]
    return rows, _claims(found, paper if experiment.recipe.in_curves else None)


def _line(pair: Experiment, by: str) -> tw.Scan:
    return _measured(pair, f"line-{by or 'plain'}", by)


def _measured(pair: Experiment, name: str, what: Need | str) -> tw.Scan:
    """Along a curve, or the line between networks aligned in some way; a finished scan needs neither of them."""
    if _scanned(pair, name):
        return tw.Scan.load(pair.results / f"scan-{name}")
    target = pair.obtain(what) if isinstance(what, Need) else tw.Segment(*pair.ends(what))
    return pair.scan(name, target, points=min(POINTS[_in_paper(pair)], pair.scale.points))


def _scanned(pair: Experiment, name: str) -> bool:
    return (pair.results / f"scan-{name}" / SCAN).is_file()


def _in_paper(experiment: Experiment) -> bool:
    return experiment.recipe.in_curves is not None


def qualities(scan: tw.Scan) -> dict[str, float]:
    """What a curve is judged by."""
    errors, losses = 100 * scan.values["test"]["error"], scan.values["train"]["loss"]
    assert scan.length is not None
    assert scan.length_ratio is not None
    return {
        MEAN: float(errors.mean()),
        HIGHEST: float(errors.max()),
        "test error at t = 1/2 (%)": float(errors[len(errors) // 2]),
        ABOVE: max(0.0, float(losses.max() - max(losses[0], losses[-1]))),
        "length ratio": scan.length_ratio,
        DISTANCE: float(scan.length[-1]) / scan.length_ratio,
    }


def _means(each: Iterable[Row]) -> dict[str, float]:
    found = list(each)
    return {key: statistics.mean(own[key] for own in found) for key in found[0]}


def _claims(found: Measured, paper: int | None) -> list[Claim]:
    """On means over pairs: against the paper's curve where there is one, else against the longest plain one."""
    table = {key: _means(map(qualities, scans)) for key, scans in found.items()}
    lengths = sorted({epochs for by, epochs, _ in found if by and epochs})
    few, many = lengths[1], paper or lengths[-1]
    before, long = table["", 0, 1], table["", many, 1]
    whose = f"the paper's of {paper}" if paper else f"a plain one of {many}"
    claims = []
    for by in WAYS[1:]:
        after = table[by, 0, 1]
        claims += [
            Claim(
                f"aligned by {by}, networks are nearer to each other",
                after[DISTANCE] < before[DISTANCE],
                f"{before[DISTANCE]:.1f} before, {after[DISTANCE]:.1f} after",
            ),
            Claim(
                f"the straight line between networks aligned by {by} has a lower mean test error",
                after[MEAN] < before[MEAN],
                f"{after[MEAN]:.2f} against {before[MEAN]:.2f} %, train loss above the ends {after[ABOVE]:.3g} against "
                f"{before[ABOVE]:.3g}",
            ),
        ]
        if (by, few, 1) not in table:
            continue
        plain = [(n, table[by, n, 1], table["", n, 1]) for n in lengths]
        claims += [
            *_against(table[by, few, 1], long, f"a curve of {few} epochs between networks aligned by {by}", whose),
            Claim(
                f"curves between networks aligned by {by} have a lower mean and highest test error than plain ones of "
                "as many epochs",
                all(_lower(own, other) for _, own, other in plain),
                "; ".join(f"{n} epochs: {_both(own)} against {_both(other)}" for n, own, other in plain),
            ),
        ]
    for by, epochs, times in found:
        if times > 1:
            what = f"at {times} times the rate a curve of {epochs} epochs between networks aligned by {by}"
            claims += _against(table[by, epochs, times], long, what, whose)
    return claims


def _against(short: Row, long: Row, what: str, whose: str) -> list[Claim]:
    return [
        Claim(
            f"{what} has a lower mean and highest test error than {whose}",
            _lower(short, long),
            f"{_both(short)} against {_both(long)}",
        ),
        Claim("and no train loss above its ends", short[ABOVE] == 0, f"{short[ABOVE]:.3g}; {long[ABOVE]:.3g}"),
    ]


def _lower(one: Row, two: Row) -> bool:
    return one[MEAN] < two[MEAN] and one[HIGHEST] < two[HIGHEST]


def _both(row: Row) -> str:
    return f"{row[MEAN]:.2f} and {row[HIGHEST]:.2f} %"
