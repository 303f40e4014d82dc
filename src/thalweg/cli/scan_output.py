"""What `thalweg scan` and `thalweg plane` print and write."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

import thalweg as tw


def write_scans(results: "Mapping[Path, tw.Scan]") -> None:
    """Scans by folder as text, JSON and CSV, and in the last folder one figure of all, with a row per data set: its
    loss, and its error where there is one.
    """
    from matplotlib.figure import Figure

    from ..store.files import write

    *_, (last, result) = results.items()
    for folder, each in results.items():
        write(folder / "scan.csv", partial(Path.write_text, data=each.to_csv()))
    drawn: Any = result if result.kind == "plane" else {each.name: each for each in results.values()}
    name, draw = ("surface", tw.figures.surface) if result.kind == "plane" else ("profile", tw.figures.profile)
    columns = [quantity for quantity in ("loss", "error") if all(quantity in entry for entry in result.values.values())]
    figure = Figure(figsize=(5.5 * len(columns), _height(result) * len(result.values)), layout="constrained")
    panels = figure.subplots(len(result.values), len(columns), squeeze=False)
    for row, data in zip(panels, result.values, strict=True):
        for ax, quantity in zip(row, columns, strict=True):
            draw(drawn, data, quantity, ax)
    tw.figures.save(figure, last / name)
    for folder, each in results.items():
        # what both say about the ends, only once
        typer.echo((each if folder == last else replace(each, stored={})).table())


def _height(result: "tw.Scan") -> float:
    """Of a panel, in inches: that of a plane as its sides are."""
    import numpy as np

    return (
        4.0
        if result.x is None or result.y is None
        else min(8.0, 1.0 + 4.0 * float(np.ptp(result.y) / np.ptp(result.x)))
    )
