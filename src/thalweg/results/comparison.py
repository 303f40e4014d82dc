"""What `compare` returns: ensembles of several methods at equal training budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ..store import files
from .saved import Saved, grid, known_score, shown, titled


@dataclass(frozen=True, eq=False)
class Comparison(Saved):
    """Ensembles of several methods at equal training budget; rates are fractions, not percentages.

    Attributes:
        budget: Epochs of one run.
        multiples: Multiples of the budget; k pools the first k runs.
        seeds: One per run.
        entries: Method -> epochs and networks per run, the scores of each run alone (`runs`), those of the pools by k
            (`pooled`), by k the `differences` to one independent network (mean and standard error over the test
            examples, for each score) and the `megabytes` of all networks; and under `averaged` the same for the mean of
            the weights as one network. What could not be done as it should, and why, is under `not averaged`, `not
            calibrated` and `not held out`.
        milliseconds: The time of one network for one example; an ensemble of n takes n times as long.
    """

    saved_as = "comparison"
    budget: int
    multiples: list[int]
    seeds: list[int]
    entries: dict[str, dict[str, Any]]
    milliseconds: float | None = None

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.entries)}, budget={self.budget}, multiples={self.multiples})"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the time, which no two runs have in common; `save` writes it too."""
        return {key: value for key, value in super().to_dict().items() if key != "milliseconds"}

    def save(self, path: str | Path) -> None:
        """Write a JSON file.

        Args:
            path: The file to write.
        """
        files.save_json(files.place(path), self.saved_as, super().to_dict())

    def check(self) -> None:
        for name in {name for entry in self.entries.values() for name in entry["runs"][0]}:
            self.table(name)
        self.costs()

    def score(self, method: str, multiple: int, name: str = "error", averaged: bool = False) -> tuple[float, float]:
        """The mean of a score and its standard deviation over runs; a pool of several runs has none.

        Args:
            method: The method.
            multiple: The budget.
            name: The score.
            averaged: Of the mean of the weights as one network, instead of the ensemble.
        """
        entry = self._entry(method, averaged)
        if multiple > 1:
            return entry["pooled"][str(multiple)].get(name, nan), nan
        values = [run.get(name, nan) for run in entry["runs"]]
        return mean(values), stdev(values) if len(values) > 1 and not any(map(isnan, values)) else nan

    def difference(
        self, method: str, multiple: int, name: str = "error", averaged: bool = False
    ) -> tuple[float, float]:
        """The mean difference of a score from that of one independent network on the same examples, and its standard
        error over the examples; NaN if no independent network was trained.

        Args:
            method: The method.
            multiple: The budget.
            name: The score.
            averaged: Of the mean of the weights as one network, instead of the ensemble.
        """
        both = self._entry(method, averaged).get("differences", {}).get(str(multiple), {}).get(name, (nan, nan))
        return both[0], both[1]

    def equivalent(self, method: str, multiple: int, averaged: bool = False) -> float:
        """How many independent networks have the same calibrated NLL, interpolated; infinity if more than were trained,
        0 if less than one, NaN if unknown.

        Args:
            method: The method.
            multiple: The budget.
            averaged: Of the mean of the weights as one network, instead of the ensemble.
        """
        return equivalent(self.score(method, multiple, "calibrated_nll", averaged)[0], self.independent())

    def independent(self) -> dict[int, float]:
        """The calibrated NLL of each number of independent networks that were scored, also of more than the budgets
        have; none if there was no such method.
        """
        reference = next((name for name in ("Independent", "Ind") if name in self.entries), None)
        counts = [] if reference is None else [1, *sorted(map(int, self.entries[reference]["pooled"]))]
        return {k: self.score(str(reference), k, "calibrated_nll")[0] for k in counts}

    def _entry(self, method: str, averaged: bool) -> dict[str, Any]:
        return self.entries[method]["averaged"] if averaged else self.entries[method]

    def networks(self, method: str, multiple: int, averaged: bool = False) -> int:
        """The number of networks in an ensemble, which is also its number of forward passes.

        Args:
            method: The method.
            multiple: The budget.
            averaged: Of the mean of the weights, which is one network.
        """
        return 1 if averaged else multiple * int(self.entries[method]["members"])

    def known_score(self, name: str | None = None) -> str:
        """The name of a score that was computed.

        Args:
            name: A score, to check that it was computed; by default the first, which is `error` where it is defined.
        """
        return known_score(name, [run for entry in self.entries.values() for run in entry["runs"]])

    def table(self, name: str | None = None) -> str:
        """One row per method, as text.

        Args:
            name: The score to show; by default the first, followed by `costs`.
        """
        score = self.known_score(name)
        header = [titled(score), "epochs per run", "networks per run", *(f"{k}B" for k in self.multiples)]
        rows = [
            [method, str(entry["epochs"]), str(entry["members"])]
            + [_with_spread(score, *self.score(method, k, score)) for k in self.multiples]
            for method, entry in self.entries.items()
        ]
        costs = [] if name else [f"\n{self.costs()}\n"]
        budgets = f"B is {self.budget} epochs: kB pools the first k runs, and 1B is the mean over runs"
        methods = [f"{method}: {self.described(method)}" for method in self.entries]
        return "\n".join([grid(header, rows), *costs, budgets, *methods])

    def costs(self) -> str:
        """One row per ensemble and budget, and one for its average as one network: its costs and its scores."""
        first = self.known_score()
        known = {name for entry in self.entries.values() for run in entry["runs"] for name in run}
        others = [name for name in ("nll", "calibrated_nll") if name != first and name in known]
        header = ["", "networks", "MB", "epochs", "ms/example", titled(first), "to one network"]
        rows = [
            self._costs(method, k, averaged, first, others)
            for k in self.multiples
            for method in self.entries
            for averaged in (False, True)
            if not averaged or ("averaged" in self.entries[method] and self.networks(method, k) > 1)
        ]
        return "\n".join([grid([*header, *map(titled, others), "equivalent"], rows), *self._remarks()])

    def _remarks(self) -> list[str]:
        """What could not be done, and why, once for all methods with the same reason."""
        found = [
            (f"{missing}: {entry[missing]}", which)
            for method, own in self.entries.items()
            for which, entry in ((method, own), (f"{method}, averaged", own.get("averaged", {})))
            for missing in ("not averaged", "not calibrated", "not held out")
            if missing in entry
        ]
        reasons = dict.fromkeys(why for why, _ in found)
        return [f"{'; '.join(which for own, which in found if own == why)}, {why}" for why in reasons]

    def _costs(self, method: str, k: int, averaged: bool, first: str, others: Sequence[str]) -> list[str]:
        entry, networks = self.entries[method], self.networks(method, k, averaged)
        size = entry.get("megabytes", {}).get("averaged" if averaged else str(k), nan)
        time = nan if self.milliseconds is None else networks * self.milliseconds
        difference, spread = self.difference(method, k, first, averaged)
        score, *more = (shown(name, self.score(method, k, name, averaged)[0]) for name in (first, *others))
        return [
            f"{k}B {method}{', averaged' * averaged}",
            *(str(networks), _brief(size), str(k * entry["epochs"]), _brief(time)),
            *(score, "+" * (difference > 0) + _with_spread(first, difference, spread), *more),
            _counted(self.equivalent(method, k, averaged), [*self.independent()]),
        ]

    def titled(self, method: str) -> str:
        """The full name of a method, such as Fast Geometric Ensembling.

        Args:
            method: Its key in `entries`; if that includes settings, the name does too.
        """
        title = self.entries[method].get("title") or method
        return title if method.isidentifier() else f"{title}, {method}"

    def described(self, method: str) -> str:
        """The full name of a method and its settings.

        Args:
            method: Its key in `entries`.
        """
        entry = self.entries[method]
        return ", ".join(filter(None, (entry.get("title"), entry["settings"])))


