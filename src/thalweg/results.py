"""What a scan, a walk and a comparison leave behind: small, frozen, and all a figure needs."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf, isnan, nan
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from .errors import ThalwegError
from .store import files

if TYPE_CHECKING:
    from .weightspace.weights import Weights

Values = dict[str, dict[str, np.ndarray]]
SHARES = {
    "error": "%",
    "calibrated_error": "%",
    "disagreement": "%",
}  # units of our own scores; "%" is for shares, which tables and figures show in percent
FAR = 0.01  # what is drawn in a plane lies in it up to this share of the distance between the plane's first two points


@dataclass(frozen=True, eq=False)
class Saved:
    """A result that is saved as one JSON file."""

    saved_as: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()  # of its file in a run folder, where that is not called as it is saved

    def to_dict(self) -> dict[str, Any]:
        return plain(asdict(self))

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        return cls(**entry)

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        files.save_json(files.place(path), self.saved_as, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file, or the result in the folder of a finished run (for a walk, its first trace)."""
        found = files.inside(path, *(cls.names or [f"{cls.saved_as}.json"]))
        with files.reading(found):
            return cls.checked(files.load_json(found, cls.saved_as))

    @classmethod
    def checked(cls, entry: Mapping[str, Any]) -> Self:
        """The result in a file, checked."""
        found = cls.from_dict(entry)
        found.check()
        return found

    def check(self) -> None:
        """Raise unless every field has its type and size, as in a file that we wrote."""
        files.check_fields(self)


