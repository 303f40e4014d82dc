"""Run folders with known contents, for pages made of them."""

from pathlib import Path

import numpy as np

import thalweg as tw
from thalweg.results import Report
from thalweg.store import files

CORNERS = [(0.0, 0.0), (10.0, 0.0), (4.0, 6.0)]
RECORD = {
    "command": "scan",
    "settings": {
        "task": "mine:circle",
        "weight_decay": 0.001,
        "data": {"train": "abc"},
        "t": [i / 120 for i in range(121)],
    },
    "versions": {"thalweg": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    "code": {"commit": "0123abc", "changed": False},
    "started": "2018-12-03T10:00:00+0000",
    "argv": ["scan", "curve", "--out", "scan"],
}


IDENTITY = {"Bezier": ["other kind", "a", "c", "b"], "Segment": ["Segment", "a", "b"]}


def bezier(t):
    """Where the curve with these control points runs in the plane."""
    a, b, c = map(np.array, CORNERS)
    return (1 - t) ** 2 * a + 2 * t * (1 - t) * c + t**2 * b


def curve(name="Bezier", points=121, height=1.0, data=("train", "test"), quantities=("loss", "data_loss", "error")):
    t = np.linspace(0, 1, points)
    values = {
        key: {q: 0.05 + height * (i + 1) * (k + 1) * t * (1 - t) / 4 for k, q in enumerate(quantities)}
        for i, key in enumerate(data)
    }
    own = {"identity": IDENTITY.get(name, [])}
    return tw.Scan(name, "curve", values, weight_decay=1e-3, t=t, length=3 * t, length_ratio=1.25, **own)


def plane(points=41, data=("train", "test"), quantities=("loss", "data_loss", "error"), path="Bezier"):
    x, y = np.linspace(-2, 12, points), np.linspace(-1.2, 7.2, points)
    bowl = 0.02 + ((x[None] - 5) ** 2 + 3 * (y[:, None] - 2) ** 2) / 60
    values = {key: {q: bowl / (k + i + 1) for k, q in enumerate(quantities)} for i, key in enumerate(data)}
    paths = {path: [tuple(bezier(i / 120).tolist()) for i in range(121)]}
    marks = {"members": [(3.0, 1.0), (6.0, 2.0)]}
    own = {"identity": ["a", "b", "c"], "identities": {path: IDENTITY["Bezier"]}}
    spots = {"corners": CORNERS, "paths": paths, "marks": marks}
    return tw.Scan("Plane", "plane", values, weight_decay=1e-3, x=x, y=y, **spots, **own)


def report(members=4):
    scores = [{"error": 0.05 + 0.01 * k, "nll": 0.2, "brier": 0.1, "ece": 0.02} for k in range(members)]
    growth = [{**own, "error": 0.05 - 0.005 * k, "disagreement": 0.03} for k, own in enumerate(scores)]
    pairs = [[abs(i - j) / 100 for j in range(members)] for i in range(members)]
    growth[-1] |= {"calibrated_error": growth[-1]["error"], "calibrated_nll": 0.19, "calibrated_ece": 0.01}
    bins = {"reliability": [[0.5, 0.7, 0.8], [0.5, 0.9, 0.95]], "calibrated_reliability": [[1.0, 0.8, 0.81]]}
    worth = {"temperature": 1.25, "fitted_on": "held-out data", "averaged": {"error": 0.06, "nll": 0.21}}
    return Report(
        growth, scores, pairs, [1.0] * (members - 1), **bins, **worth, notes=["the average has no temperature"]
    )


def comparison():
    def scores(error):
        runs = [{"error": error, "calibrated_nll": error}, {"error": error + 0.01, "calibrated_nll": error}]
        return {"runs": runs, "pooled": {"2": {"error": error - 0.01, "calibrated_nll": error - 0.04}}}

    def entry(error):
        return {"settings": "", "epochs": 10, "members": 1, **scores(error), "averaged": scores(error + 0.02)}

    return tw.Comparison(10, [1, 2], [0, 1], {"Independent": entry(0.1), "FGE": entry(0.08)})


def barriers(networks=("a", "b", "c"), aligned=True):
    """Between networks i and j the barrier of the loss is i + j + 1, a tenth of it when aligned; own losses are i."""
    t, count = np.linspace(0, 1, 5), len(networks)
    places = np.arange(float(count))
    straight = places[:, None, None] * (1 - t) + places[None, :, None] * t
    hill = (1 - np.eye(count))[..., None] * (places[:, None, None] + places[None, :, None] + 1) * 4 * t * (1 - t)
    values = {"test": {"loss": straight + hill, "error": (straight + hill) / 100}}
    lower = {"test": {"loss": straight + hill / 10, "error": (straight + hill / 10) / 100}}
    return tw.Barriers(list(networks), t, values, lower if aligned else {}, "99.8 % of it" if aligned else "")


def trace():
    watched = {"test": {"error": [0.2, 0.15, 0.1]}}
    return tw.Trace(np.full(8, 0.1), np.linspace(1, 0.5, 8), np.linspace(0, 2, 8), [4, 8], 4, [0, 4, 8], watched)


def whole(folder):
    """A folder as the commands leave it."""
    curve().save(folder / "scan" / "scan.json")
    files.save_json(folder / "scan" / "run.json", "run", RECORD)
    curve("Segment", 61, 5.0).save(folder / "line" / "scan.json")
    plane().save(folder / "plane" / "scan.json")
    report().save(folder / "ensemble" / "report.json")
    files.save_json(
        folder / "ensemble" / "run.json", "run", {**RECORD, "command": "ensemble", "settings": {"data": "test"}}
    )
    comparison().save(folder / "compare" / "comparison.json")
    barriers().save(folder / "barriers" / "barriers.json")
    trace().save(folder / "walk" / "trace-1.json")
    trace().save(folder / "walk" / "start-1" / "trace.json")
    return folder


def edit_json(path: Path, kind: str, change) -> None:
    """Change a file of ours and give it the hash that fits."""
    content = files.load_json(path, kind)
    change(content)
    files.save_json(path, kind, content)


def tree(folder: Path):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
