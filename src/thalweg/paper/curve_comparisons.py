"""The entries that compare curves: between networks of several widths, with both losses, and between networks as they
are and aligned.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import thalweg as tw

from ..reporting.result import Claim
from ..store.files import SCAN
from ..store.runs import LOG, Run
from .claims import TWENTIETH
from .curve_entries import NETWORKS, Outcome, highest, keep
from .experiment import Experiment, Measurements, Need

OVER_T, OVER_LENGTH = Need("polychain", 0), Need("polychain", 0, loss="arclength")
LOSS_OVER_LENGTH, UNSTEADY = "train loss over length", "change per epoch"
WAYS = ("", "weights", "activations")  # by what networks are aligned
POINTS = {True: 61, False: 31}  # along a curve, if the paper has the network, and if not
MEAN, HIGHEST, ABOVE = "mean test error (%)", "max test error (%)", "train loss above the ends"
DISTANCE = "distance of the ends"
LENGTHS = {"full": (10, 25, 100), "smoke": (1, 2)}  # epochs of curves
LONG = (10, 25, 50, 100, 200)  # and of those that are compared with the paper's own
FASTER = (2, 4)  # times the recipe's rate, for the curves of 25 epochs
Row = Mapping[str, float]
# alignment, epochs (0: the line) and times the recipe's rate -> a scan for each pair
Measured = dict[tuple[str, int, int], list[tw.Scan]]


def of_all_widths(experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
    return [
        (pair, need)
        for breadth in experiment.scale.widths
        for pair in experiment.with_width(breadth).pairs(seeds)
        for need in (*NETWORKS, Need("bezier", 0))
    ]


def scanned_widths(experiment: Experiment, seeds: int) -> Measurements:
    pairs = [pair for breadth in experiment.scale.widths for pair in experiment.with_width(breadth).pairs(seeds)]
    return [item for pair in pairs for item in (*pair.to_scan("bezier"), *pair.to_scan("single", points=2))]


def width(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Means over pairs of networks; a row for each width."""
    rows: list[dict[str, Any]] = []
    for breadth in experiment.scale.widths:
        pairs = experiment.with_width(breadth).pairs(seeds)
        bent = experiment.interleave([partial(pair.scan, "bezier", pair.curve("bezier")) for pair in pairs])
        ends = experiment.interleave([pair.scan_ends for pair in pairs])
        ratios = [scan.length_ratio for scan in bent if scan.length_ratio]
        rows.append(
            {
                "K": breadth,
                "pairs": len(pairs),
                "worst train loss on the curve": statistics.mean(map(highest, bent)),
                "train loss of the ends": statistics.mean(map(highest, ends)),
                "length ratio": statistics.mean(ratios),
                "its spread": statistics.stdev(ratios) if len(ratios) > 1 else None,
            }
        )
        for name, scans in (("curve", bent), ("ends", ends)):
            keep({f"{name}-{breadth:g}-{k}": scan for k, scan in enumerate(scans)}, out)
    rises = [max(0.0, row["worst train loss on the curve"] - row["train loss of the ends"]) for row in rows]
    found = [
        Claim(
            "wider networks are joined by straighter curves",
            all(after["length ratio"] < before["length ratio"] for before, after in pairwise(rows)),
            "length ratio " + ", ".join(f"{row['length ratio']:.3f} at K = {row['K']:g}" for row in rows),
        ),
        Claim(
            "on which the train loss rises less above the worse end",
            rises[-1] < rises[0],
            f"by {rises[0]:.3g} at K = {rows[0]['K']:g} and {rises[-1]:.3g} at K = {rows[-1]['K']:g}",
        ),
    ]
    return rows, found if any(rises) else found[:1]  # where it rises at no width there is nothing to compare


