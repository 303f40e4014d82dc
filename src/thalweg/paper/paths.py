"""The entries on curves: curves, profile, planes, two-bends, width, trivial, cost."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from ..bench import Bench
from ..evaluation.results import Scan
from ..inputs import Inputs
from ..reporting import figures
from ..weightspace.curves import Segment
from ..weightspace.origin import OriginPath
from ..weightspace.planes import Plane
from ..weightspace.weights import Weights
from .result import Claim, figure, row_of
from .workshop import Need, Workshop

NETWORKS = [Need("network", 0), Need("network", 1)]
CURVES = [*NETWORKS, Need("bezier", 0), Need("polychain", 0)]
Found = tuple[list[dict[str, Any]], list[Claim]]


def scans_of(shop: Workshop) -> dict[str, Scan]:
    """Both ends alone, the straight line, and both curves."""
    a, b = shop.networks(2)
    targets = {"segment": Segment(a, b), "bezier": shop.curve("bezier"), "polychain": shop.curve("polychain")}
    return {"single": shop.scan("single", [a, b], refresh=None), **{k: shop.scan(k, v) for k, v in targets.items()}}


def curves(shop: Workshop, out: Path, seeds: int) -> Found:
    scans = scans_of(shop)
    rows = []
    for name, scan in scans.items():
        paper = row_of("curves", dataset=shop.recipe.dataset, model=shop.recipe.title, curve=name)
        row: dict[str, Any] = {"curve": name}
        _beside(row, "length_ratio", scan.length_ratio, paper)
        for data, quantity in (("train", "loss"), ("train", "error"), ("test", "error")):
            for key in ("min", "int", "mean", "max") if quantity == "loss" else ("min", "int", "max"):
                value = scan.summary()[data][quantity].get(key)
                factor = 100 if quantity == "error" and value is not None else 1
                _beside(row, f"{data}_{quantity}_{key}", None if value is None else factor * value, paper)
        rows.append(row)
    _draw_profile(scans, out)
    return rows, _low_all_along(shop, scans)


def _beside(row: dict[str, Any], key: str, ours: float | None, paper: Any) -> None:
    row[key] = ours
    row[f"{key} (paper)"] = paper.get(key)


def _low_all_along(shop: Workshop, scans: dict[str, Scan]) -> list[Claim]:
    def most(name: str, data: str, quantity: str) -> float:
        return float(scans[name].values[data][quantity].max())

    chance = 1 - 1 / shop.recipe.classes
    middle = float(scans["segment"].values["test"]["error"][len(scans["segment"].values["test"]["error"]) // 2])
    claims = [
        Claim(
            "the straight line meets a barrier",
            most("segment", "train", "loss") > 2 * most("single", "train", "loss"),
            f"train loss {most('segment', 'train', 'loss'):.3g} on it, {most('single', 'train', 'loss'):.3g} at its ends; "
            f"test error {100 * middle:.1f} % in its middle, chance {100 * chance:.0f} %",
        )
    ]
    for name, points, share in (("bezier", 2.0, 1.02), ("polychain", 3.3, 1.2)):
        above = 100 * (most(name, "test", "error") - most("single", "test", "error"))
        times = most(name, "train", "loss") / most("single", "train", "loss")
        says = f"along the {name} the error stays within {points} points and the train loss within {share} of the worse end"
        claims.append(Claim(says, above <= points and times <= share, f"{above:+.2f} points, {times:.3f} times"))
    return claims


def profile(shop: Workshop, out: Path, seeds: int) -> Found:
    scans = scans_of(shop)
    _draw_profile(scans, out)
    rows = [
        {
            "curve": name,
            "t": float(t),
            **{f"{d} {q}": float(scan.values[d][q][k]) for d in ("train", "test") for q in ("loss", "error")},
        }
        for name, scan in scans.items()
        if scan.t is not None
        for k, t in enumerate(scan.t)
        if k % max(1, (len(scan.t) - 1) // 8) == 0
    ]
    return rows, _low_all_along(shop, scans)


def _draw_profile(scans: dict[str, Scan], out: Path) -> None:
    lines = {name.capitalize(): scan for name, scan in scans.items() if scan.t is not None}
    canvas = Figure(figsize=(10, 7.5), layout="constrained")
    panels = canvas.subplots(2, 2)
    for ax, (data, quantity) in zip(
        panels.flat, [("train", "loss"), ("test", "error"), ("train", "error"), ("test", "loss")], strict=True
    ):
        figures.profile(lines, data, quantity, ax)
    figures.save(canvas, out / "profile")


def planes(shop: Workshop, out: Path, seeds: int) -> Found:
    a, b, c = shop.networks(3)
    curves = {kind: shop.curve(kind) for kind in ("bezier", "polychain")}
    thirds = {"three optima": c, **{kind: curve.bends[0] for kind, curve in curves.items()}}
    side, rows, scans = (shop.scale.grid, shop.scale.grid), [], {}
    for name, third in thirds.items():
        plane = Plane(a, b, third)
        drawn = {name: curves[name]} if name in curves else {}
        scans[name] = shop.scan(f"plane-{name.replace(' ', '-')}", plane, grid=side, draw=drawn)
        loss = scans[name].values["train"]["loss"]
        rows.append({"plane": name, "train loss min": float(loss.min()), "train loss max": float(loss.max())})
    for data, quantity in (("train", "loss"), ("test", "error")):
        canvas = Figure(figsize=(14, 4), layout="constrained")
        figures.surfaces(scans, data, quantity, canvas.subplots(1, 3))
        figures.save(canvas, out / f"planes-{data}-{quantity}")
    highest = {kind: float(shop.scan(kind, curve).values["train"]["loss"].max()) for kind, curve in curves.items()}
    between = float(shop.scan("segment", Segment(a, b)).values["train"]["loss"].max())
    says = "in their planes the curves stay in the valley that joins the two networks"
    text = f"highest train loss {max(highest.values()):.3g} on the curves, {between:.3g} on the straight line"
    return rows, [Claim(says, max(highest.values()) < 0.5 * between, text)]


def two_bends(shop: Workshop, out: Path, seeds: int) -> Found:
    one, two = shop.curve("polychain", 0), shop.curve("polychain", 1)
    apart, ends = one.bends[0].distance(two.bends[0]), one.start.distance(one.end)
    paper = figure("distance between the bends of two polychains with the same ends"), figure("distance between those ends")
    same = shop.recipe.dataset == "CIFAR-10" and shop.recipe.title == "VGG-16"
    rows = [
        {
            "bends apart": apart,
            "bends apart (paper)": paper[0] if same else None,
            "ends apart": ends,
            "ends apart (paper)": paper[1] if same else None,
            "ratio": apart / ends,
        }
    ]
    worst = [
        float(shop.scan(f"polychain-{seed}" if seed else "polychain", curve).values["train"]["loss"].max())
        for seed, curve in enumerate((one, two))
    ]
    says = "curves between the same networks are not unique: their bends lie far apart, of the order of the ends"
    text = f"{apart:.1f} against {ends:.1f}, {apart / ends:.2f}; worst train loss {worst[0]:.3g} and {worst[1]:.3g}"
    return rows, [Claim(says, apart > 0.3 * ends, text)]


def of_all_widths(shop: Workshop) -> list[tuple[Workshop, Need]]:
    return [(shop.wide(factor), need) for factor in shop.scale.widths for need in (*NETWORKS, Need("bezier", 0))]


def width(shop: Workshop, out: Path, seeds: int) -> Found:
    rows: list[dict[str, Any]] = []
    for factor in shop.scale.widths:
        part = shop.wide(factor)
        bent = part.scan("bezier", part.curve("bezier"))
        ends = part.scan("single", part.networks(2))
        row = {
            "K": factor,
            "worst train loss on the curve": float(bent.values["train"]["loss"].max()),
            "train loss of the ends": float(ends.values["train"]["loss"].max()),
            "length ratio": bent.length_ratio,
        }
        rows.append(row)
    canvas = Figure(figsize=(9, 4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    at = [row["K"] for row in rows]
    names = ("worst train loss on the curve", "train loss of the ends")
    figures.lines({name: (at, [row[name] for row in rows]) for name in names}, "width K", "train loss", left)
    figures.lines({"Bezier": (at, [row["length ratio"] for row in rows])}, "width K", "length ratio", right)
    figures.save(canvas, out / "width")
    ratios, gaps = [row["length ratio"] for row in rows], [row[names[0]] - row[names[1]] for row in rows]
    return rows, [
        Claim(
            "wider networks are joined by straighter curves",
            ratios[-1] < ratios[0],
            f"length ratio {ratios[0]:.2f} at K = {at[0]} and {ratios[-1]:.2f} at K = {at[-1]}",
        ),
        Claim("on which the loss rises less above the ends", gaps[-1] <= gaps[0], f"{gaps[0]:.3g} and {gaps[-1]:.3g}"),
    ]


def trivial(shop: Workshop, out: Path, seeds: int) -> Found:
    """Through the origin: predictions stay, the loss rises."""
    a, b = shop.networks(2)
    path = OriginPath(shop.form, a, b)
    at = [k / (shop.scale.points - 1) for k in range(shop.scale.points) if 2 * k != shop.scale.points - 1]
    scan = shop.scan("trivial", [path.point(s) for s in at], refresh=None)
    rows = [
        {
            "s": s,
            "t": path.shrink(s),
            "train loss": float(scan.values["train"]["data_loss"][k]),
            "test error": float(scan.values["test"]["error"][k]),
        }
        for k, s in enumerate(at)
    ]
    canvas = Figure(figsize=(9, 4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    figures.lines({"through the origin": (at, [row["train loss"] for row in rows])}, "s", "train loss", left)
    figures.lines({"through the origin": (at, [100 * row["test error"] for row in rows])}, "s", "test error (%)", right)
    figures.save(canvas, out / "trivial")
    off, agree = _in_float64(shop, a, b)
    rise = max(row["train loss"] for row in rows) / rows[0]["train loss"]
    exactly = "predictions are kept and logits multiplied by t^n, for t from 0.05 to 1 in float64"
    return rows[:: max(1, len(rows) // 10)], [
        Claim(exactly, off < 1e-9 and agree == 1, f"off by at most {off:.1e}; {100 * agree:.4g} % of predictions the same"),
        Claim("while the train loss goes up substantially", rise > 1.5, f"to {rise:.3g} times that of the first network"),
    ]


def _in_float64(shop: Workshop, *ends: Weights) -> tuple[float, float]:
    """How far logits are from t^n times those of the end, relative to them, and the share of equal predictions."""
    module = deepcopy(shop.form).cpu().double().eval()
    images, mean, std = shop.images[1][0][:100].double() / 255, *(torch.tensor(v).double() for v in shop.recipe.colours)
    x = (images - mean.reshape(1, -1, 1, 1)) / std.reshape(1, -1, 1, 1)
    exact = [_doubled(end, module) for end in ends]
    path, off, same = OriginPath(module, *exact), 0.0, 1.0
    depth = max(path.powers.values())
    with torch.no_grad():
        for end, points in zip(exact, ((0.1, 0.3, 0.475), (0.525, 0.7, 0.9)), strict=True):
            end.load_into(module)
            logits = module(x)
            for s in points:
                path.point(s).load_into(module)
                wanted, found = path.shrink(s) ** depth * logits, module(x)
                off = max(off, float((found - wanted).norm() / wanted.norm()))
                same = min(same, float((found.argmax(1) == wanted.argmax(1)).double().mean()))
    return off, same


def _doubled(weights: Weights, module: nn.Module) -> Weights:
    return replace(Weights.of(module), vector=weights.vector.cpu().double())


def cost(shop: Workshop, out: Path, seeds: int) -> Found:
    data: dict[str, Any] = {"train": shop.clean, "test": shop.test}
    timer = Bench(Inputs(shop.form, shop.task, shop.train, shop.clean, data), shop.mode, rounds=9)
    times = timer.training()
    ratio = times["curve step"].median / times["plain step"].median
    rows = [{"step": name, "ms": 1e3 * timing.median} for name, timing in times.items()]
    limit = figure("extra time of a curve epoch over a plain epoch (%)")
    says = f"a curve epoch costs less than {limit:.0f} % more than a plain one"
    return rows, [Claim(says, 100 * (ratio - 1) < limit, f"{100 * (ratio - 1):+.1f} %")]
