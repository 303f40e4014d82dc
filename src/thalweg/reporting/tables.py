"""Tables over several results."""

from collections.abc import Mapping
from math import nan

from ..results import Scan, grid, shown

COLUMNS = (("loss", ("min", "int", "mean", "max")), ("error", ("min", "int", "max")))


def curves(scans: Mapping[str, Scan]) -> str:
    """One row per curve with its length ratio and the summary of each data set, laid out as the paper's table."""
    first, units = next(iter(scans.values())).values, next(iter(scans.values())).units
    columns = [
        (name, quantity, key)
        for name in ("train", "test")
        for quantity, keys in COLUMNS
        if name in first and quantity in first[name] and not (name == "test" and quantity == "loss")
        for key in keys
    ]
    groups = [
        "",
        "",
        *(f"{name} {quantity}{' ' * (quantity in units)}{units.get(quantity, '')}" for name, quantity, _ in columns),
    ]
    header = ["", "length", *(key for *_, key in columns)]
    rows = []
    for label, scan in scans.items():
        summary = scan.summary()
        numbers = [
            shown(quantity, summary[name][quantity].get(key, nan), scan.units) for name, quantity, key in columns
        ]
        none = "same ends" if scan.kind == "curve" else "-"
        rows.append([label, none if scan.length_ratio is None else f"{scan.length_ratio:.2f}", *numbers])
    return f"{_headline(groups, header, rows)}\n{grid(header, rows)}"


def _headline(groups: list[str], header: list[str], rows: list[list[str]]) -> str:
    """What is measured, above the first of its columns and running on over the following ones."""
    line, position = "", 0
    for before, group, *column in zip(["", *groups], groups, header, *rows, strict=False):
        if group != before:
            line = line.ljust(position) + group
        position += max(map(len, column)) + 2
    return line
