"""The entry on width: worst loss on a curve and its length against the width of the network."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..reporting.result import Claim
from .curve_entries import NETWORKS, Outcome, highest, keep
from .experiment import Experiment, Need


def of_all_widths(experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
    return [
        (pair, need)
        for breadth in experiment.scale.widths
        for pair in experiment.with_width(breadth).pairs(seeds)
        for need in (*NETWORKS, Need("bezier", 0))
    ]


def width(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Means over pairs of networks; a row for each width."""
    rows: list[dict[str, Any]] = []
    for breadth in experiment.scale.widths:
        pairs = experiment.with_width(breadth).pairs(seeds)
        bent = [pair.scan("bezier", pair.curve("bezier")) for pair in pairs]
        ends = [pair.scan_ends() for pair in pairs]
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
    found = [
        Claim(
            "wider networks are joined by straighter curves",
            all(after["length ratio"] < before["length ratio"] for before, after in pairwise(rows)),
            "length ratio " + ", ".join(f"{row['length ratio']:.3f} at K = {row['K']:g}" for row in rows),
        )
    ]
    rises = [max(0.0, row["worst train loss on the curve"] - row["train loss of the ends"]) for row in rows]
    if any(rises):  # where it rises at no width there is nothing to compare
        found.append(
            Claim(
                "on which the train loss rises less above the worse end",
                rises[-1] < rises[0],
                f"by {rises[0]:.3g} at K = {rows[0]['K']:g} and {rises[-1]:.3g} at K = {rows[-1]['K']:g}",
            )
        )
    return rows, found