@dataclass(frozen=True, eq=False)
class Scan(Saved):
    """What was measured along a curve, over a plane, or at a list of weights; rates are fractions, not percentages.

    Attributes:
        name: "Bezier", "Plane", ...
        kind: "curve", "plane" or "points".
        values: Data set -> quantity -> one number per point, shaped `(ny, nx)` for a plane. `data_loss` is the mean
            loss of the task; `loss` adds weight_decay / 2 times the squared norm of the trainable weights.
        weight_decay: The one in `loss`.
        t: The parameter along a curve.
        length: The length so far along a curve or a list of points.
        x: Coordinates of a plane.
        y: Coordinates of a plane.
        length_ratio: The length of the curve divided by the distance between its ends; None if both are the same
            network.
        stored: Data set -> quantity -> the values at both ends with the batch-norm statistics they were saved with.
        corners: The coordinates of the networks that a plane was made from.
        shares: Of a plane fitted to many networks, the share of their variance along x and along y.
        paths: Curves in a plane by name: coordinates at equally spaced t from 0 to 1.
        marks: Weights in a plane by name: their coordinates.
        knots: Of a curve measured at adaptive points, the values of t between which it is smooth: there, mean and int
            follow cubics through the points.
        measured: Of a plane measured at adaptive points, 1 where it was measured and 0 where it is interpolated.
        away: For each point of `paths` and `marks`, its distance from the plane.
        units: Quantity -> unit; "%" is for fractions, which tables and figures show in percent.
    """

    saved_as = "scan"
    name: str
    kind: str
    values: Values
    weight_decay: float = 0.0
    t: np.ndarray | None = None
    length: np.ndarray | None = None
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    length_ratio: float | None = None
    stored: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    corners: list[tuple[float, float]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    paths: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    marks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    away: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=SHARES.copy)
    knots: list[float] = field(default_factory=list)
    measured: np.ndarray | None = None

    def __repr__(self) -> str:
        shape = next(iter(next(iter(self.values.values())).values())).shape
        return f"Scan({self.name}, {' x '.join(map(str, shape))} points, {', '.join(self.values)})"

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Data set -> quantity -> min, mean and max, and for a curve also int and barrier.

        `mean` is over t, `int` over the length of the curve, and `barrier` is the largest excess over the straight line
        between the values at both ends.
        """
        return {name: {key: self._summarise(v) for key, v in entry.items()} for name, entry in self.values.items()}

    def table(self) -> str:
        """The summary as text, errors in percent."""
        keys = ["min", "int", "mean", "max", "barrier"] if self.kind == "curve" else ["min", "mean", "max"]
        rows = [
            [self._label(name, quantity), *(shown(quantity, numbers[key], self.units) for key in keys)]
            for name, entry in self.summary().items()
            for quantity, numbers in entry.items()
            if quantity != "data_loss" or self.weight_decay
        ]
        ratio = (
            "undefined (both ends are the same network)" if self.length_ratio is None else f"{self.length_ratio:.2f}"
        )
        title = self.name if self.kind != "curve" else f"{self.name}, length ratio {ratio}"
        return "\n".join([title, grid(["", *keys], rows), *self._gaps(), *self._fitted()])

    def off_plane(self) -> dict[str, tuple[float, float]]:
        """Curves and points drawn in a plane that lie outside it.

        Returns:
            Name -> the largest distance from the plane, and that distance relative to the one between the plane's first
            two points, or to the width of a plane fitted to many networks or around one.
        """
        if self.x is None:
            return {}
        width = self.corners[1][0] if len(self.corners) == 3 and not self.shares else float(np.ptp(self.x))
        found = {name: (max(far), max(far) / width) for name, far in self.away.items() if far}
        return {name: pair for name, pair in found.items() if pair[1] > FAR}

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().to_dict().items() if value is not None}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        arrays = {key: array(entry[key]) for key in ("t", "length", "x", "y", "measured") if key in entry}
        values = {name: {key: array(v) for key, v in each.items()} for name, each in entry["values"].items()}
        places = {key: {name: _pairs(path) for name, path in entry[key].items()} for key in ("paths", "marks")}
        made = {**entry, **arrays, **places, "values": values, "corners": _pairs(entry["corners"])}
        if made.get("length_ratio") is not None and isnan(made["length_ratio"]):
            made["length_ratio"] = None
        return cls(**made)

    def check(self) -> None:
        super().check()
        along = [values for values in (self.t, self.length) if values is not None]
        shape = (len(self.y), len(self.x)) if self.x is not None and self.y is not None else along[0].shape
        arrays = [*along, *(values for entry in self.values.values() for values in entry.values())]
        known = self.kind in (["plane"], ["points"], ["points", "curve"])[len(along)]
        if not known or len(arrays) == len(along) or any(values.shape != shape for values in arrays):
            raise ValueError("its values are not one per point")
        if self.measured is not None and self.measured.shape != shape:
            raise ValueError("it does not say of each point whether it was measured")
        apart = any(len(self.away.get(name, ())) != len(points) for name, points in self.marks.items())
        if self.shares and (apart or len(self.shares) != 2):
            raise ValueError("its networks do not have a distance each")
        if not all({*entry} <= {*self.values[name]} for name, entry in self.stored.items()):
            raise ValueError("its ends have other values than its points")

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns of `to_csv`, if pandas is installed."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ThalwegError(
                "a DataFrame needs pandas, which cannot be imported: pip install pandas, or use to_csv()"
            ) from error
        return DataFrame(self._columns())

    def to_csv(self) -> str:
        """One line per point: its coordinates, then every quantity of every data set."""
        return csv_text(self._columns())

    def _columns(self) -> dict[str, list[float]]:
        places: dict[str, Any] = {"t": self.t, "length": self.length}
        if self.x is not None and self.y is not None:
            places = {**dict(zip("xy", np.meshgrid(self.x, self.y), strict=True)), "measured": self.measured}
        measured = {f"{name}_{key}": each for name, entry in self.values.items() for key, each in entry.items()}
        return {name: each.ravel().tolist() for name, each in (places | measured).items() if each is not None}

    def _summarise(self, values: np.ndarray) -> dict[str, float]:
        numbers = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        if self.kind == "curve" and self.t is not None and self.length is not None:
            cuts = np.searchsorted(self.t, self.knots)
            numbers |= {
                "mean": _mean(values, self.t, cuts),
                "int": _mean(values, self.length, cuts),
                "barrier": barrier(self.t, values),
            }
        return {key: float(number) for key, number in numbers.items()}

    def _fitted(self) -> list[str]:
        """What a plane fitted to many networks holds, and how far from it they are."""
        if not self.shares:
            return []
        far = {name: each for name, each in self.away.items() if each}
        return [
            f"the plane holds {sum(self.shares):.1%} of the variance of its {len(self.corners)} networks",
            *(f"{name}: {min(each):.3g} to {max(each):.3g} off the plane" for name, each in far.items()),
        ]

    def _label(self, name: str, quantity: str) -> str:
        return f"{name} {quantity}{unit(quantity, self.units)}"

    def _gaps(self) -> list[str]:
        def both(quantity: str, values: Iterable[float]) -> str:
            return " / ".join(shown(quantity, value, self.units) for value in values)

        return [
            f"ends, {self._label(name, quantity)}: {both(quantity, pair)} with the statistics they came with, "
            f"{both(quantity, self.values[name][quantity][[0, -1]])} refreshed"
            for name, entry in self.stored.items()
            for quantity, pair in entry.items()
            if quantity in ("loss", "error")
        ]


@dataclass(frozen=True, eq=False)
class Trace(Saved):
    """What happened along one walk, iteration by iteration.

    Attributes:
        lr: Learning rate of each iteration.
        loss: Loss of each iteration.
        distance: Euclidean distance from the start after each iteration.
        collected: The iterations after which a network was collected.
        steps: Iterations per epoch.
        watched_at: The iterations at which `watched` was measured; 0 is the start.
        watched: Data set -> quantity -> values.
        units: As in `Scan`.
    """

    saved_as = "trace"
    names = ("trace.json", "trace-1.json")
    lr: np.ndarray
    loss: np.ndarray
    distance: np.ndarray
    collected: list[int]
    steps: int
    watched_at: list[int] = field(default_factory=list)
    watched: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=SHARES.copy)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        return cls(**{**entry, **{key: array(entry[key]) for key in ("lr", "loss", "distance")}})

    def check(self) -> None:
        super().check()
        watched = [values for entry in self.watched.values() for values in entry.values()]
        if not self.lr.shape == self.loss.shape == self.distance.shape == (len(self.lr),) or self.steps < 1:
            raise ValueError("it does not have one value per iteration")
        if any(len(values) != len(self.watched_at) for values in watched):
            raise ValueError("what was watched does not have one value per look")
        if not all(0 < i <= len(self.lr) for i in self.collected):
            raise ValueError("networks were collected after iterations that are not there")


@dataclass(frozen=True, eq=False)
class Walk:
    """What a walk collected.

    Attributes:
        members: The networks, on the CPU, in the order of their collection.
        traces: What happened on the way, one per start.
    """

    members: "tuple[Weights, ...]"
    traces: tuple[Trace, ...]


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
            the weights as one network.
        milliseconds: The time of one network for one example; an ensemble of n takes n times as long.
    """

    saved_as = "comparison"
    budget: int
    multiples: list[int]
    seeds: list[int]
    entries: dict[str, dict[str, Any]]
    milliseconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the time, which no two runs have in common; `save` writes it too."""
        return {key: value for key, value in super().to_dict().items() if key != "milliseconds"}

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        files.save_json(files.place(path), self.saved_as, super().to_dict())

    def check(self) -> None:
        super().check()
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
        """The difference of a score to that of one independent network on the same examples, the mean over all of them,
        and its standard error over the examples; NaN where there was no such network.
        """
        found = self._entry(method, averaged).get("differences", {}).get(str(multiple), {}).get(name, (nan, nan))
        return found[0], found[1]

    def equivalent(self, method: str, multiple: int, averaged: bool = False) -> float:
        """How many independent networks have the same calibrated NLL, interpolated; infinity if more than there are, 0
        if less than one, NaN if not known.
        """
        reference = next((name for name in ("Independent", "Ind") if name in self.entries), None)
        if reference is None:
            return nan
        known = {k: self.score(reference, k, "calibrated_nll")[0] for k in sorted(self.multiples)}
        return equivalent(self.score(method, multiple, "calibrated_nll", averaged)[0], known)

    def _entry(self, method: str, averaged: bool) -> dict[str, Any]:
        return self.entries[method]["averaged"] if averaged else self.entries[method]

    def networks(self, method: str, multiple: int, averaged: bool = False) -> int:
        """The forward passes of an ensemble."""
        return 1 if averaged else multiple * int(self.entries[method]["members"])

    @property
    def first_score(self) -> str:
        """The first score there is: `error`, where it is defined."""
        return next(iter(next(iter(self.entries.values()))["runs"][0]))

    def table(self, name: str | None = None) -> str:
        """One row per method, as text.

        Args:
            name: The score to show; by default the first, followed by `costs`.
        """
        costs, name = "" if name else f"\n{self.costs()}\n", name or self.first_score
        header = [f"{name}{unit(name)}", "epochs per run", "networks per run", *(f"{k}B" for k in self.multiples)]
        rows = [
            [
                method,
                str(entry["epochs"]),
                str(entry["members"]),
                *(self._cell(method, k, name) for k in self.multiples),
            ]
            for method, entry in self.entries.items()
        ]
        described = [f"{method}: {self.described(method)}" for method in self.entries]
        return "\n".join(filter(None, [grid(header, rows), costs, *described]))

    def costs(self) -> str:
        """One row per ensemble and budget, and one for its average as one network: what it costs, and what it gives."""
        first = self.first_score
        others = [name for name in ("nll", "calibrated_nll") if name != first and self._has(name)]
        header = ["", "networks", "MB", "epochs", "ms/example", titled(first), "to one network"]
        rows = [
            self._costs(method, k, averaged, [first, *others])
            for k in self.multiples
            for method in self.entries
            for averaged in (False, True)
            if not averaged or ("averaged" in self.entries[method] and self.networks(method, k) > 1)
        ]
        return grid([*header, *map(titled, others), "equivalent"], rows)

    def _costs(self, method: str, k: int, averaged: bool, names: Sequence[str]) -> list[str]:
        entry, networks = self.entries[method], self.networks(method, k, averaged)
        size = entry.get("megabytes", {}).get(str(k), nan) / (self.networks(method, k) if averaged else 1)
        difference, spread = self.difference(method, k, names[0], averaged)
        scores = [shown(name, self.score(method, k, name, averaged)[0]) for name in names]
        to_one = "-" if isnan(difference) else f"{_signed(names[0], difference)} ± {shown(names[0], spread)}"
        time = nan if self.milliseconds is None else networks * self.milliseconds
        costs = [str(networks), _brief(size), str(k * entry["epochs"]), _brief(time)]
        worth = _counted(self.equivalent(method, k, averaged), self.multiples)
        return [f"{k}B {method}{', averaged' * averaged}", *costs, scores[0], to_one, *scores[1:], worth]

    def _has(self, name: str) -> bool:
        return any(name in run for entry in self.entries.values() for run in entry["runs"])

    def titled(self, method: str) -> str:
        """The full name, such as Fast Geometric Ensembling; with the settings where the key has them too."""
        title = self.entries[method].get("title") or method
        return title if method.isidentifier() else f"{title}, {method}"

    def described(self, method: str) -> str:
        """The full name and the settings."""
        entry = self.entries[method]
        return ", ".join(filter(None, (entry.get("title"), entry["settings"])))

    def _cell(self, method: str, multiple: int, name: str) -> str:
        value, spread = self.score(method, multiple, name)
        return shown(name, value) if isnan(spread) else f"{shown(name, value)} ± {shown(name, spread)}"


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
        temperature: The ensemble's, or the mean of those of both halves of the data; None where there is none.
        fitted_on: What the temperatures of the calibrated scores were fitted on.
        averaged: The scores of the mean of the members' weights as one network; empty where there is none.
        megabytes: The size of all members; shared frozen parameters count once.
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
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        super().check()
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
        alone = names[0]
        header = ["members", f"own {titled(alone)}", *map(titled, names)]
        rows = [
            [str(k), shown(alone, own[alone]), *(shown(name, grown.get(name, nan)) for name in names)]
            for k, (own, grown) in enumerate(zip(self.members, self.growth, strict=True), start=1)
        ]
        if self.averaged:
            own = self.averaged
            rows.append(["averaged", shown(alone, own[alone]), *(shown(name, own.get(name, nan)) for name in names)])
        return "\n".join([grid(header, rows), *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        if self.megabytes is not None:
            yield f"forward passes: {len(self.members)}, {self.megabytes:.3g} MB" + (
                f"; averaged: the mean of all weights as one network, 1, {self.megabytes / len(self.members):.3g} MB"
                if self.averaged
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


def _signed(quantity: str, value: float) -> str:
    return f"{'+' * (value > 0)}{shown(quantity, value)}"


def barrier(t: np.ndarray, values: np.ndarray) -> float:
    """The largest excess over the straight line that joins the first and the last value.

    >>> barrier(np.array([0.0, 0.25, 1.0]), np.array([1.0, 4.0, 3.0]))
    2.5
    """
    return float((values - np.interp(t, t[[0, -1]], values[[0, -1]])).max())


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """
    >>> csv_text({"t": [0, 1], "loss": [0.5, 0.25]})
    't,loss\\n0,0.5\\n1,0.25\\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def titled(quantity: str, units: Mapping[str, str] = SHARES) -> str:
    """
    >>> titled("error"), titled("data_loss"), titled("force", {"force": "N"})
    ('error (%)', 'data loss', 'force (N)')
    """
    return quantity.replace("_", " ") + unit(quantity, units)


