"""What a page shows: the results in files, checked, and gathered as plain data."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from math import isnan, nan
from typing import Any

import numpy as np

from ..results import UNITS, Barriers, Comparison, Report, Scan, Trace, shown, titled
from ..results.levels import Scale
from ..results.scan import STRAIGHT
from ..store import files
from ..store.records import check_run
from .axes import factor, style_numbers
from .result import Result
from .result_files import ResultFile

MISSING = {
    "summary": "No scan here: make one with `thalweg scan CURVE --task ... --out scan`.",
    "curves": "No curve has been measured here: do it with `thalweg scan CURVE --task ... --out scan`.",
    "planes": "No plane here: make one with `thalweg plane CURVE --task ... --out plane`.",
    "reports": "No ensemble here: make one with `thalweg ensemble FOLDER ... --task ... --out ensemble`.",
    "comparisons": "No comparison here: make one with `thalweg compare --task ... --out compare`.",
    "runs": "No run.json here, so settings and origin are not known.",
}
EQUIVALENT = "equivalent in independent networks"
STEPS = 4000  # about this many points of a walk are shown, however long it is
# the file that a finished command leaves
RESULTS = {"scan": files.SCAN, "compare": files.COMPARISON, "barriers": files.BARRIERS}


def content(found: Sequence[ResultFile]) -> dict[str, Any]:
    """Everything a page shows, as plain data; `missing` has a line to show for each kind of result if it is absent."""
    parts = {kind: [item for item in found if item.kind == kind] for kind in READERS}
    for item in parts["run"]:
        with files.reading(item.path):
            check_run(item.content)
    lines = {item.path.parent for item in parts["run"] if item.content["command"] in ("barriers", "soup")}
    parts["scan"] = [item for item in parts["scan"] if not lines & {*item.path.parents}]  # steps of a larger result
    parts["trace"], parts["run"] = _without_copies(parts["trace"]), _top_level(parts["run"])
    notes = [
        f"{item.full_label} holds a run of {item.content['command']} without its result: resume it (`--resume` on the "
        "command line)."
        for item in parts["run"]
        if _lacks_result(item)
    ]
    read = {kind: [_read(reader, item) for item in parts[kind]] for kind, reader in READERS.items()}
    scans = _with_distinct_labels(read["scan"])
    groups = list(dict.fromkeys(scan["group"] for scan in scans))
    curves = sorted(
        (scan for scan in scans if scan["kind"] == "curve"),
        key=lambda scan: (groups.index(scan["group"]), scan["name"] != "Segment"),
    )
    styles = {
        group: iter(style_numbers(scan["label"] for scan in curves if scan["group"] == group)) for group in groups
    }
    curves = [{**scan, "style": next(styles[scan["group"]])} for scan in curves]
    planes = sorted((scan for scan in scans if scan["kind"] == "plane"), key=lambda scan: not scan["paths"])
    planes = [{**plane, "holds": [_place_in(plane, curve) for curve in curves]} for plane in planes]
    data = _data_of(parts["run"])
    return {
        "units": UNITS,
        "curves": curves,
        "planes": planes,
        "summary": [
            {**row, "group": scan["group"], "label": scan["label"]}
            for scan in [*curves, *(scan for scan in scans if scan["kind"] == "points"), *planes]
            for row in scan.pop("summary")
        ],
        "barriers": read["barriers"],
        "reports": [{**report, "data": data.get(report["folder"])} for report in read["report"]],
        "comparisons": read["comparison"],
        "walks": read["trace"],
        "papers": read["paper"],
        "soups": [said for item in parts["run"] if item.content["command"] == "soup" and (said := _soup(item))],
        "runs": read["run"],
        "notes": notes,
        "missing": MISSING,
    }


def _read(reader: Callable[[ResultFile], dict[str, Any]], item: ResultFile) -> dict[str, Any]:
    with files.reading(item.path):
        return reader(item)


def _scan(item: ResultFile) -> dict[str, Any]:
    whole = Scan.checked(item.content)
    same = () if whole.weight_decay else ("data_loss",)  # without weight decay both losses are the same
    values = {name: {key: v for key, v in entry.items() if key not in same} for name, entry in whole.values.items()}
    scan = replace(whole, values=values)
    return {
        **scan.to_dict(),
        "summary": [
            {
                "data": name,
                "quantity": quantity,
                "length_ratio": scan.length_ratio,
                "kind": scan.kind,
                "unit": scan.units.get(quantity, ""),
                **numbers,
            }
            for name, entry in scan.summary().items()
            for quantity, numbers in entry.items()
        ],
        "group": item.group,
        "label": item.label,
        "csv": whole.to_csv(),
        "scales": {name: _scales(scan, entry) for name, entry in values.items()} if scan.kind == "plane" else {},
        "off": scan.off_plane(),
    }


def _scales(scan: Scan, maps: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """For each map of a plane, the lowest and highest value of its colours; none where no value is finite."""
    finite = {name: factor(name, scan.units) * values for name, values in maps.items() if np.isfinite(values).any()}
    return {name: astuple(Scale.of([(scan, values)])) for name, values in finite.items()}


def _place_in(plane: Mapping[str, Any], curve: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a curve is called in a plane that it is drawn in; of a straight line between corners, where it runs."""
    own = curve["identity"]
    names = [name for name, identity in plane["identities"].items() if identity == own and name in plane["paths"]]
    if not own or names:
        return {"name": names[0]} if own else None
    corners = dict(zip(plane["identity"], plane["corners"], strict=False))
    straight = own[0] == STRAIGHT and {*own[1:]} <= {*corners}
    return {"path": [corners[end] for end in own[1:]]} if straight else None


