"""Tables over several results."""

from collections.abc import Mapping

from .. import text
from ..evaluation.results import PERCENT, Scan

COLUMNS = (("loss", ("min", "int", "mean", "max")), ("error", ("min", "int", "max")))


def curves(scans: Mapping[str, Scan], data: tuple[str, ...] = ("train", "test")) -> str:
    """One row per curve with its length ratio and the summary of each data set, laid out as the paper's table."""
    first = next(iter(scans.values())).values
    columns = [
        (name, quantity, key)
        for name in data
        for quantity, keys in COLUMNS
        if name in first and quantity in first[name] and not (name == "test" and quantity == "loss")
        for key in keys
    ]
    header = ["", "length", *(f"{name} {_title(quantity)} {key}" for name, quantity, key in columns)]
    rows = []
    for label, scan in scans.items():
        summary = scan.summary()
        found = [(summary[name][quantity].get(key), quantity) for name, quantity, key in columns]
        numbers = ["-" if value is None else text.number(value, quantity in PERCENT) for value, quantity in found]
        ratio = "-" if scan.length_ratio is None else f"{scan.length_ratio:.2f}"
        rows.append([label, ratio, *numbers])
    return _stacked(header, rows)


def _title(quantity: str) -> str:
    return f"{quantity} %" if quantity in PERCENT else quantity


def _stacked(header: list[str], rows: list[list[str]]) -> str:
    """Long column names over two lines: what is measured above, min, int, mean, max below."""
    above = ["" if " " not in name else name.rsplit(" ", 1)[0] for name in header]
    below = [name.rsplit(" ", 1)[-1] for name in header]
    shown = [name if name != before else "" for name, before in zip(above, ["", *above], strict=False)]
    lines = text.grid(below, rows).split("\n")
    widths = [max(len(row[i]) for row in [below, *rows]) for i in range(len(header))]
    return "\n".join([_headline(shown, widths), *lines])


def _headline(groups: list[str], widths: list[int]) -> str:
    """Each group's name above its first column, running on over the following ones."""
    line, position = "", 0
    for group, width in zip(groups, widths, strict=True):
        if group:
            line = line.ljust(position) + group
        position += width + 2
    return line
