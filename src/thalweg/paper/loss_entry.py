"""The entry on both losses: a chain trained with loss (2), over t, and one with loss (1), over its length."""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..reporting.result import Claim
from ..store.runs import LOG, Run
from .claims import TWENTIETH
from .curve_entries import Outcome, keep
from .ensemble_entries import CHAIN
from .experiment import Experiment, Need

LOSSES = {"loss (2), over t": Need("polychain", 0), "loss (1), over length": Need("polychain", 0, loss="arclength")}
NEEDS = [*CHAIN, LOSSES["loss (1), over length"]]
OVER_LENGTH, UNSTEADY = "train loss over length", "change per epoch"


def chain_losses(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Both chains are between the same networks, and see the data in the same order."""
    rows = [_row(experiment, out, name, need) for name, need in LOSSES.items()]
    return rows, judged(*rows)


def _row(experiment: Experiment, out: Path, name: str, need: Need) -> dict[str, Any]:
    chain, stem = experiment.obtain(need), "polychain" if need.loss == "uniform" else "polychain-arclength"
    scan = experiment.scan(stem, chain)
    keep({stem: scan}, out)
    loss, error = scan.summary()["train"]["loss"], scan.summary()["test"]["error"]
    pieces = [one.distance(two) for one, two in pairwise(chain.points)]
    return {
        "trained with": name,
        OVER_LENGTH: loss["int"],
        "over t": loss["mean"],
        "highest": loss["max"],
        "test error max (%)": 100 * error["max"],
        "length ratio": scan.length_ratio,
        "longer piece / shorter": max(pieces) / min(pieces),
        UNSTEADY: unsteadiness([line["loss"] for line in Run(experiment.place(need)).lines(LOG)]),
    }


def unsteadiness(losses: list[float]) -> float:
    """How much the loss changes from one epoch to the next, in the second quarter of a training: after its beginning,
    and before its rate falls.

    >>> unsteadiness([9.0, 5.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    1.5
    """
    quarter = losses[len(losses) // 4 : len(losses) // 2 + 1]
    return statistics.mean(abs(after - before) for before, after in pairwise(quarter))


def judged(over_t: dict[str, Any], over_length: dict[str, Any]) -> list[Claim]:
    steady, other = over_t[UNSTEADY], over_length[UNSTEADY]
    near, exact = over_t[OVER_LENGTH], over_length[OVER_LENGTH]
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
