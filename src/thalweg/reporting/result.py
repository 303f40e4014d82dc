"""The result of an entry of the paper: our numbers next to the paper's, and whether its claims hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..results import Saved, grid

FILE = "result.json"
PAPER, CODE = " (paper)", " [code]"  # suffixes of a column's name: the paper's numbers, and those of its reference code


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds for our numbers, and the numbers.

    Attributes:
        says: The sentence.
        holds: Whether it holds.
        measured: The numbers.
        earlier: The verdict under an earlier bound, where the bound has changed since the numbers were measured.
    """

    says: str
    holds: bool
    measured: str
    earlier: str = ""

    def __str__(self) -> str:
        return (
            f"{'holds' if self.holds else 'DOES NOT HOLD'}: {self.says} "
            f"({self.measured}{self.earlier and f'; earlier: {self.earlier}'})"
        )


@dataclass(frozen=True)
class Result(Saved):
    """Everything one entry found.

    Attributes:
        rows: One per line of its table; next to our column `x`, the paper's is `x (paper)` and that of its reference
            code `x [code]`, where they have one.
        about: Recipe, scale, seeds, seconds, versions, machine, date.
    """

    saved_as = "paper"
    names = (FILE,)
    entry: str
    of: str
    rows: list[dict[str, Any]]
    claims: list[Claim]
    about: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: next to our numbers the paper's in round brackets, and those of its reference code in square
        ones.
        """
        keys = list(dict.fromkeys(key for row in self.rows for key in row if not key.endswith((PAPER, CODE))))
        return keys, [[_with_others(row, key) for key in keys] for row in self.rows]

    def table(self) -> str:
        return grid(*self.cells())

    def __str__(self) -> str:
        return "\n".join([f"{self.entry}: {self.of}", self.table(), *map(str, self.claims)])

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        return super().from_dict({**entry, "claims": [Claim(**claim) for claim in entry["claims"]]})

    def check(self) -> None:
        self.table()


def _with_others(row: Mapping[str, Any], key: str) -> str:
    theirs, code = row.get(key + PAPER), row.get(key + CODE)
    ours = _shown(row.get(key), percent=key == "+-" or "(%)" in key or "(%)" in str(next(iter(row.values()), "")))
    return (
        ours + (f" ({_shown(theirs)})" if theirs is not None else "") + (f" [{code:.4g}]" if code is not None else "")
    )


def _shown(value: Any, percent: bool = False) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if percent and (abs(value) >= 0.01 or not value) else f"{value:.4g}"
