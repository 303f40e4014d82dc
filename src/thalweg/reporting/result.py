"""What an entry of the paper gives: our numbers beside the paper's, and whether its claims hold on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .. import text
from ..results import Saved

FILE = "result.json"
PAPER, CODE = " (paper)", " [code]"  # behind the name of a column of ours: the paper's numbers, and its reference code's


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds on our numbers, and the numbers.

    earlier: the verdict by a bound that was in force when the numbers were measured, where it has changed since.
    """

    says: str
    holds: bool
    measured: str
    earlier: str = ""

    def __str__(self) -> str:
        before = f"; earlier: {self.earlier}" if self.earlier else ""
        return f"{'holds' if self.holds else 'DOES NOT HOLD'}: {self.says} ({self.measured}{before})"


@dataclass(frozen=True)
class Result(Saved):
    """Everything one entry found.

    rows: one per line of its table; a column `x` of ours has the paper's beside it as `x (paper)`, and that of its reference
        code as `x [code]`, where they give one.
    about: recipe, scale, seeds, seconds, versions, machine, date.
    """

    saved_as = "paper"
    names = (FILE,)
    entry: str
    of: str
    rows: list[dict[str, Any]]
    claims: list[Claim]
    about: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows: behind our numbers the paper's in round brackets, and those of its reference code in square ones."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row if not key.endswith((PAPER, CODE))))
        return keys, [[_with_others(row, key) for key in keys] for row in self.rows]

    def table(self) -> str:
        return text.grid(*self.cells())

    def __str__(self) -> str:
        return "\n".join([f"{self.entry}: {self.of}", self.table(), *map(str, self.claims)])

    def check(self) -> None:
        super().check()
        self.table()

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "claims": [vars(claim) for claim in self.claims]}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        return cls(**{**entry, "claims": [Claim(**claim) for claim in entry["claims"]]})


def _with_others(row: Mapping[str, Any], key: str) -> str:
    theirs, code = row.get(key + PAPER), row.get(key + CODE)
    ours = _shown(row.get(key), percent=key == "+-" or "(%)" in key or "(%)" in str(next(iter(row.values()), "")))
    return ours + (f" ({_shown(theirs)})" if theirs is not None else "") + (f" [{code:.4g}]" if code is not None else "")


def _shown(value: Any, percent: bool = False) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if percent and (abs(value) >= 0.01 or not value) else f"{value:.4g}"
