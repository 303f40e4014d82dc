"""The paper's figures, each from the files in the folder of its entry alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..reporting import figures
from ..reporting.result import FILE, Result
from ..results import CurveEnsemble, Report, Scan, Trace

CURVES = {  # their names in files and figures
    **{"segment": "Segment", "bezier": "Bezier", "polychain": "PolyChain"},
    "bezier-with-dropout": "Bezier, with dropout",
}
PANELS = (("train", "loss"), ("test", "error"), ("train", "error"), ("test", "loss"))
METHODS = ("Ind", "SSE", "FGE")


def draw(folder: Path) -> list[Path]:
    """Draw the figures of the result in `folder`, as PNG and PDF; nothing if the paper has only numbers."""
    return [
        path
        for name, canvas in drawings(folder, Result.load(folder / FILE)).items()
        for path in figures.save(canvas, folder / name)
    ]


def drawings(folder: Path, result: Result) -> dict[str, Figure]:
    """The figures of a result, by the names of their files."""
    return {
        name: figures.panels(partial(plot, folder, result), size, rows, columns, layout, sharex=rows == 3)
        for name, (plot, size, rows, columns, layout) in FIGURES.get(result.entry, {}).items()
    }


def scans_in(folder: Path) -> dict[str, Scan]:
    """The scans of curves that exist, by their names in a legend."""
    return {name: Scan.load(file) for stem, name in CURVES.items() if (file := folder / f"{stem}.json").is_file()}


def _profile(folder: Path, result: Result, axes: Any) -> None:
    _whole_and_close(scans_in(folder), PANELS[: len(axes)], axes)


def _chains(folder: Path, result: Result, axes: Any) -> None:
    files = {"trained with loss (2), over t": "polychain", "trained with loss (1), over length": "polychain-arclength"}
    scans = {name: Scan.load(folder / f"{stem}.json") for name, stem in files.items()}
    for ax, panel in zip(axes, PANELS, strict=False):
        figures.profile(scans, *panel, ax).legend().remove()
    _legend_above(axes[0])


def _legend_above(first: Any) -> None:
    """One legend for all panels, since there may be no free space in them."""
    first.figure.legend(handles=first.lines, loc="outside upper center", ncols=len(first.lines), frameon=False)


def _perplexity(folder: Path, result: Result, axes: Any) -> None:
    scans = {
        name: replace(scan, values={part: {"perplexity": np.exp(of["data_loss"])} for part, of in scan.values.items()})
        for name, scan in scans_in(folder).items()
    }
    _whole_and_close(scans, [("train", "perplexity"), ("test", "perplexity")], axes)


def _whole_and_close(scans: Mapping[str, Scan], panels: Sequence[tuple[str, str]], axes: Any) -> None:
    """On the left with the straight line, whose barrier sets the scale, on the right without it."""
    curves = {name: scan for name, scan in scans.items() if name != "Segment"}
    for (whole, close), (data, quantity) in zip(axes, panels, strict=True):
        for ax, shown in ((whole, scans), (close, curves)):
            measured = {name: scan for name, scan in shown.items() if data in scan.values}
            figures.profile(measured, data, quantity, ax).legend().remove()
    _legend_above(axes[0][0])


def _planes(data: str, quantity: str, folder: Path, result: Result, axes: Any) -> None:
    names = {"three optima": "plane-three-optima", "Bezier": "plane-bezier", "PolyChain": "plane-polychain"}
    figures.surfaces({name: Scan.load(folder / f"{file}.json") for name, file in names.items()}, data, quantity, axes)


def _pair_ensemble(folder: Path, result: Result, ax: Any) -> None:
    figures.pair_ensemble(
        {CURVES[name]: CurveEnsemble.load(folder / f"{name}.json") for name in ("segment", "polychain")}, ax
    )


def _curve_ensemble(folder: Path, result: Result, axes: Any) -> None:
    for ax, quantity in zip(axes[0], ("error", "loss"), strict=True):
        figures.profile(scans_in(folder), "train", quantity, ax)
    figures.curve_ensemble(CurveEnsemble.load(folder / "points.json"), axes[1])


def _reliability(folder: Path, result: Result, ax: Any) -> None:
    figures.reliability(CurveEnsemble.load(folder / "points.json"), ax)


def _width(folder: Path, result: Result, axes: Any) -> None:
    """The worst loss on a curve and at its ends, and its length ratio, against the width of the network."""
    at, bent, ends, ratios = (
        [row[key] for row in result.rows]
        for key in ("K", "worst train loss on the curve", "train loss of the ends", "length ratio")
    )
    figures.lines({"worst on the curve": (at, bent), "worse end": (at, ends)}, "width K", "train loss", axes[0])
    figures.lines({"Bezier": (at, ratios)}, "width K", "length ratio", axes[1])
    if any(spreads := [row.get("its spread") or 0.0 for row in result.rows]):
        axes[1].errorbar(at, ratios, spreads, color=axes[1].lines[0].get_color(), capsize=3)
    axes[1].set_ylim(bottom=1, top=max(1.5, axes[1].get_ylim()[1]))  # a hundredth is no difference
    for ax in axes:
        ax.set(xscale="log")
        ax.set_xticks(at, [f"{breadth:g}" for breadth in at])
        ax.minorticks_off()


def _trivial(folder: Path, result: Result, axes: Any) -> None:
    scan = Scan.load(folder / "path.json")
    for ax, (data, quantity) in zip(axes, (("train", "data_loss"), ("test", "error")), strict=True):
        figures.profile(scan, data, quantity, ax).set_xlabel("s, of which t = |1 - 2s|; without the origin, s = 1/2")
    ax.set_ylim(0, 2 * ax.get_ylim()[1])  # a hundredth of a point is no difference


def _aligned(folder: Path, result: Result, axes: Any) -> None:
    """Errors against the epochs of a curve, as means over pairs; below, lines and short curves of the first pair."""
    named = {row["aligned by"]: f"aligned by {row['aligned by']}" for row in result.rows} | {"-": "as they are"}
    usual = min(row["lr"] for row in result.rows if row["lr"])
    trained = {by: [row for row in result.rows if (row["aligned by"], row["lr"]) == (by, usual)] for by in named}
    trained = {by: of for by, of in trained.items() if of}  # not every alignment has curves
    lengths = [row["epochs"] for row in trained["-"]]
    for ax, kind in zip(axes[0], ("mean", "max"), strict=True):
        key = f"{kind} test error (%)"
        series = {named[by]: ([row["epochs"] for row in of], [row[key] for row in of]) for by, of in trained.items()}
        figures.lines(series, "epochs of the curve", f"{kind} test error along it (%)", ax).set_xscale("log")
        ax.set_xticks(lengths, map(str, lengths))
        ax.minorticks_off()
    long = lengths[-1] if len(lengths) > min(map(len, trained.values())) else None  # the paper's, of which there is one
    for ax, epochs in zip(axes[1], (0, lengths[1]), strict=True):
        how = f"{epochs} epochs" if epochs else "line"
        shown = {(by, epochs): f"{named[by]}, {how}" for by in (trained if epochs else named)}
        shown |= {("-", long): f"as they are, {long} epochs"} if long and epochs else {}
        files = {name: folder / f"{'plain' if by == '-' else by}-{n}-0.json" for (by, n), name in shown.items()}
        figures.profile({name: Scan.load(file) for name, file in files.items()}, "test", "error", ax)
        ax.set_ylim(top=ax.get_ylim()[0] + 1.35 * np.ptp(ax.get_ylim()))
        ax.legend()  # for which there is room now


def _growth(folder: Path, result: Result, ax: Any) -> None:
    reports = {name: Report.load(file) for name in METHODS if (file := folder / f"{name}.json").is_file()}
    figures.growth(reports, budget=result.about["recipe"]["epochs"], ax=ax).set_ylabel("test error (%)")


def _trace(folder: Path, result: Result, axes: Any) -> None:
    figures.trace(Trace.load(folder / "trace.json"), "test", "error", axes)


def _path(folder: Path, result: Result, axes: Any) -> None:
    """Along the chain through networks, which are marked."""
    scan, knots = Scan.load(folder / "fge-path.json"), np.linspace(0, 1, len(result.rows) + 1)
    for ax, panel in zip(axes, (("train", "loss"), ("train", "data_loss"), ("test", "error")), strict=True):
        [line] = figures.profile(scan, *panel, ax).lines
        values = np.interp(knots, *np.array(line.get_data()))
        ax.plot(knots, values, "o", color="black", fillstyle="none", label="networks", clip_on=False)
        ax.legend()


class Drawing(NamedTuple):
    """What is plotted into the panels of a figure, and its width and height in inches."""

    plot: Callable[[Path, Result, Any], None]
    size: tuple[float, float]
    rows: int = 1
    columns: int = 1
    layout: Any = "constrained"


GROWTH = {"growth": Drawing(_growth, (7, 4.8))}
FIGURES: dict[str, dict[str, Drawing]] = {
    "curves": {"profile": Drawing(_profile, (10, 6.5), 2, 2)},
    "profile": {"profile": Drawing(_profile, (10, 13), 4, 2)},
    "planes": {
        f"planes-{data}-{quantity}": Drawing(partial(_planes, data, quantity), (14, 4.4), 1, 3, "compressed")
        for data, quantity in PANELS[:2]
    },
    "pair-ensemble": {"pair-ensemble": Drawing(_pair_ensemble, (6.4, 4.4))},
    "curve-ensemble": {
        "curve-ensemble": Drawing(_curve_ensemble, (10, 7.5), 2, 2),
        "reliability": Drawing(_reliability, (5, 5)),
    },
    "chain-losses": {"chain-losses": Drawing(_chains, (10, 4.2), 1, 2)},
    "width": {"width": Drawing(_width, (10, 4.2), 1, 2)},
    "trivial": {"trivial": Drawing(_trivial, (10, 4.2), 1, 2)},
    "aligned": {"aligned": Drawing(_aligned, (10, 8), 2, 2)},
    "ensembles": GROWTH,
    "fge-trace": {"fge-trace": Drawing(_trace, (7, 8), 3), **GROWTH},
    "fge-path": {"fge-path": Drawing(_path, (14, 4.2), 1, 3)},
    "ptb": {"ptb": Drawing(_perplexity, (10, 6.5), 2, 2)},
}
