"""Plain-text tables."""

from collections.abc import Sequence


def number(value: float, percent: bool = False) -> str:
    """
    >>> number(0.12345), number(0.0712, percent=True), number(float("nan"))
    ('0.123', '7.12', '-')
    """
    if value != value:
        return "-"
    return f"{100 * value:.2f}" if percent else f"{value:.3f}"


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
