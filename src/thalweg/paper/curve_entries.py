"""The entries on curves: curves, profile, planes, two-bends, width, trivial, cost."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..bench import Bench
from ..loading import Inputs
from ..reporting.axes import factor
from ..reporting.result import Claim
from ..results import Scan, titled
from ..runtime.cuda_graphs import aside
from ..weightspace.curves import Segment
from ..weightspace.origin import OriginPath
from ..weightspace.planes import Plane
from ..weightspace.weights import Weights
from .claims import TWENTIETH, limit
from .drawing import PANELS
from .experiment import Experiment, Need
from .published import beside, figure, quoted, row_of

NETWORKS = [Need("network", 0), Need("network", 1)]
CURVES = [*NETWORKS, Need("bezier", 0), Need("polychain", 0)]
TABLE = (
    ("train", "loss", ("min", "int", "mean", "max")),
    ("train", "error", ("min", "int", "max")),
    ("test", "error", ("min", "int", "max")),
)
BENDS = "distance between the bends"
PUBLISHED = {"the paper": "curves", "its public code": "reference_curves"}
# points, and times the loss, from which on a curve of the paper's is not one along which they stay
FAR, TWICE = 5.0, 2.0
Outcome = tuple[list[dict[str, Any]], list[Claim]]


def scans_of(experiment: Experiment) -> dict[str, Scan]:
    """Both ends alone, the straight line, and both curves."""
    a, b = experiment.networks(2)
    targets = {
        "segment": Segment(a, b),
        "bezier": experiment.curve("bezier"),
        "polychain": experiment.curve("polychain"),
    }
    return {
        "single": experiment.scan("single", [a, b], bn_batches=None),
        **{k: experiment.scan(k, v) for k, v in targets.items()},
    }


def curves(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """The paper's table, turned: a column for each curve."""
    scans = scans_of(experiment)
    rows = []
    for key in ("length_ratio", *(f"{d}_{q}_{k}" for d, q, keys in TABLE for k in keys)):
        row: dict[str, Any] = {"": key.replace("_", " ") + (" (%)" if "error" in key else "")}
        for name, scan in scans.items():
            row |= beside(name, _measured(scan, key), "curves", key, **_row_of_curves(experiment, name))
        rows.append(row)
    keep(scans, out)
    return rows, [*_low_all_along(experiment, scans), *_losses_agree(scans)]


def _losses_agree(scans: Mapping[str, Scan]) -> list[Claim]:
    """The mean over the curve's length is what loss (1) is about, that over t loss (2)."""
    found = {name: scans[name].summary()["train"]["loss"] for name in ("bezier", "polychain")}
    close = all(abs(loss["int"] - loss["mean"]) <= TWENTIETH * loss["int"] for loss in found.values())
    text = ", ".join(f"{loss['int']:.3g} and {loss['mean']:.3g} on the {name}" for name, loss in found.items())
    return [
        Claim("the mean train loss over the length of a curve and over t are close, within a twentieth", close, text)
    ]


def _row_of_curves(experiment: Experiment, curve: str) -> dict[str, Any]:
    """Where the table of curves has it; the reference code names networks as we do."""
    return {
        "dataset": experiment.recipe.dataset,
        "model": experiment.recipe.in_curves or experiment.recipe.title,
        "curve": curve,
    }


def _measured(scan: Scan, key: str) -> float | None:
    if key == "length_ratio":
        return scan.length_ratio
    data, quantity, summary = key.split("_")
    value = scan.summary()[data][quantity].get(summary)
    return 100 * value if value is not None and quantity == "error" else value


def _low_all_along(experiment: Experiment, scans: dict[str, Scan]) -> list[Claim]:
    line, ends = _highest(scans["segment"]), _highest(scans["single"])
    middle, chance = float(np.median(scans["segment"].values["test"]["error"])), 1 - 1 / experiment.recipe.classes
    text = f"train loss {line:.3g} on it, {ends:.3g} at its ends; median test error {100 * middle:.1f} %"
    claims = [Claim("the straight line meets a barrier", line > 2 * ends, text)]
    if experiment.recipe.model == "vgg16":
        worst = _highest(scans["segment"], "test", "error")
        says = "in its middle the network knows nothing"
        claims.append(
            Claim(says, worst > 0.99 * chance, f"test error {100 * worst:.1f} %, chance {100 * chance:.0f} %")
        )
    for name in ("bezier", "polychain"):
        errors = [_highest(scans[which], "test", "error") for which in (name, "single")]
        above, times = 100 * (errors[0] - errors[1]), _highest(scans[name]) / ends
        for whose, points, share in _bars(experiment, name):
            error = [f"the error stays within {points:.2f} points of the worse end"] if points < inf else []
            loss = [f"the train loss within {share:.2f} times that end's"] if share < inf else []
            says, holds = " and ".join(error + loss), above <= points and times <= share
            claims.append(Claim(f"along the {name} {says} ({whose})", holds, f"{above:+.2f} points, {times:.3f} times"))
    return claims


