"""The entries on ensembles: pair-ensemble, curve-ensemble, ensembles, fge-trace, diversity, fge-path."""

import statistics
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..evaluation.curve_ensemble import CurveEnsemble
from ..evaluation.curve_ensemble import curve_ensemble as measure
from ..evaluation.ensemble import Ensemble, Report
from ..reporting import figures
from ..weightspace.curves import PolyChain
from ..weightspace.weights import Weights
from .paths import CURVES, Found
from .result import Claim, figure, row_of
from .workshop import Need, Workshop

CHAIN = [need for need in CURVES if need.kind != "bezier"]


def voters(shop: Workshop, curve: str, members: int) -> CurveEnsemble:
    """Points of a curve and what they predict together; kept, since several entries ask."""
    file = shop.folder / f"voters-{curve}-{members}.json"
    if not file.is_file():
        settings: dict[str, Any] = {"refresh": shop.clean, "points": members, "mode": shop.mode, "progress": shop.progress}
        measure(shop.form, shop.curve(curve), shop.task, shop.test, **settings).save(file)
    return CurveEnsemble.load(file)


def report(shop: Workshop, members: Sequence[Weights]) -> Report:
    return Ensemble(shop.form, members).report(shop.task, shop.test, progress=shop.progress)


def pair_ensemble(shop: Workshop, out: Path, seeds: int) -> Found:
    found = voters(shop, "polychain", shop.scale.members)
    canvas = Figure(figsize=(6, 4), layout="constrained")
    series = {
        "phi(0) and phi(t)": (found.t, [100 * e for e in found.pair_error]),
        "phi(t)": (found.t, [100 * e for e in found.error]),
    }
    figures.lines(series, "t", "test error (%)", canvas.subplots())
    figures.save(canvas, out / "pair-ensemble")
    rows = [
        {"t": t, "error of phi(t)": 100 * e, "error of the pair": 100 * p}
        for t, e, p in zip(found.t, found.error, found.pair_error, strict=True)
    ]
    ends, alone = 100 * found.pair_error[-1], 100 * found.error[0]
    near = next((row["t"] for row in rows if row["error of the pair"] <= ends + 0.1), None)
    early = min(row["error of the pair"] for row in rows if row["t"] <= 0.5)
    says = "a point part of the way along the curve makes with the start an ensemble nearly as good as the two ends"
    text = (
        f"start {alone:.2f} %, both ends {ends:.2f} %, best pair with t <= 0.5 {early:.2f} %, as good as the ends from t = {near}"
    )
    gained = (alone - early) / (alone - ends) if alone > ends else 0.0
    return rows[:: max(1, len(rows) // 10)], [Claim(says, gained > 0.7, f"{text}; {100 * gained:.0f} % of the gain")]


def curve_ensemble(shop: Workshop, out: Path, seeds: int) -> Found:
    found = voters(shop, "polychain", shop.scale.members)
    ends, three = (100 * report(shop, shop.networks(k)).scores["error"] for k in (2, 3))
    paper = {
        "none": figure("error of the 50-point polychain ensemble (%)"),
        "per point": figure("the same after temperature scaling (%)"),
    }
    same = shop.recipe.dataset == "CIFAR-100" and shop.recipe.model == "preresnet164"
    rows: list[dict[str, Any]] = [
        {
            "ensemble": f"{len(found.t)} points of the chain, scaled by {name}",
            "error": 100 * scores["error"],
            "nll": scores["nll"],
            "error (paper)": paper.get(name) if same else None,
        }
        for name, scores in found.scores.items()
    ]
    others = {
        "both ends": (ends, "error of the ensemble of the two endpoints (%)"),
        "three networks": (three, "error of three independent networks (%)"),
    }
    rows += [
        {"ensemble": name, "error": value, "error (paper)": figure(key) if same else None}
        for name, (value, key) in others.items()
    ]
    canvas = Figure(figsize=(10, 4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    levels = {f"ensemble, {name}": 100 * found.scores[name]["error"] for name in ("none", "per point")}
    figures.lines({"phi(t)": (found.t, [100 * e for e in found.error])}, "t", "test error (%)", left, levels)
    figures.lines({name: (found.t, found.nll[name]) for name in ("none", "per point")}, "t", "test cross-entropy", right)
    figures.save(canvas, out / "curve-ensemble")
    before, after = (100 * found.scores[name]["error"] for name in ("none", "per point"))
    text = f"{before:.2f} and {after:.2f} against {ends:.2f} %; temperatures {found.fitted_on}"
    return rows, [Claim("the points of one curve together beat its two ends", min(before, after) < ends, text)]


def _members(shop: Workshop, method: str, seed: int) -> list[Weights]:
    makers: dict[str, Any] = {"Ind": lambda s: [shop.network(s)], "SSE": shop.snapshot, "FGE": shop.fge}
    return list(makers[method](seed))


def ensembles(shop: Workshop, out: Path, seeds: int) -> Found:
    rows, means = [], {}
    for method in ("Ind", "SSE", "FGE"):
        runs = [_members(shop, method, seed) for seed in range(seeds)]
        alone = [100 * report(shop, members).scores["error"] for members in runs]
        paper = row_of("ensembles", dataset=shop.recipe.dataset, model=shop.recipe.title, method=method)
        means[method] = statistics.mean(alone)
        row: dict[str, Any] = {"method": method, "networks per run": len(runs[0]), "1B": means[method]}
        row |= {"1B (paper)": paper.get("error_1B"), "± over runs": statistics.stdev(alone) if seeds > 1 else None}
        row |= {"± (paper)": paper.get("error_1B_std")}
        for k in range(2, min(seeds, 3) + 1):
            row[f"{k}B"] = 100 * report(shop, [*chain(*runs[:k])]).scores["error"]
            row[f"{k}B (paper)"] = paper.get(f"error_{k}B")
        rows.append(row)
    order = means["FGE"] < means["SSE"] < means["Ind"]
    text = ", ".join(f"{name} {value:.2f} %" for name, value in means.items())
    return rows, [Claim(f"FGE is better than SSE, and SSE than one network, at 1B (means of {seeds})", order, text)]


def fge_trace(shop: Workshop, out: Path, seeds: int) -> Found:
    walk, other = shop.fge(0), shop.snapshot(0)
    trace = walk.traces[-1]
    canvas = Figure(figsize=(7, 8), layout="constrained")
    figures.trace(trace, "test", "error", canvas.subplots(3, 1, sharex=True))
    figures.save(canvas, out / "fge-trace")
    growth = {"FGE": report(shop, walk), "SSE": report(shop, other)}
    way = shop.recipe.walk
    assert way is not None
    spent = {
        "FGE": [way.starts[-1] + (k + 1) / len(walk) * way.epochs * len(way.starts) for k in range(len(walk))],
        "SSE": [(k + 1) / len(other) * shop.recipe.epochs for k in range(len(other))],
    }
    errors = {name: [100 * entry["error"] for entry in found.growth] for name, found in growth.items()}
    canvas = Figure(figsize=(6, 4), layout="constrained")
    figures.lines(
        {name: (spent[name], errors[name]) for name in growth}, "epochs spent", "error of the ensemble (%)", canvas.subplots()
    )
    figures.save(canvas, out / "fge-growth")
    rows = [
        {
            "method": name,
            "networks": k + 1,
            "epochs": epoch,
            "error of the ensemble": error,
            "its last network": 100 * own["error"],
        }
        for name in growth
        for k, (epoch, error, own) in enumerate(zip(spent[name], errors[name], growth[name].members, strict=True))
    ]
    low = [value for at, value in zip(trace.watched_at, trace.watched["test"]["error"], strict=True) if at in trace.collected]
    high = [
        value for at, value in zip(trace.watched_at, trace.watched["test"]["error"], strict=True) if at not in trace.collected
    ]
    text = f"{100 * statistics.mean(low):.2f} % where collected, {100 * statistics.mean(high):.2f} % at other ends of epochs"
    claims = [Claim("test error is lowest where the learning rate is", statistics.mean(low) < statistics.mean(high), text)]
    better = errors["FGE"][-1] < errors["SSE"][-1]
    return rows, [*claims, Claim("FGE ends below SSE", better, f"{errors['FGE'][-1]:.2f} and {errors['SSE'][-1]:.2f} %")]


def diversity(shop: Workshop, out: Path, seeds: int) -> Found:
    independent = report(shop, shop.networks(2))
    fge, sse = report(shop, shop.fge(0)), report(shop, shop.snapshot(0))
    same = shop.recipe.dataset == "CIFAR-100" and shop.recipe.model == "preresnet164"
    apart = {"independent": independent, "FGE": fge, "SSE": sse}
    paper = {
        "independent": (figure("disagreement of two independent networks (% of test)"), None),
        "FGE": (
            figure("disagreement of two networks of one FGE run (% of test)"),
            figure("Euclidean distance between consecutive FGE members"),
        ),
        "SSE": (None, figure("Euclidean distance between consecutive SSE members")),
    }
    rows = [
        {
            "networks": name,
            "disagreement": 100 * found.scores["disagreement"],
            "disagreement (paper)": paper[name][0] if same else None,
            "distance": statistics.mean(found.distances),
            "distance (paper)": paper[name][1] if same else None,
            "error of one": 100 * statistics.mean(entry["error"] for entry in found.members),
        }
        for name, found in apart.items()
    ]
    near, far = (100 * found.scores["disagreement"] for found in (fge, independent))
    steps = statistics.mean(fge.distances), statistics.mean(sse.distances)
    return rows, [
        Claim(
            "networks of one FGE run disagree less than independent ones, but much",
            0.2 * far < near < far,
            f"{near:.2f} and {far:.2f} % of the test set",
        ),
        Claim("FGE takes much smaller steps than SSE", steps[0] < 0.5 * steps[1], f"{steps[0]:.1f} and {steps[1]:.1f}"),
    ]


def fge_path(shop: Workshop, out: Path, seeds: int) -> Found:
    way = shop.recipe.walk
    assert way is not None
    members = list(shop.fge(0))[-max(2, len(shop.fge(0)) // len(way.starts)) :]
    path = PolyChain.through([member.bare().to(shop.device) for member in members])
    per, knots = 8, len(members) - 1
    at = [k / (per * knots) for k in range(per * knots + 1)]
    scan = shop.scan("fge-path", path, points=at)
    canvas = Figure(figsize=(10, 4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    figures.profile(scan, "train", "loss", left)
    figures.profile(scan, "test", "error", right)
    figures.save(canvas, out / "fge-path")
    loss, error = scan.values["train"]["loss"], scan.values["test"]["error"]
    rows: list[dict[str, Any]] = [
        {
            "between members": f"{k + 1} and {k + 2}",
            "train loss at them": float((loss[per * k] + loss[per * (k + 1)]) / 2),
            "in the middle": float(loss[per * k + per // 2]),
            "test error at them": 50 * float(error[per * k] + error[per * (k + 1)]),
            "error in the middle": 100 * float(error[per * k + per // 2]),
        }
        for k in range(knots)
    ]
    lower = [row["in the middle"] < row["train loss at them"] for row in rows]
    better = [row["error in the middle"] < row["test error at them"] for row in rows]
    return rows, [
        Claim("points between members have a lower train loss than the members", all(lower), f"{sum(lower)} of {knots}"),
        Claim("and a lower test error", sum(better) > knots / 2, f"{sum(better)} of {knots}"),
    ]


NEEDS = {
    "pair-ensemble": CHAIN,
    "curve-ensemble": [*CHAIN, Need("network", 2)],
    "fge-trace": [Need("network", 0), Need("snapshot", 0), Need("fge", 0)],
    "diversity": [Need("network", 0), Need("network", 1), Need("snapshot", 0), Need("fge", 0)],
    "fge-path": [Need("network", 0), Need("fge", 0)],
}
