"""What an ensemble reports, and `curve_ensemble` returns: the scores of networks together."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan

from .comparison import equivalent
from .saved import Saved, grid, shown, titled


@dataclass(frozen=True, eq=False)
class Report(Saved):
    """The scores of an ensemble on one data set; rates are fractions, not percentages.

    Attributes:
        growth: The scores of the first member, of the first two together, and so on; the last are those of the
            ensemble.
        members: The scores of each member alone.
        pairs: For each pair of members, the fraction of the data on which they disagree.
        distances: Distances in weight space between consecutive members.
        reliability: For each bin of the ensemble's confidence: its fraction of the data, its accuracy, its mean
            confidence.
        epochs: The epochs trained until each member was collected, where known.
        calibrated_reliability: The same as `reliability`, after temperature scaling.
        temperature: The temperature of the ensemble, or the mean of those of both halves of the data, or None.
        fitted_on: What the temperatures of the calibrated scores were fitted on.
        averaged: The scores of the mean of the members' weights as one network; empty if it could not be scored.
        megabytes: The size of all members; shared frozen parameters count once.
        megabytes_averaged: The size of their average as one network.
        notes: What could not be computed, and why.
    """

    saved_as = "report"
    growth: list[dict[str, float]]
    members: list[dict[str, float]]
    pairs: list[list[float]]
    distances: list[float]
    reliability: list[list[float]] = field(default_factory=list)
    epochs: list[float] | None = None
    calibrated_reliability: list[list[float]] = field(default_factory=list)
    temperature: float | None = None
    fitted_on: str = ""
    averaged: dict[str, float] = field(default_factory=dict)
    megabytes: float | None = None
    megabytes_averaged: float | None = None
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        scores = (f"{titled(name)} {shown(name, value)}" for name, value in self.scores.items())
        return f"Report(members: {len(self.members)}, {', '.join(scores)})"

    def check(self) -> None:
        self.table()

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the whole ensemble."""
        return self.growth[-1]

    def equivalents(self, reference: "Report") -> list[float]:
        """How many independent networks have the calibrated NLL of the first members, of the first two, and so on.

        Args:
            reference: The report of an ensemble of independent networks.

        Returns:
            Interpolated; infinity if it is more than the reference has, 0 if it is less than one.
        """
        known = {k: entry.get("calibrated_nll", nan) for k, entry in enumerate(reference.growth, start=1)}
        return [equivalent(entry.get("calibrated_nll", nan), known) for entry in self.growth]

    def table(self) -> str:
        """One row per member, with its own error and the scores of the ensemble up to it; errors in percent."""
        names = [name for name in self.scores if name != "calibrated_error"]  # which is the error
        scored = [(str(k), *pair) for k, pair in enumerate(zip(self.members, self.growth, strict=True), start=1)]
        rows = [
            [label, shown(names[0], own[names[0]]), *(shown(name, grown.get(name, nan)) for name in names)]
            for label, own, grown in [*scored, ("averaged", self.averaged, self.averaged)]
            if own
        ]
        return "\n".join([grid(["members", f"own {titled(names[0])}", *map(titled, names)], rows), *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        if self.megabytes is not None:
            yield f"forward passes: {len(self.members)}, {self.megabytes:.3g} MB" + (
                f"; averaged, the mean of all weights as one network: 1, {self.megabytes_averaged:.3g} MB"
                if self.averaged and self.megabytes_averaged is not None
                else ""
            )
        if self.temperature is not None:
            yield f"temperature of the ensemble: {self.temperature:.3f}, fitted on {self.fitted_on}"
        yield from self.notes


@dataclass(frozen=True, eq=False)
class CurveEnsemble(Saved):
    """Predictions of equally spaced points of a curve: alone, in pairs with the start, and all together.

    The temperature scalings are "none"; "one" temperature for all; "train loss", proportional to it; "inverse train
    loss", proportional to its inverse; the same for "train data loss"; and "per point".

    Attributes:
        t: Where the points lie.
        train_loss: Train loss of each point, with weight decay.
        train_data_loss: The same without.
        error: Test error of each point.
        pair_error: Test error of each point ensembled with the start.
        temperatures: Scaling -> one per point (the mean of both halves if they were cross-fitted).
        nll: Scaling -> test NLL of each point.
        scores: Scaling -> scores of the ensemble of all points.
        reliability: Scaling -> for each bin of the ensemble's confidence: its fraction of the data, accuracy and mean
            confidence.
        fitted_on: What the temperatures were fitted on.
    """

    saved_as = "curve-ensemble"
    t: list[float]
    train_loss: list[float]
    error: list[float]
    pair_error: list[float]
    temperatures: dict[str, list[float]]
    nll: dict[str, list[float]]
    scores: dict[str, dict[str, float]]
    reliability: dict[str, list[list[float]]]
    fitted_on: str
    train_data_loss: list[float] = field(default_factory=list)  # files of 0.1.0 have none

    def __repr__(self) -> str:
        return f"CurveEnsemble({len(self.t)} points, {', '.join(self.scores)})"