def equivalent(nll: float, independent: Mapping[int, float]) -> float:
    """How many independent networks have this NLL, interpolated between the numbers for which it is known.

    >>> known = {1: 1.0, 2: 0.8, 3: 0.7}
    >>> equivalent(0.9, known), equivalent(0.6, known), equivalent(1.1, known)
    (1.5, inf, 0.0)

    Args:
        nll: The calibrated NLL of an ensemble.
        independent: A number of independent networks -> theirs.

    Returns:
        Infinity if it is more than there are, 0 if it is less than the first, NaN if something is not known.
    """
    if not independent:
        return nan
    counts, values = [*independent], [*independent.values()]
    best = np.minimum.accumulate(values)  # where chance makes more networks worse, fewer are as good
    if not np.isfinite([nll, *best]).all():
        return nan
    worse = int((best > nll).sum())
    if worse == 0:
        return float(counts[0]) if nll == best[0] else 0.0
    if worse == len(best):
        return inf
    share = (best[worse - 1] - nll) / (best[worse - 1] - best[worse])
    return float(counts[worse - 1] + share * (counts[worse] - counts[worse - 1]))


def _counted(number: float, known: Sequence[int]) -> str:
    """A deep-ensemble equivalent as text, beyond the numbers that are known as a bound."""
    if isnan(number):
        return "-"
    return f"> {max(known)}" if number == inf else f"{number:.2f}" if number else f"< {min(known)}"


def _brief(value: float) -> str:
    return "-" if isnan(value) else f"{value:.3g}"


def _with_spread(score: str, value: float, spread: float) -> str:
    return shown(score, value) if isnan(spread) else f"{shown(score, value)} ± {shown(score, spread)}"
