"""The paper's figures, each from the files in the folder of its entry alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..reporting import figures
from ..reporting.result import FILE, Result
from ..results import CurveEnsemble, Report, Scan, Trace

CURVES = {"segment": "Segment", "bezier": "Bezier", "polychain": "PolyChain"}  # their names in files and figures
PANELS = (("train", "loss"), ("test", "error"), ("train", "error"), ("test", "loss"))
METHODS = ("Ind", "SSE", "FGE")


def draw(folder: Path) -> list[Path]:
    """Draw the figures of the result in `folder`, as PNG and PDF; nothing if the paper has only numbers."""
    result = Result.load(folder / FILE)
    drawn = DRAWERS.get(result.entry, lambda *_: {})(folder, result)
    return [path for name, canvas in drawn.items() for path in figures.save(canvas, folder / name)]


def _canvas(width: float, height: float, layout: Any = "constrained") -> Figure:
    return Figure(figsize=(width, height), layout=layout)


def scans_in(folder: Path) -> dict[str, Scan]:
    """The scans of curves that exist, by their names in a legend."""
    return {name: Scan.load(file) for stem, name in CURVES.items() if (file := folder / f"{stem}.json").is_file()}


def _profile(folder: Path, result: Result) -> Mapping[str, Figure]:
    panels = PANELS[:2] if result.entry == "curves" else PANELS  # the table's, and all that the paper draws
    return {"profile": _whole_and_close(scans_in(folder), panels)}


def _words(folder: Path, result: Result) -> Mapping[str, Figure]:
    def perplexity(scan: Scan) -> Scan:
        return replace(
            scan, values={data: {"perplexity": np.exp(each["data_loss"])} for data, each in scan.values.items()}
        )

    scans = {name: perplexity(scan) for name, scan in scans_in(folder).items()}
    return {"ptb": _whole_and_close(scans, [("train", "perplexity"), ("test", "perplexity")])}


def _whole_and_close(scans: Mapping[str, Scan], panels: Sequence[tuple[str, str]]) -> Figure:
    """On the left with the straight line, whose barrier sets the scale, on the right without it."""
    canvas = _canvas(10, 3.25 * len(panels))
    curves = {name: scan for name, scan in scans.items() if name != "Segment"}
    for (whole, close), (data, quantity) in zip(canvas.subplots(len(panels), 2), panels, strict=True):
        for ax, shown in ((whole, scans), (close, curves)):
            figures.profile(shown, data, quantity, ax).legend().remove()
    canvas.legend(handles=whole.lines, loc="outside upper center", ncols=len(scans), frameon=False)
    return canvas


def _planes(folder: Path, result: Result) -> Mapping[str, Figure]:
    names = {"three optima": "plane-three-optima", "Bezier": "plane-bezier", "PolyChain": "plane-polychain"}
    scans = {name: Scan.load(folder / f"{file}.json") for name, file in names.items()}
    found = {}
    for data, quantity in (("train", "loss"), ("test", "error")):
        found[f"planes-{data}-{quantity}"] = canvas = _canvas(14, 4.4, "compressed")
        figures.surfaces(scans, data, quantity, canvas.subplots(1, 3))
    return found


def _pair_ensemble(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas = _canvas(6.4, 4.4)
    named = {CURVES[name]: CurveEnsemble.load(folder / f"{name}.json") for name in ("segment", "polychain")}
    figures.pair_ensemble(named, canvas.subplots())
    return {"pair-ensemble": canvas}


def _curve_ensemble(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas, sure, found = _canvas(10, 7.5), _canvas(5, 5), CurveEnsemble.load(folder / "points.json")
    (top, beside), below = canvas.subplots(2, 2)
    figures.profile(scans_in(folder), "train", "error", top)
    figures.profile(scans_in(folder), "train", "loss", beside)
    figures.curve_ensemble(found, below)
    figures.reliability(found, sure.subplots())
    return {"curve-ensemble": canvas, "reliability": sure}


def _width(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas = _canvas(10, 4.2)
    scans = {
        row["K"]: [Scan.load(folder / f"{part}-{row['K']:g}.json") for part in ("curve", "ends")] for row in result.rows
    }
    figures.width({k: (curve, ends) for k, (curve, ends) in scans.items()}, "train", canvas.subplots(1, 2))
    return {"width": canvas}


def _trivial(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas, scan = _canvas(10, 4.2), Scan.load(folder / "path.json")
    for ax, (data, quantity) in zip(canvas.subplots(1, 2), (("train", "data_loss"), ("test", "error")), strict=True):
        figures.profile(scan, data, quantity, ax).set_xlabel("s, of which t = |1 - 2s|; without the origin, s = 1/2")
    ax.set_ylim(0, 2 * ax.get_ylim()[1])  # a hundredth of a point is no difference
    return {"trivial": canvas}


def _growth(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas = _canvas(7, 4.8)
    reports = {name: Report.load(file) for name in METHODS if (file := folder / f"{name}.json").is_file()}
    figures.growth(reports, budget=result.about["recipe"]["epochs"], ax=canvas.subplots())
    return {"growth": canvas}


def _trace(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas = _canvas(7, 8)
    figures.trace(Trace.load(folder / "trace.json"), "test", "error", canvas.subplots(3, 1, sharex=True))
    return {"fge-trace": canvas, **_growth(folder, result)}


def _path(folder: Path, result: Result) -> Mapping[str, Figure]:
    canvas, shown = _canvas(14, 4.2), (("train", "loss"), ("train", "data_loss"), ("test", "error"))
    figures.chain(Scan.load(folder / "fge-path.json"), len(result.rows) + 1, shown, canvas.subplots(1, 3))
    return {"fge-path": canvas}


DRAWERS: dict[str, Callable[[Path, Result], Mapping[str, Any]]] = {
    "curves": _profile,
    "profile": _profile,
    "planes": _planes,
    "pair-ensemble": _pair_ensemble,
    "curve-ensemble": _curve_ensemble,
    "width": _width,
    "trivial": _trivial,
    "ensembles": _growth,
    "fge-trace": _trace,
    "fge-path": _path,
    "ptb": _words,
}
