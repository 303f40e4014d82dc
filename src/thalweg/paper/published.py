"""The numbers of the paper and of its reference code, to compare with ours."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Any

from ..reporting.result import CODE, PAPER


@cache
def published(table: str) -> list[dict[str, Any]]:
    """One of the paper's tables: "curves", "ensembles", "ptb", "figures"; numbers as numbers, absent ones as None.

    >>> next(row["error_1B"] for row in published("ensembles") if row["method"] == "FGE")
    25.7
    """
    content = (resources(__package__) / "numbers" / f"table_{table}.csv").read_text()
    return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(content.splitlines())]


def figure(what: str) -> float:
    """One of the paper's other numbers.

    >>> figure("distance between those ends")
    50.0
    """
    return row_of("figures", what=what)["value"]


def row_of(table: str, **wanted: Any) -> Mapping[str, Any]:
    """The row of one of the paper's tables that agrees with all of `wanted`; nothing where it has none."""
    return next((row for row in published(table) if wanted.items() <= row.items()), {})


def _number(value: str) -> Any:
    try:
        return float(value) if value else None
    except ValueError:
        return value


def beside(key: str, ours: Any, table: str, name: str, **wanted: Any) -> dict[str, Any]:
    """A cell: our value, and those of the paper and of its reference code under `name` in their rows of a table.

    >>> beside("1B", 26.0, "ensembles", "error_1B", dataset="CIFAR-100", model="VGG-16", method="FGE")
    {'1B': 26.0, '1B (paper)': 25.7, '1B [code]': 25.4}
    """
    rows = {PAPER: row_of(table, **wanted), CODE: row_of(f"reference_{table}", **wanted)}
    return {key: ours, **{key + mark: row[name] for mark, row in rows.items() if row.get(name) is not None}}


def quoted(key: str, ours: Any, what: str | None, same: bool = True) -> dict[str, Any]:
    """A cell: our value and one of the paper's other numbers; None for that where there is none, or not of the same
    network.
    """
    return {key: ours, key + PAPER: figure(what) if what and same else None}
