"""What `barriers` returns: losses and metrics on the straight lines between all pairs of several networks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ThalwegError
from .saved import UNITS, Saved, Values, csv_text, grid, shown, titled
from .scan import barrier


@dataclass(frozen=True, eq=False)
class Barriers(Saved):
    """What was measured on the straight lines between all pairs of networks; rates are fractions, not percentages.

    Attributes:
        networks: Their names.
        t: The values of t on each line, from 0 to 1.
        values: Data set -> quantity -> an array of (networks, networks, points): at `[i, j]` the values from network i
            to network j. Quantities are those of `Scan`.
        aligned: The same after the second network of each pair was aligned to the first; empty without `align=`.
        alignment: How much of the network could be aligned, in words.
        weight_decay: The one in `loss`.
        units: As in `Scan`.
    """

    saved_as = "barriers"
    networks: list[str]
    t: np.ndarray
    values: Values
    aligned: Values = field(default_factory=dict)
    alignment: str = ""
    weight_decay: float = 0.0
    units: dict[str, str] = field(default_factory=UNITS.copy)

    def __repr__(self) -> str:
        return f"Barriers({', '.join(self.networks)}, {len(self.t)} points, {', '.join(self.values)})"

    @property
    def matrix(self) -> np.ndarray:
        """The barriers of the loss on the first data set, networks as they are."""
        return self.between()

    def between(self, data: str | None = None, quantity: str = "loss", aligned: bool = False) -> np.ndarray:
        """The barrier between each pair of networks: the largest excess over the straight line that joins the values of
        the two, as in `Scan.summary`.

        Args:
            data: The data set; the first by default.
            quantity: "loss", "error", ...
            aligned: After alignment, instead of as they are.
        """
        with np.errstate(invalid="ignore"):  # a loss may be infinite
            return np.array([[barrier(self.t, v) for v in row] for row in self._lines(data, quantity, aligned)])

    def own(self, data: str | None = None, quantity: str = "loss") -> np.ndarray:
        """The value of each network by itself.

        Args:
            data: The data set; the first by default.
            quantity: "loss", "error", ...
        """
        return self._lines(data, quantity, False).diagonal()[0]

    def panels(self) -> dict[str, bool]:
        """The matrices there are: title -> whether networks are aligned."""
        return {"as they are": False, "aligned": True} if self.aligned else {"as they are": False}

    def quantities(self) -> Iterator[tuple[str, str]]:
        """Every data set with every quantity; the loss without weight decay only where there is some."""
        for name, entry in self.values.items():
            yield from ((name, quantity) for quantity in entry if quantity != "data_loss" or self.weight_decay)

    def table(self) -> str:
        """One matrix per data set and quantity as text, next to the value of each network; errors in percent."""
        parts = [
            self._grid(data, quantity, title, aligned)
            for data, quantity in self.quantities()
            for title, aligned in self.panels().items()
        ]
        return "\n\n".join([*parts, f"aligned: {self.alignment}"] if self.alignment else parts)

    def to_csv(self) -> str:
        """One line per pair, as they are and aligned: the barrier of every quantity of every data set."""
        i, j = np.triu_indices(len(self.networks), 1)
        panels, names = self.panels().values(), np.array(self.networks)
        columns: dict[str, list[Any]] = {
            "first": [*names[i]] * len(panels),
            "second": [*names[j]] * len(panels),
            "aligned": [int(aligned) for aligned in panels for _ in i],
        }
        for data, quantity in self.quantities():
            found = [self.between(data, quantity, aligned)[i, j] for aligned in panels]
            columns[f"{data}_{quantity}"] = np.concatenate(found).tolist()
        return csv_text(columns)

    def check(self) -> None:
        shape = (len(self.networks), len(self.networks), len(self.t))
        arrays = [values for held in (self.values, self.aligned) for each in held.values() for values in each.values()]
        if self.t.ndim != 1 or len(self.t) < 2 or len(self.networks) < 2 or not arrays:
            raise ValueError("it holds no line between two networks")
        if any(values.shape != shape for values in arrays):
            raise ValueError("its values are not one per point of each line")
        if self.aligned and not all({*each} <= {*self.aligned.get(name, ())} for name, each in self.values.items()):
            raise ValueError("its aligned values are of other quantities than the rest")

    def _lines(self, data: str | None, quantity: str, aligned: bool) -> np.ndarray:
        held = self.aligned if aligned else self.values
        data = next(iter(self.values)) if data is None else data
        if aligned and not held:
            raise ThalwegError("these networks were not aligned: measure them with barriers(..., align=True)")
        if quantity not in held.get(data, {}):
            there = {key: sorted(entry) for key, entry in held.items()}
            raise ThalwegError(f"the barriers have no '{quantity}' on '{data}'; they have {there}")
        return held[data][quantity]

    def _grid(self, data: str, quantity: str, title: str, aligned: bool) -> str:
        def text(values: np.ndarray) -> list[str]:
            return [shown(quantity, float(value), self.units) for value in values]

        own, found = text(self.own(data, quantity)), map(text, self.between(data, quantity, aligned))
        rows = [
            [name, own[i], *("" if i == j else cell for j, cell in enumerate(cells))]
            for i, (name, cells) in enumerate(zip(self.networks, found, strict=True))
        ]
        return grid([f"{data} {titled(quantity, self.units)}, {title}", "own", *self.networks], rows)