def _highest(scan: Scan, data: str = "train", quantity: str = "loss") -> float:
    return float(scan.values[data][quantity].max())


def _bars(experiment: Experiment, curve: str) -> list[tuple[str, float, float]]:
    """How far a curve may rise above its worse end, in points of error and in times the train loss, by the paper and by
    its code; without bound where their own curve leaves its ends, and not at all where both do.
    """
    bars = []
    for whose, table in PUBLISHED.items():
        here, ends = (row_of(table, **_row_of_curves(experiment, name)) for name in (curve, "single"))
        if here:
            points = limit(here["test_error_max"] - ends["test_error_max"])
            times = (1 + TWENTIETH) * here["train_loss_max"] / ends["train_loss_max"]
            bars.append((whose, points if points < FAR else inf, times if times < TWICE else inf))
    return [bar for bar in bars if bar[1:] != (inf, inf)]


def profile(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    scans = scans_of(experiment)
    keep(scans, out)
    rows = [
        {
            "curve": name,
            "t": float(t),
            **{f"{d} {titled(q)}": factor(q) * float(scan.values[d][q][k]) for d, q in PANELS},
        }
        for name, scan in scans.items()
        if scan.t is not None
        for k, t in enumerate(scan.t)
        if k % max(1, (len(scan.t) - 1) // 8) == 0
    ]
    return rows, _low_all_along(experiment, scans)


def keep(scans: Mapping[str, Scan], out: Path) -> None:
    """Next to the result, for the figures."""
    for name, scan in scans.items():
        scan.save(out / f"{name.replace(' ', '-')}.json")


def planes(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    a, b, c = experiment.networks(3)
    curves = {kind: experiment.curve(kind) for kind in ("bezier", "polychain")}
    thirds = {"three optima": c, **{kind: curve.bends[0] for kind, curve in curves.items()}}
    side, rows, scans = (experiment.scale.grid, experiment.scale.grid), [], {}
    for name, third in thirds.items():
        plane = Plane(a, b, third)
        drawn = {type(curves[name]).__name__: curves[name]} if name in curves else {}
        scans[name] = experiment.scan(f"plane-{name.replace(' ', '-')}", plane, grid=side, overlay=drawn)
        lowest = float(scans[name].values["train"]["loss"].min())
        rows.append({"plane": name, "train loss min": lowest, "train loss max": _highest(scans[name])})
    keep({f"plane {name}": scan for name, scan in scans.items()}, out)
    highest = max(_highest(experiment.scan(kind, curve)) for kind, curve in curves.items())
    between = min(_halfway(scans["three optima"]))
    says = "the three optima are apart, each in a hollow of its own, and the curves lead around what is between"
    text = f"highest train loss {highest:.3g} on the curves, at least {between:.3g} halfway between two of the three"
    return rows, [Claim(says, highest < 0.5 * between, text)]


def _halfway(scan: Scan) -> list[float]:
    """The train loss at the points of the grid nearest to halfway between each two of the plane's three networks."""
    assert scan.x is not None
    assert scan.y is not None
    found = []
    for one, two in combinations(scan.corners, 2):
        x, y = ((a + b) / 2 for a, b in zip(one, two, strict=True))
        column, row = int(np.abs(scan.x - x).argmin()), int(np.abs(scan.y - y).argmin())
        found.append(float(scan.values["train"]["loss"][row, column]))
    return found


def two_bends(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    one, two = experiment.curve("polychain", 0), experiment.curve("polychain", 1)
    apart, ends = one.bends[0].distance(two.bends[0]), one.start.distance(one.end)
    same = experiment.recipe.dataset == "CIFAR-10" and experiment.recipe.title == "VGG-16"
    bends = quoted("bends apart", apart, f"{BENDS} of two polychains with the same ends", same)
    rows = [{**bends, **quoted("ends apart", ends, "distance between those ends", same), "ratio": apart / ends}]
    worst = [_highest(experiment.scan(name, curve)) for name, curve in (("polychain", one), ("polychain-1", two))]
    share = (
        (1 - TWENTIETH)
        * figure(f"{BENDS} of two polychains with the same ends")
        / figure("distance between those ends")
    )
    says = (
        f"curves between the same networks are not unique: their bends lie at least {share:.2f} as far apart as the "
        "ends"
    )
    alone = _highest(experiment.scan("single", experiment.networks(2), bn_batches=None))
    low = f"worst train loss {worst[0]:.3g} and {worst[1]:.3g}, {alone:.3g} at the ends"
    along = [
        Claim(
            f"and both are low all along, at most {times:.2f} times the ends' loss ({whose})",
            max(worst) <= times * alone,
            low,
        )
        for whose, _, times in _bars(experiment, "polychain")
        if times < inf
    ]
    return rows, [Claim(says, apart >= share * ends, f"{apart:.1f} against {ends:.1f}, {apart / ends:.2f}"), *along]


def of_all_widths(experiment: Experiment) -> list[tuple[Experiment, Need]]:
    return [
        (experiment.wide(breadth), need)
        for breadth in experiment.scale.widths
        for need in (*NETWORKS, Need("bezier", 0))
    ]


def width(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    rows: list[dict[str, Any]] = []
    for breadth in experiment.scale.widths:
        part = experiment.wide(breadth)
        bent = part.scan("bezier", part.curve("bezier"))
        ends = part.scan("single", part.networks(2), bn_batches=None)
        losses = {"worst train loss on the curve": _highest(bent), "train loss of the ends": _highest(ends)}
        rows.append({"K": breadth, **losses, "length ratio": bent.length_ratio})
        keep({f"curve-{breadth:g}": bent, f"ends-{breadth:g}": ends}, out)
    straighter = all(after["length ratio"] < before["length ratio"] for before, after in pairwise(rows))
    text = "length ratio " + ", ".join(f"{row['length ratio']:.3f} at K = {row['K']:g}" for row in rows)
    found = [Claim("wider networks are joined by straighter curves", straighter, text)]
    rises = [max(0.0, row["worst train loss on the curve"] - row["train loss of the ends"]) for row in rows]
    if any(rises):  # where it rises at no width there is nothing to compare
        higher = f"by {rises[0]:.3g} at K = {rows[0]['K']:g} and {rises[-1]:.3g} at K = {rows[-1]['K']:g}"
        found.append(Claim("on which the train loss rises less above the worse end", rises[-1] < rises[0], higher))
    return rows, found


def trivial(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Through the origin: predictions stay, the loss rises."""
    a, b = experiment.networks(2)
    path = OriginPath(experiment.form, a, b)
    at = [
        k / (experiment.scale.points - 1)
        for k in range(experiment.scale.points)
        if 2 * k != experiment.scale.points - 1
    ]
    exact = replace(experiment.compute, precision="fp32")  # bf16 would change some predictions near the origin
    scan = experiment.scan("trivial", [path.point(s) for s in at], bn_batches=None, compute=exact)
    measured = zip(at, scan.values["train"]["data_loss"].tolist(), scan.values["test"]["error"].tolist(), strict=True)
    rows = [
        {"s": s, "t": path.shrink(s), "train data loss": loss, "test error (%)": 100 * error}
        for s, loss, error in measured
    ]
    keep({"path": replace(scan, t=np.array(at))}, out)
    off, agree = _in_float64(experiment, a, b)
    rise = max(row["train data loss"] for row in rows) / rows[0]["train data loss"]
    exactly = "predictions are kept and logits multiplied by t^n, for t from 0.05 to 1 in float64"
    return [rows[k] for k in np.linspace(0, len(rows) - 1, min(len(rows), 11)).round().astype(int)], [
        Claim(
            exactly, off < 1e-9 and agree == 1, f"off by at most {off:.1e}; {100 * agree:.4g} % of predictions the same"
        ),
        Claim(
            "while the train data loss goes up substantially",
            rise > 1.5,
            f"to {rise:.3g} times that of the first network",
        ),
    ]


def _in_float64(experiment: Experiment, *ends: Weights) -> tuple[float, float]:
    """How far logits are from t^n times those of the end, relative to them, and the share of equal predictions; on
    1,000 test images, at t = 0.05, 0.1, ..., 1.
    """
    module = deepcopy(experiment.form).cpu().double().eval()
    images, mean, std = (
        experiment.images[1][0][:1000].double() / 255,
        *(torch.tensor(v).double() for v in experiment.recipe.colours),
    )
    x = (images - mean.reshape(1, -1, 1, 1)) / std.reshape(1, -1, 1, 1)
    exact = [replace(Weights.of(module), vector=end.vector.cpu().double()) for end in ends]
    path, off, same = OriginPath(module, *exact), 0.0, 1.0
    depth = max(path.powers.values())
    with torch.no_grad():
        for end, side in zip(exact, (-1, 1), strict=True):
            end.load_into(module)
            logits = module(x)
            for s in (0.5 + side * k / 40 for k in range(1, 21)):
                path.point(s).load_into(module)
                wanted, found = path.shrink(s) ** depth * logits, module(x)
                off = max(off, float((found - wanted).norm() / wanted.norm()))
                same = min(same, float((found.argmax(1) == wanted.argmax(1)).double().mean()))
    return off, same


def cost(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    data: dict[str, Any] = {"train": experiment.clean, "test": experiment.test}
    timer = Bench(
        Inputs(experiment.form, experiment.task, experiment.train, experiment.clean, data), experiment.compute, rounds=9
    )
    with aside(experiment.device):
        times = timer.training()
    ratio = times["curve step"].median / times["plain step"].median
    rows = [{"step": name, "ms": 1e3 * timing.median} for name, timing in times.items()]
    limit = figure("extra time of a curve epoch over a plain epoch (%)")
    says = f"a curve epoch costs less than {limit:.0f} % more than a plain one"
    return rows, [Claim(says, 100 * (ratio - 1) < limit, f"{100 * (ratio - 1):+.1f} %")]
