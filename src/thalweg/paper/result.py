"""What an entry of the paper gives: our numbers beside the paper's, and whether its claims hold on them."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from .. import text
from ..store import files

FILE = "result.json"
PAPERS = " (paper)"  # behind the name of a column of ours: the paper's numbers


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds on our numbers, and the numbers."""

    says: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'DOES NOT HOLD'}: {self.says} ({self.measured})"


@dataclass(frozen=True)
class Result:
    """Everything one entry found.

    rows: one per line of its table; a column `x` of ours has the paper's beside it as `x (paper)` where it gives one.
    about: recipe, scale, seeds, seconds, versions, machine, date.
    """

    entry: str
    of: str
    rows: list[dict[str, Any]]
    claims: list[Claim]
    about: dict[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        """Where the paper gives a number it stands behind ours in brackets."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row if not key.endswith(PAPERS)))
        known = {key for key in keys if any(row.get(key + PAPERS) is not None for row in self.rows)}
        header = [key.replace("_", " ") + (PAPERS if key in known else "") for key in keys]
        return text.grid(header, [[self._cell(row, key) for key in keys] for row in self.rows])

    def _cell(self, row: Mapping[str, Any], key: str) -> str:
        theirs = row.get(key + PAPERS)
        return _shown(row.get(key)) + ("" if theirs is None else f" ({_shown(theirs)})")

    def __str__(self) -> str:
        return "\n".join([f"{self.entry}: {self.of}", self.table(), *map(str, self.claims)])

    def save(self, path: Path) -> None:
        claims = [vars(claim) for claim in self.claims]
        files.save_json(path, "paper", {**vars(self), "claims": claims})

    @classmethod
    def load(cls, path: Path) -> "Result":
        found = files.load_json(path, "paper")
        return cls(**{**found, "claims": [Claim(**claim) for claim in found["claims"]]})


@cache
def published(table: str) -> list[dict[str, Any]]:
    """One of the paper's tables: "curves", "ensembles", "ptb"; numbers as numbers, absent ones as None.

    >>> next(row["error_1B"] for row in published("ensembles") if row["method"] == "FGE")
    25.7
    """
    content = (resources(__package__) / "numbers" / f"table_{table}.csv").read_text()
    return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(content.splitlines())]


@cache
def figure(what: str) -> float:
    """One of the paper's other numbers.

    >>> figure("distance between those ends")
    50.0
    """
    content = (resources(__package__) / "numbers" / "other_figures.csv").read_text()
    return next(float(row["value"]) for row in csv.DictReader(content.splitlines()) if row["what"] == what)


def row_of(table: str, **wanted: Any) -> Mapping[str, Any]:
    """The row of one of the paper's tables that agrees with all of `wanted`; nothing where it has none."""
    found = [row for row in published(table) if all(row[key] == value for key, value in wanted.items())]
    return found[0] if found else {}


def _number(value: str) -> Any:
    try:
        return float(value) if value else None
    except ValueError:
        return value


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
