"""The entries on ensembles: pair-ensemble, curve-ensemble, ensembles, fge-trace, diversity, fge-path."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import thalweg as tw

from ..reporting.result import Claim
from . import claims
from .claims import paper_number, quoted, with_published
from .curve_entries import Outcome, keep
from .drawing import METHODS
from .experiment import Experiment, Measurements

POINTS = "points-{}-{}-{}.json"
WALKS = {"SSE": "snapshot", "FGE": "fge"}
SCALED = {  # what the paper calls the errors of points of a chain, by how they are scaled
    "none": "error of the 50-point polychain ensemble (%)",
    **dict.fromkeys(("train loss", "per point"), "the same after temperature scaling (%)"),
}


def points_together(experiment: Experiment, curve: str, copy: Path) -> tw.CurveEnsemble:
    """Points of a curve and their predictions together; stored, since several entries need them."""
    members, found = experiment.scale.members, experiment.curve(curve)
    file = experiment.results / POINTS.format(curve, members, found.points[1].digest()[:8])
    if not file.is_file():
        tw.curve_ensemble(
            experiment.architecture,
            found,
            experiment.task,
            experiment.test,
            points=members,
            bn_batches=experiment.train,
            train=experiment.clean,
            **experiment.settings,
        ).save(file)
    result = tw.CurveEnsemble.load(file)
    result.save(copy)
    return result


def to_put_together(experiment: Experiment, *curves: str) -> Measurements:
    """What `points_together` stores."""
    members = experiment.scale.members
    return [(experiment, POINTS.format(curve, members, "*"), members) for curve in curves]


def pair_ensemble(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    found, _ = (points_together(experiment, curve, out / f"{curve}.json") for curve in ("polychain", "segment"))
    rows = [
        {"t": t, "error of phi(t) (%)": 100 * error, "error of the pair (%)": 100 * pair}
        for t, error, pair in zip(found.t, found.error, found.pair_error, strict=True)
    ]
    alone, both = rows[0]["error of phi(t) (%)"], rows[-1]["error of the pair (%)"]
    falls = next((row["t"] for row in rows if row["error of the pair (%)"] < alone - 0.1), 1.0)
    late = max(row["error of the pair (%)"] for row in rows if row["t"] >= 0.4)
    near = paper_number("two-network ensemble as good as the endpoints' ensemble from t")
    early = paper_number("two-network ensemble error starts to fall at t")
    soon = round((1 + claims.TWENTIETH) * early, 9)
    return rows, [
        Claim(
            f"the ensemble improves soon on the way, by a tenth of a point up to t = {soon:g}",
            falls <= soon,
            f"from t = {falls:.2f}; in the paper from {early:g}",
        ),
        Claim(
            f"from t = {near:g} on it is as good as that of both ends, to half a point",
            late <= claims.limit(both),
            f"at most {late:.2f} % from there, {both:.2f} % with both ends, {alone:.2f} % alone",
        ),
    ]


def curve_ensemble(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    found = points_together(experiment, "polychain", out / "points.json")
    keep(experiment.scan_curves("segment", "polychain"), out)
    ends, three = (100 * experiment.report(experiment.networks(k)).scores["error"] for k in (2, 3))
    cell = partial(quoted, "error (%)", same=experiment.recipe.name == "cifar100-resnet_bottleneck164")
    rows = [
        {
            "ensemble": f"{len(found.t)} points of the chain, scaled by {name}",
            **cell(100 * own["error"], SCALED.get(name)),
            "nll": own["nll"],
        }
        for name, own in found.scores.items()
    ]
    rows += [
        {"ensemble": "both ends", **cell(ends, "error of the ensemble of the two endpoints (%)")},
        {"ensemble": "three networks", **cell(three, "error of three independent networks (%)")},
    ]
    return rows, claims.on_points(found, ends, three)


def ensembles(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        runs, pool = members_of(experiment, method, seeds), pooled(experiment, method, seeds, out)
        each = len(runs[0])
        at_budget = [100 * pool.growth[k * each - 1]["error"] for k in range(1, seeds + 1)]
        alone = [at_budget[0], *(100 * experiment.report(run).scores["error"] for run in runs[1:])]
        where = {"dataset": experiment.recipe.dataset, "model": experiment.recipe.in_ensembles, "method": method}
        spread = statistics.stdev(alone) if seeds > 1 else None
        rows.append(
            {
                "method": method,
                "networks per run": each,
                **with_published("1B (%)", statistics.mean(alone), "ensembles", "error_1B", **where),
                **with_published("+-", spread, "ensembles", "error_1B_std", **where),
            }
        )
        for k in range(2, min(seeds, 3) + 1):
            rows[-1] |= with_published(f"{k}B (%)", at_budget[k - 1], "ensembles", f"error_{k}B", **where)
    return rows, [*claims.on_budgets(rows, seeds)]


def members_of(experiment: Experiment, method: str, seeds: int) -> list[Sequence[tw.Weights]]:
    """The networks of each run of a method."""
    if method == "Ind":
        return [[network] for network in experiment.networks(seeds)]
    return [experiment.walk(WALKS[method], seed).members for seed in range(seeds)]


def spent(experiment: Experiment, method: str, seeds: int) -> list[float]:
    """The epochs until each network was collected, including earlier runs; FGE starts after the last of its branching
    points, and walks from one after another.
    """
    recipe = experiment.recipe
    if method == "Ind":
        return [(seed + 1) * recipe.epochs for seed in range(seeds)]
    before = max(recipe.walk.starts) if method == "FGE" and recipe.walk else 0
    return [
        seed * recipe.epochs + (before + (k * len(part.lr) + i) / part.steps)
        for seed in range(seeds)
        for k, part in enumerate(experiment.walk(WALKS[method], seed).traces)
        for i in part.collected
    ]


def pooled(experiment: Experiment, method: str, seeds: int, out: Path) -> tw.Report:
    """The ensemble of all runs of a method, network after network; stored, since several entries need it."""
    members = [member for run in members_of(experiment, method, seeds) for member in run]
    file = experiment.results / f"pooled-{method}-{seeds}-{members[-1].digest()[:8]}.json"
    if not file.is_file():
        replace(experiment.report(members), epochs=spent(experiment, method, seeds)).save(file)
    found = tw.Report.load(file)
    found.save(out / f"{method}.json")
    return found


def fge_trace(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    trace = experiment.walk("fge").traces[-1]
    trace.save(out / "trace.json")
    growth = {method: pooled(experiment, method, seeds, out) for method in WALKS}
    rows = [
        {
            "method": method,
            "networks": k + 1,
            "epochs": epoch,
            "error of the ensemble (%)": 100 * found.growth[k]["error"],
            "its last network (%)": 100 * found.members[k]["error"],
        }
        for method, found in growth.items()
        for k, epoch in enumerate(found.epochs or [])
    ]
    return rows, [*claims.on_trace(trace, rows, seeds)]


def last_walk(experiment: Experiment) -> Sequence[tw.Weights]:
    """The members of FGE from its last start."""
    walk = experiment.walk("fge")
    return walk.members[-len(walk.traces[-1].collected) :]


def diversity(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    same = experiment.recipe.name == "cifar100-preresnet164"
    groups = {
        "independent": experiment.networks(2),
        "FGE": last_walk(experiment),
        "SSE": experiment.walk("snapshot").members,
    }
    reports = {name: experiment.report(members) for name, members in groups.items()}
    rows = [
        {
            "networks": name,
            **quoted("disagreement (%)", 100 * found.scores["disagreement"], disagreement, same),
            **quoted("distance", statistics.mean(found.distances), distance, same),
            "error of one (%)": 100 * statistics.mean(entry["error"] for entry in found.members),
            "error of one (%) (paper)": 100 - paper_number(accuracy) if accuracy and same else None,
        }
        for (name, found), (disagreement, distance, accuracy) in zip(
            reports.items(), claims.DIVERSITY.values(), strict=True
        )
    ]
    return rows, claims.on_diversity(rows)


def fge_path(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    members = last_walk(experiment)
    path, knots = tw.PolyChain.through([member.bare().to(experiment.device) for member in members]), len(members) - 1
    scan = experiment.scan("fge-path", path, points=[k / (8 * knots) for k in range(8 * knots + 1)])
    return between_members(keep({"fge-path": scan}, out)["fge-path"], knots)


def between_members(scan: tw.Scan, knots: int) -> Outcome:
    """The best point of each piece of a chain against its two ends; the loss with and without weight decay."""
    train, test = scan.values["train"], scan.values["test"]
    measured = {
        "train loss": train["loss"],
        "train cross-entropy": train["data_loss"],
        "test error (%)": 100 * test["error"],
    }
    per = (len(test["error"]) - 1) // knots
    rows: list[dict[str, Any]] = [{"between members": f"{k} and {k + 1}"} for k in range(1, knots + 1)]
    for (k, row), (name, values) in product(enumerate(rows), measured.items()):
        piece = values[per * k : per * (k + 1) + 1]
        row[f"{name}, better member"] = float(min(piece[0], piece[-1]))
        row[f"{name}, best between"] = float(piece[1:-1].min())
    return rows, [claims.on_pieces(rows, name) for name in measured]