def chain_losses(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Both chains are between the same networks, and see the data in the same order."""
    rows = [
        _row(experiment, out, "loss (2), over t", "polychain", OVER_T),
        _row(experiment, out, "loss (1), over length", "polychain-arclength", OVER_LENGTH),
    ]
    return rows, claims_of_losses(*rows)


def _row(experiment: Experiment, out: Path, name: str, stem: str, need: Need) -> dict[str, Any]:
    chain = experiment.obtain(need)
    scan = keep({stem: experiment.scan(stem, chain)}, out)[stem]
    loss = scan.summary()["train"]["loss"]
    pieces = [one.distance(two) for one, two in pairwise(chain.points)]
    return {
        "trained with": name,
        LOSS_OVER_LENGTH: loss["int"],
        "over t": loss["mean"],
        "highest": loss["max"],
        "test error max (%)": 100 * highest(scan, "test", "error"),
        "length ratio": scan.length_ratio,
        "longer piece / shorter": max(pieces) / min(pieces),
        UNSTEADY: unsteadiness([line["loss"] for line in Run(experiment.folder_of(need)).lines(LOG)]),
    }


def unsteadiness(losses: list[float]) -> float:
    """How much the loss changes from one epoch to the next, in the second quarter of a training: after its beginning,
    and before its rate falls.

    >>> unsteadiness([9.0, 5.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    1.5
    """
    second_quarter = losses[len(losses) // 4 : len(losses) // 2 + 1]
    return statistics.mean(abs(after - before) for before, after in pairwise(second_quarter))


def claims_of_losses(over_t: dict[str, Any], over_length: dict[str, Any]) -> list[Claim]:
    steady, other = over_t[UNSTEADY], over_length[UNSTEADY]
    near, exact = over_t[LOSS_OVER_LENGTH], over_length[LOSS_OVER_LENGTH]
    return [
        Claim(
            "for chains loss (2) is more stable: in the second quarter of the training it changes less from epoch to "
            "epoch",
            steady < other,
            f"by {steady:.3g} on average, loss (1) by {other:.3g}",
        ),
        Claim(
            "and a good approximation to loss (1): the mean train loss over the length of its chain is at most a "
            "twentieth above that of a chain trained with loss (1)",
            near <= (1 + TWENTIETH) * exact,
            f"{near:.3g} and {exact:.3g}",
        ),
    ]


def curves_of(experiment: Experiment, ways: Iterable[str]) -> Iterator[Need]:
    """Alignment and epochs of the curves between two networks; the paper's own where it has one."""
    lengths = LONG if _in_paper(experiment) and experiment.scale.name == "full" else LENGTHS[experiment.scale.name]
    for by, epochs in product(ways, lengths):
        yield Need("bezier", 0, by, epochs)
    if _in_paper(experiment):
        yield Need("bezier", 0)
        short = LENGTHS[experiment.scale.name][1]
        yield from (Need("bezier", 0, "weights", short, factor) for factor in FASTER)


def of_all_pairs(experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
    """Of a network that the paper does not have, only those aligned curves that exist: see `aligned`."""
    return [
        (pair, need)
        for pair in experiment.pairs(seeds)
        for need in (*NETWORKS, *curves_of(pair, WAYS))
        if _in_paper(pair) or not need.aligned_by or pair.finished(need)
    ]


def scanned_pairs(experiment: Experiment, seeds: int) -> Measurements:
    """Lines, and the curves of `of_all_pairs`."""
    names = {pair: [f"line-{by or 'plain'}" for by in WAYS] for pair in experiment.pairs(seeds)}
    for pair, need in of_all_pairs(experiment, seeds):
        names[pair] += [pair.folder_of(need).name] if need not in NETWORKS else []
    return [item for pair, own in names.items() for item in pair.to_scan(*own, points=_points(pair))]


def aligned(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Means over pairs; a row for each alignment and number of epochs. Curves are aligned in both ways for a network
    that the paper has, else by what gives the lines with the lower mean test error.
    """
    pairs, paper = experiment.pairs(seeds), experiment.recipe.curve_epochs
    measured = _measured(pairs, [*WAYS, *curves_of(experiment, WAYS if _in_paper(experiment) else ("",))])
    if not _in_paper(experiment):
        better = min(WAYS[1:], key=lambda by: _means(map(qualities, measured[by]))[MEAN])
        measured |= _measured(pairs, [*curves_of(experiment, (better,))])
    found: Measured = {
        (what, 0, 1) if isinstance(what, str) else (what.aligned_by, what.epochs or paper, what.lr_factor): scans
        for what, scans in measured.items()
    }
    for (by, epochs, factor), scans in found.items():
        name = f"{by or 'plain'}-{epochs}{f'-x{factor}' if factor > 1 else ''}"
        keep({f"{name}-{k}": scan for k, scan in enumerate(scans)}, out)
    rows = [
        {
            "aligned by": by or "-",
            "epochs": epochs or "line",
            "lr": factor * experiment.recipe.curve_lr if epochs else None,
            **_means(map(qualities, scans)),
        }
        for (by, epochs, factor), scans in sorted(
            found.items(), key=lambda item: (WAYS.index(item[0][0]), *item[0][1:])
        )
    ]
    return rows, [*_aligned_claims(found, paper if experiment.recipe.in_curves else None)]


def _measured(pairs: Sequence[Experiment], whats: Iterable[Need | str]) -> dict[Need | str, list[tw.Scan]]:
    """Scans of curves, or of the lines between networks aligned in some way, for each pair. The longest are trained
    first, so that the others are measured meanwhile.
    """
    order = sorted(product(whats, pairs), key=lambda item: _epochs(*item), reverse=True)
    found: dict[Need | str, dict[Experiment, tw.Scan]] = {what: {} for what, _ in order}
    for (what, pair), scan in zip(order, pairs[0].interleave([partial(_scan, *item) for item in order]), strict=True):
        found[what][pair] = scan
    return {what: [scans[pair] for pair in pairs] for what, scans in found.items()}


def _epochs(what: Need | str, pair: Experiment) -> int:
    return 0 if isinstance(what, str) else pair.cost(what)[0]


def _scan(what: Need | str, pair: Experiment) -> tw.Scan:
    """A finished scan needs neither the curve nor its ends."""
    name = f"line-{what or 'plain'}" if isinstance(what, str) else pair.folder_of(what).name
    if (pair.results / f"scan-{name}" / SCAN).is_file():
        return tw.Scan.load(pair.results / f"scan-{name}")
    target = pair.obtain(what) if isinstance(what, Need) else tw.Segment(*pair.ends(what))
    return pair.scan(name, target, points=_points(pair))


def _points(pair: Experiment) -> int:
    return min(POINTS[_in_paper(pair)], pair.scale.points)


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


def _aligned_claims(found: Measured, paper: int | None) -> Iterator[Claim]:
    """On means over pairs: against the paper's curve where there is one, else against the longest plain one."""
    table = {key: _means(map(qualities, scans)) for key, scans in found.items()}
    lengths = sorted({epochs for by, epochs, _ in found if by and epochs})
    few, many = lengths[1], paper or lengths[-1]
    before, long = table["", 0, 1], table["", many, 1]
    whose = f"the paper's of {paper}" if paper else f"a plain one of {many}"
    for by in WAYS[1:]:
        after = table[by, 0, 1]
        yield Claim(
            f"aligned by {by}, networks are nearer to each other",
            after[DISTANCE] < before[DISTANCE],
            f"{before[DISTANCE]:.1f} before, {after[DISTANCE]:.1f} after",
        )
        yield Claim(
            f"the straight line between networks aligned by {by} has a lower mean test error",
            after[MEAN] < before[MEAN],
            f"{after[MEAN]:.2f} against {before[MEAN]:.2f} %, train loss above the ends {after[ABOVE]:.3g} against "
            f"{before[ABOVE]:.3g}",
        )
        if (by, few, 1) in table:
            plain = [(n, table[by, n, 1], table["", n, 1]) for n in lengths]
            what = f"a curve of {few} epochs between networks aligned by {by}"
            yield from _against(table[by, few, 1], long, what, whose)
            yield Claim(
                f"curves between networks aligned by {by} have a lower mean and highest test error than plain ones of "
                "as many epochs",
                all(_lower(own, other) for _, own, other in plain),
                "; ".join(f"{n} epochs: {_both(own)} against {_both(other)}" for n, own, other in plain),
            )
    for by, epochs, factor in found:
        if factor > 1:
            what = f"at {factor} times the rate a curve of {epochs} epochs between networks aligned by {by}"
            yield from _against(table[by, epochs, factor], long, what, whose)


def _against(short: Row, long: Row, what: str, whose: str) -> Iterator[Claim]:
    yield Claim(
        f"{what} has a lower mean and highest test error than {whose}",
        _lower(short, long),
        f"{_both(short)} against {_both(long)}",
    )
    yield Claim("and no train loss above its ends", short[ABOVE] == 0, f"{short[ABOVE]:.3g}; {long[ABOVE]:.3g}")


def _lower(one: Row, two: Row) -> bool:
    return one[MEAN] < two[MEAN] and one[HIGHEST] < two[HIGHEST]


def _both(row: Row) -> str:
    return f"{row[MEAN]:.2f} and {row[HIGHEST]:.2f} %"