def unit(quantity: str, units: Mapping[str, str] = SHARES) -> str:
    return f" ({units[quantity]})" if units.get(quantity) else ""


def shown(quantity: str, value: float, units: Mapping[str, str] = SHARES) -> str:
    """
    >>> shown("loss", 0.12345), shown("error", 0.0712), shown("loss", float("nan"))
    ('0.123', '7.12', '-')
    """
    if isnan(value):
        return "-"
    return f"{100 * value:.2f}" if units.get(quantity) == "%" else f"{value:.3f}"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(grid(["curve", "max"], [["Segment", "2.5"], ["Bezier", "0.04"]]))
    curve     max
    -------------
    Segment   2.5
    Bezier   0.04
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, rows)])


def array(values: Any) -> np.ndarray:
    found = np.array(values, dtype=np.float64)
    found.setflags(write=False)
    return found


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _pairs(path: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in path]


def _mean(values: np.ndarray, x: np.ndarray, cuts: np.ndarray) -> float:
    span = x[-1] - x[0]
    if not span > 0:
        return float(values.mean())
    return float((np.trapezoid(values, x) + corrections(values, x, cuts).sum()) / span)


def corrections(values: np.ndarray, x: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """What a cubic adds to the trapezoid in each interval, with slopes from the neighbours on the same side of `cuts`,
    the indices of the points between which the values are smooth; without them, nothing.

    >>> x = np.array([0.0, 0.5, 2.0, 3.0])
    >>> bool(np.isclose(np.trapezoid(x**2, x) + corrections(x**2, x, np.array([0, 3])).sum(), 9))
    True
    """
    found = np.zeros(len(x) - 1)
    for start, stop in pairwise(cuts):
        steps = np.diff(x[start : stop + 1])
        if len(steps) > 1 and (steps > 0).all():
            slopes = np.gradient(values[start : stop + 1], x[start : stop + 1], edge_order=2)
            found[start:stop] = -(steps**2) * np.diff(slopes) / 12
    return found