def _with_distinct_labels(scans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Curves are named by their kind where that is unique, planes and lists by their folder."""
    kinds = Counter((scan["group"], scan["name"]) for scan in scans)
    named = Counter((scan["group"], scan["name"]) for scan in scans if _called_by_kind(scan))
    for scan in scans:
        if scan["kind"] == "curve":
            which = scan["group"], scan["name"]
            alone = kinds[which] == 1 or (named[which] == 1 and _called_by_kind(scan))
            scan["label"] = scan["name"] if alone else f"{scan['name']}, {scan['label']}"
    return scans


def _called_by_kind(scan: Mapping[str, Any]) -> bool:
    return str(scan["label"]).rpartition("/")[2] == scan["name"].lower()


def _barriers(item: ResultFile) -> dict[str, Any]:
    found = Barriers.checked(item.content)
    matrices = [
        {
            "data": data,
            "quantity": quantity,
            "unit": found.units.get(quantity, ""),
            "own": found.own(data, quantity).tolist(),
            "panels": {  # without what rounding leaves where there is no barrier
                title: found.between(data, quantity, aligned).round(6).tolist()
                for title, aligned in found.panels().items()
            },
        }
        for data, quantity in found.quantities()
    ]
    return {
        "label": item.full_label,
        "matrices": matrices,
        "networks": found.networks,
        "alignment": found.alignment,
        "csv": found.to_csv(),
    }


def _report(item: ResultFile) -> dict[str, Any]:
    return {**Report.checked(item.content).to_dict(), "label": item.full_label, "folder": str(item.path.parent)}


def _comparison(item: ResultFile) -> dict[str, Any]:
    result = Comparison.checked(item.content)
    kinds = [
        (method, averaged) for method, entry in result.entries.items() for averaged in (False, "averaged" in entry)
    ]
    rows = [
        {
            "label": item.full_label,
            "method": f"{method}, averaged" if averaged else method,
            "quantity": name,
            "spread": spread,
            "settings": result.described(method),
            "epochs": result.entries[method]["epochs"],
            "members": result.networks(method, 1, averaged),
            **budgets,
        }
        for method, averaged in dict.fromkeys(kinds)
        for name, spread, budgets in _quantities(result, method, averaged)
    ]
    return {"budget": result.budget, "multiples": result.multiples, "rows": rows}


def _quantities(result: Comparison, method: str, averaged: bool) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Every score, its spread at one budget and its values at all; and how many independent networks it is worth."""
    for name in [name for name in result.entries[method]["runs"][0] if name != "calibrated_error"]:  # it is the error
        at = {f"{k}B": result.score(method, k, name, averaged)[0] for k in result.multiples}
        yield name, result.score(method, 1, name, averaged)[1], at
    worth = {f"{k}B": result.equivalent(method, k, averaged) for k in result.multiples}
    if not all(map(isnan, worth.values())):
        yield EQUIVALENT, nan, worth


def _trace(item: ResultFile) -> dict[str, Any]:
    trace = Trace.checked(item.content)
    pace = 1 + len(trace.lr) // STEPS
    shown = sorted({*range(1, len(trace.lr) + 1, pace), *trace.collected, len(trace.lr)} - {0})
    watched = [
        {
            "data": data,
            "quantity": quantity,
            "at": trace.watched_at,
            "values": values,
            "unit": trace.units.get(quantity, ""),
        }
        for data, entry in trace.watched.items()
        for quantity, values in entry.items()
    ]
    stepwise = {"learning rate": trace.lr, "mini-batch loss": trace.loss, "distance from the start": trace.distance}
    own: list[dict[str, Any]] = [
        {
            "data": "",
            "quantity": name,
            "at": shown,
            "values": [float(values[k - 1]) for k in shown],
            "every": pace,
            "unit": "",
        }
        for name, values in stepwise.items()
    ]
    series = sorted([*watched, *own], key=lambda one: one["quantity"] != "error")  # the most informative first
    return {"label": item.full_label, "steps": trace.steps, "collected": trace.collected, "series": series}


def _paper(item: ResultFile) -> dict[str, Any]:
    result = Result.checked(item.content)
    heads, rows = result.cells()
    keys = list(dict.fromkeys(key for row in result.rows for key in row))
    return {
        "label": item.full_label,
        "title": f"{result.entry}: {result.of}",
        "heads": heads,
        "rows": rows,
        "raw": [keys, *([row.get(key) for key in keys] for row in result.rows)],
        "claims": [vars(claim) for claim in result.claims],
        "facts": [*_flat(result.about).items()],
    }


def _without_copies(items: Sequence[ResultFile]) -> list[ResultFile]:
    """A walk stores its trace both where it ran and where it finished."""
    return [item for i, item in enumerate(items) if item.content not in [before.content for before in items[:i]]]


def _top_level(runs: Sequence[ResultFile]) -> list[ResultFile]:
    """Runs that are not part of another, such as a walk or a comparison."""
    above = {
        run.path.parent for run in runs if run.content["command"] in ("walk", "compare", "scan", "barriers", "soup")
    }
    return [run for run in runs if not above & {*run.path.parent.parents}]


def _run(item: ResultFile) -> dict[str, Any]:
    record = item.content
    command = "plane" if record["settings"].get("of") == "Plane" else record["command"]
    facts = {
        "command": command,
        "time": " to ".join(_time(record[key]) for key in ("started", "finished") if key in record),
        "arguments": " ".join(record["argv"]),
        **_flat(record["versions"]),
        **_flat(record["code"] or {}, "code "),
        **_flat(record["settings"]),
    }
    return {"label": item.full_label, "title": f"{command}, {_time(record['started'])}", "facts": list(facts.items())}


def _soup(item: ResultFile) -> str:
    """What was averaged and how good it is, which its file of weights holds; nothing where that is not finished."""
    path = item.path.parent / files.WEIGHTS
    if not path.is_file():
        return ""
    said = files.load_tensors(path, "weights", whole=False)[1]["made"]
    with files.reading(path):
        found = said["soup"]
        metric, units = found["metric"], found["units"]
        alone = ", ".join(f"{name} {shown(metric, score, units)}" for name, score in found["alone"].items())
        members, score = ", ".join(found["members"]), shown(metric, found["score"], units)
        return (
            f"{item.full_label} is the average of {members}, out of {len(found['alone'])} networks: its "
            f"{titled(metric, units)} is {score} on the data it was chosen by; that of each network alone: {alone}."
        )


def _time(stamp: str) -> str:
    return stamp[:16].replace("T", " ")


def _flat(entry: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings, one line each."""
    facts: dict[str, str] = {}
    for key, value in entry.items():
        facts |= _flat(value, f"{before}{key} ") if isinstance(value, dict) else {f"{before}{key}": _brief(value)}
    return facts


def _brief(value: Any) -> str:
    match value:
        case list() if len(value) > 8:
            return f"{_brief(value[:2])}, ..., {_brief(value[-1])} ({len(value)} values)"
        case list():
            return ", ".join(map(_brief, value))
        case None | True | False:
            return {None: "not given", True: "yes", False: "no"}[value]
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def _data_of(runs: Iterable[ResultFile]) -> dict[str, str]:
    """Folder -> the data set on which its run measured."""
    named = ((item.path.parent, item.content["settings"].get("data")) for item in runs)
    return {str(folder): name for folder, name in named if isinstance(name, str)}


def _lacks_result(item: ResultFile) -> bool:
    """Of runs that can be resumed: those without facts cannot. In Python, the caller saves results anywhere."""
    command = item.content["command"] if "task" in item.content["settings"] else ""
    ended = "finished" in item.content and (item.path.parent / RESULTS.get(command, "")).exists()
    return bool(item.content.get("facts")) and not ended


READERS = {
    "scan": _scan,
    "barriers": _barriers,
    "report": _report,
    "comparison": _comparison,
    "trace": _trace,
    "paper": _paper,
    "run": _run,
}
