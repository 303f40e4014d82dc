"""What results have in common: one JSON file each, and numbers as text, shares in percent."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ..errors import ThalwegError
from ..store import files
from ..store.records import decoded

Values = dict[str, dict[str, np.ndarray]]
# units of our own scores; "%" is for shares, which tables and figures show in percent
UNITS = dict.fromkeys(("error", "calibrated_error", "disagreement"), "%")
LARGE = 1e6  # from here on, numbers are shown with an exponent


@dataclass(frozen=True, eq=False)
class Saved:
    """A result that is saved as one JSON file."""

    saved_as: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()  # of its file in a run folder, if not `saved_as`

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, as JSON holds them."""
        return plain(asdict(self))

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Args:
            entry: The fields by name.
        """
        return decoded(cls, entry)

    def save(self, path: str | Path) -> None:
        """Write a JSON file.

        Args:
            path: The file to write.
        """
        files.save_json(files.place(path), self.saved_as, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Args:
            path: The file, or the folder of a finished run; from that of a walk, its first trace is read.
        """
        found = files.inside(path, *(cls.names or [f"{cls.saved_as}.json"]))
        with files.reading(found):
            return cls.checked(files.load_json(found, cls.saved_as))

    @classmethod
    def checked(cls, entry: Mapping[str, Any]) -> Self:
        """The result in a file, checked.

        Args:
            entry: The content of the file.
        """
        found = cls.from_dict(entry)
        found.check()
        return found

    def check(self) -> None:
        """Raise unless its fields agree with each other, as in a file that we wrote."""


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


def titled(quantity: str, units: Mapping[str, str] = UNITS) -> str:
    """
    >>> titled("error"), titled("data_loss"), titled("force", {"force": "N"})
    ('error (%)', 'data loss', 'force (N)')
    """
    return quantity.replace("_", " ") + unit(quantity, units)


def unit(quantity: str, units: Mapping[str, str] = UNITS) -> str:
    return f" ({units[quantity]})" if units.get(quantity) else ""


def shown(quantity: str, value: float, units: Mapping[str, str] = UNITS) -> str:
    """
    >>> shown("loss", 0.12345), shown("error", 0.0712), shown("loss", float("nan"))
    ('0.123', '7.12', '-')
    >>> shown("loss", 1.2345e13)
    '1.234e+13'
    """
    if isnan(value):
        return "-"
    if abs(value) > LARGE:
        return f"{value:.3e}"
    return f"{100 * value:.2f}" if units.get(quantity) == "%" else f"{value:.3f}"


def known_score(name: str | None, entries: Sequence[Mapping[str, float]]) -> str:
    """The name of a score that some of the entries have; by default the first.

    >>> known_score(None, [{"error": 0.1, "nll": 0.3}, {"error": 0.2}])
    'error'
    """
    there = dict.fromkeys(score for entry in entries for score in entry)
    if name is not None and name not in there:
        raise ThalwegError(f"there is no score '{name}'; there are {', '.join(there)}")
    return name or next(iter(there))


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


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value
