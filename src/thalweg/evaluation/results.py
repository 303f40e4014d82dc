"""What a walk and a comparison leave behind: small, frozen, and all a figure needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from .. import text
from ..store import files

PERCENT = ("error", "disagreement")  # scores that tables show in percent


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened along one walk, iteration by iteration.

    lr, loss, distance: of each iteration, the last being the Euclidean distance from the start after its update.
    collected: the iterations after which a network was collected.
    watched: data set -> quantity -> values at the iterations in `watched_at` (0 is the start).
    """

    lr: np.ndarray
    loss: np.ndarray
    distance: np.ndarray
    collected: list[int]
    steps: int
    watched_at: list[int] = field(default_factory=list)
    watched: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Trace":
        return cls(**{**entry, **{key: np.array(entry[key]) for key in ("lr", "loss", "distance")}})

    def save(self, path: str | Path) -> None:
        files.save_json(Path(path), "trace", self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        return cls.from_dict(files.load_json(Path(path), "trace"))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The budget table; shares, no percentages.

    budget: epochs. multiples: of the budget, k pooling the first k runs. seeds: one per run.
    entries: method -> epochs spent and networks collected per run, the scores of every run alone, and of the pools by k.
    """

    budget: int
    multiples: list[int]
    seeds: list[int]
    entries: dict[str, dict[str, Any]]

    def score(self, method: str, multiple: int, name: str = "error") -> tuple[float, float]:
        """A score with its standard deviation over runs, which a pool of several runs does not have."""
        entry = self.entries[method]
        if multiple > 1:
            return entry["pooled"][str(multiple)][name], float("nan")
        values = [run[name] for run in entry["runs"]]
        return mean(values), stdev(values) if len(values) > 1 else float("nan")

    def table(self, name: str = "error") -> str:
        header = [f"{name}{' (%)' if name in PERCENT else ''}", "epochs per run", "networks per run"]
        rows = []
        for method, entry in self.entries.items():
            cells = [self._cell(method, k, name) for k in self.multiples]
            rows.append([method, str(entry["epochs"]), str(entry["members"]), *cells])
        return text.grid([*header, *(f"{k}B" for k in self.multiples)], rows)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def save(self, path: str | Path) -> None:
        files.save_json(Path(path), "comparison", self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "Comparison":
        return cls(**files.load_json(Path(path), "comparison"))

    def _cell(self, method: str, multiple: int, name: str) -> str:
        value, spread = self.score(method, multiple, name)
        shown = text.number(value, name in PERCENT)
        return shown if spread != spread else f"{shown} ± {text.number(spread, name in PERCENT)}"
