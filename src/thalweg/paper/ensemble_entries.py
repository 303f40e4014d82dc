"""The entries on ensembles: pair-ensemble, curve-ensemble, ensembles, fge-trace, diversity, fge-path."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..evaluation.curve_ensemble import curve_ensemble as measure
from ..evaluation.ensemble import Ensemble
from ..reporting.result import Claim
from ..results import CurveEnsemble, Report, Scan, Walk
from ..weightspace.curves import PolyChain, Segment
from ..weightspace.weights import Weights
from . import claims
from .curve_entries import CURVES, Outcome, keep
from .drawing import METHODS
from .experiment import Experiment
from .published import beside, figure, quoted

CHAIN = [need for need in CURVES if need.kind != "bezier"]
DIVERSITY = {  # what the paper calls the disagreement, the distance, and the accuracy of one
    "independent": (
        "disagreement of two independent networks (% of test)",
        None,
        "accuracy of a fully trained network (%)",
    ),
    "FGE": (
        "disagreement of two networks of one FGE run (% of test)",
        "Euclidean distance between consecutive FGE members",
        "accuracy of a single FGE member (%)",
    ),
    "SSE": (None, "Euclidean distance between consecutive SSE members", None),
}


def voters(experiment: Experiment, curve: str, members: int) -> CurveEnsemble:
    """Points of a curve and their predictions together; stored, since several entries need them."""
    found = Segment(*experiment.networks(2)) if curve == "segment" else experiment.curve(curve)
    file = experiment.folder / f"voters-{curve}-{members}-{found.points[1].digest()[:8]}.json"
    if not file.is_file():
        settings: dict[str, Any] = {
            "bn_batches": experiment.clean,
            "points": members,
            "compute": experiment.compute,
            "progress": experiment.progress,
        }
        measure(experiment.form, found, experiment.task, experiment.test, **settings).save(file)
    return CurveEnsemble.load(file)


def report(experiment: Experiment, members: Sequence[Weights]) -> Report:
    return Ensemble(experiment.form, members).report(experiment.task, experiment.test, progress=experiment.progress)


def pair_ensemble(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    found = voters(experiment, "polychain", experiment.scale.members)
    pair, alone = ([100 * value for value in values] for values in (found.pair_error, found.error))
    found.save(out / "polychain.json")
    voters(experiment, "segment", experiment.scale.members).save(out / "segment.json")
    rows = [
        {"t": t, "error of phi(t) (%)": e, "error of the pair (%)": p}
        for t, e, p in zip(found.t, alone, pair, strict=True)
    ]
    falls = next((t for t, value in zip(found.t, pair, strict=True) if value < alone[0] - 0.1), 1.0)
    late = [value for t, value in zip(found.t, pair, strict=True) if t >= 0.4]
    near = figure("two-network ensemble as good as the endpoints' ensemble from t")
    early = figure("two-network ensemble error starts to fall at t")
    soon = f"from t = {falls:.2f}; in the paper from {early:g}"
    says = f"from t = {near:g} on it is as good as that of both ends, to half a point"
    text = f"at most {max(late):.2f} % from there, {pair[-1]:.2f} % with both ends, {alone[0]:.2f} % alone"
    return rows, [
        Claim("the ensemble improves soon on the way, by a tenth of a point", falls <= early + claims.TWENTIETH, soon),
        Claim(says, max(late) <= claims.limit(pair[-1]), text),
    ]


def curve_ensemble(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    found = voters(experiment, "polychain", experiment.scale.members)
    found.save(out / "points.json")
    along = {"segment": Segment(*experiment.networks(2)), "polychain": experiment.curve("polychain")}
    keep({name: experiment.scan(name, curve) for name, curve in along.items()}, out)
    ends, three = (100 * report(experiment, experiment.networks(k)).scores["error"] for k in (2, 3))
    return _rows_of_points(experiment, found, ends, three), claims.on_points(found, ends, three)


def _rows_of_points(experiment: Experiment, found: CurveEnsemble, ends: float, three: float) -> list[dict[str, Any]]:
    same = experiment.recipe.dataset == "CIFAR-100" and experiment.recipe.model == "resnet_bottleneck164"
    scaled = dict.fromkeys(("train loss", "per point"), "the same after temperature scaling (%)")
    paper = {"none": "error of the 50-point polychain ensemble (%)", **scaled}
    points = f"{len(found.t)} points of the chain, scaled by"
    rows = [
        {
            "ensemble": f"{points} {name}",
            **quoted("error (%)", 100 * own["error"], paper.get(name), same),
            "nll": own["nll"],
        }
        for name, own in found.scores.items()
    ]
    others = (
        ("both ends", ends, "error of the ensemble of the two endpoints (%)"),
        ("three networks", three, "error of three independent networks (%)"),
    )
    return rows + [{"ensemble": name, **quoted("error (%)", value, what, same)} for name, value, what in others]


def ensembles(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    rows = []
    for method in METHODS:
        runs, pool = (
            [members for members, _ in runs_of(experiment, method, seeds)],
            pooled(experiment, method, seeds, out),
        )
        first = 100 * pool.growth[len(runs[0]) - 1]["error"]
        alone = [first, *(100 * report(experiment, run).scores["error"] for run in runs[1:])]
        where = {"dataset": experiment.recipe.dataset, "model": experiment.recipe.in_ensembles, "method": method}
        row: dict[str, Any] = {"method": method, "networks per run": len(runs[0])}
        row |= beside("1B (%)", statistics.mean(alone), "ensembles", "error_1B", **where)
        row |= beside("+-", statistics.stdev(alone) if seeds > 1 else None, "ensembles", "error_1B_std", **where)
        for k in range(2, min(seeds, 3) + 1):
            row |= beside(
                f"{k}B (%)", 100 * pool.growth[k * len(runs[0]) - 1]["error"], "ensembles", f"error_{k}B", **where
            )
        rows.append(row)
    return rows, claims.on_budgets(rows, seeds)


def runs_of(experiment: Experiment, method: str, seeds: int) -> list[tuple[Sequence[Weights], list[float]]]:
    """The networks of each run of a method, and the epochs spent until each was collected, including earlier runs."""
    if method == "Ind":
        return [([experiment.network(seed)], [(seed + 1) * experiment.recipe.epochs]) for seed in range(seeds)]
    walks = [(experiment.snapshot if method == "SSE" else experiment.fge)(seed) for seed in range(seeds)]
    return [
        (walk.members, _spent(experiment, method, walk, k * experiment.recipe.epochs)) for k, walk in enumerate(walks)
    ]


def _spent(experiment: Experiment, method: str, walk: Walk, earlier: int) -> list[float]:
    """FGE starts after the last of its branching points, and walks from one after another."""
    before = max(experiment.recipe.walk.starts) if method == "FGE" and experiment.recipe.walk else 0
    return [
        earlier + (before + (k * len(part.lr) + i) / part.steps)
        for k, part in enumerate(walk.traces)
        for i in part.collected
    ]


def pooled(experiment: Experiment, method: str, seeds: int, out: Path) -> Report:
    """The ensemble of all runs of a method, network after network; stored, since several entries need it."""
    runs = runs_of(experiment, method, seeds)
    file = experiment.folder / f"pooled-{method}-{seeds}-{runs[-1][0][-1].digest()[:8]}.json"
    if not file.is_file():
        found = report(experiment, [*chain(*(members for members, _ in runs))])
        replace(found, epochs=[*chain(*(epochs for _, epochs in runs))]).save(file)
    found = Report.load(file)
    found.save(out / f"{method}.json")
    return found


def fge_trace(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    trace = experiment.fge(0).traces[-1]
    trace.save(out / "trace.json")
    growth = {method: pooled(experiment, method, seeds, out) for method in ("SSE", "FGE")}
    rows = []
    for name, found in growth.items():
        for k, (epoch, all_so_far, last) in enumerate(
            zip(found.epochs or [], found.growth, found.members, strict=True), start=1
        ):
            errors = {
                "error of the ensemble (%)": 100 * all_so_far["error"],
                "its last network (%)": 100 * last["error"],
            }
            rows.append({"method": name, "networks": k, "epochs": epoch, **errors})
    return rows, claims.on_trace(trace, rows, seeds)


def last_walk(experiment: Experiment) -> Sequence[Weights]:
    """The members of FGE from its last start."""
    walk = experiment.fge(0)
    return walk.members[-len(walk.traces[-1].collected) :]


def diversity(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    same = experiment.recipe.dataset == "CIFAR-100" and experiment.recipe.model == "preresnet164"
    groups = {
        "independent": experiment.networks(2),
        "FGE": last_walk(experiment),
        "SSE": experiment.snapshot(0).members,
    }
    rows = []
    for name, members in groups.items():
        found, (disagreement, distance, accuracy) = report(experiment, members), DIVERSITY[name]
        row = {"networks": name, **quoted("disagreement (%)", 100 * found.scores["disagreement"], disagreement, same)}
        row |= quoted("distance", statistics.mean(found.distances), distance, same)
        row["error of one (%)"] = 100 * statistics.mean(entry["error"] for entry in found.members)
        row["error of one (%) (paper)"] = 100 - figure(accuracy) if accuracy and same else None
        rows.append(row)
    return rows, claims.on_diversity(rows)


def fge_path(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    members = last_walk(experiment)
    path, knots = PolyChain.through([member.bare().to(experiment.device) for member in members]), len(members) - 1
    scan = experiment.scan("fge-path", path, points=[k / (8 * knots) for k in range(8 * knots + 1)])
    keep({"fge-path": scan}, out)
    return between_members(scan, knots)


def between_members(scan: Scan, knots: int) -> Outcome:
    """The best point of each piece of a chain against its two ends; the loss with and without weight decay."""
    train, test = scan.values["train"], scan.values["test"]
    measured = {
        "train loss": train["loss"],
        "train cross-entropy": train["data_loss"],
        "test error (%)": 100 * test["error"],
    }
    per = (len(test["error"]) - 1) // knots
    rows: list[dict[str, Any]] = []
    for k in range(knots):
        row: dict[str, Any] = {"between members": f"{k + 1} and {k + 2}"}
        for name, values in measured.items():
            piece = values[per * k : per * (k + 1) + 1]
            row |= {
                f"{name}, better member": float(min(piece[0], piece[-1])),
                f"{name}, best between": float(piece[1:-1].min()),
            }
        rows.append(row)
    return rows, [claims.on_pieces(rows, name) for name in measured]
