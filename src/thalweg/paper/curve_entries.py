"""The entries on curves: curves, profile, planes, two-bends, trivial, cost."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

import thalweg as tw

from ..reporting.axes import factor
from ..reporting.result import PAPER, Claim
from ..results import titled
from ..runtime.streams import on_side_stream
from ..weightspace.origin import OriginPath
from .claims import HALF, TWENTIETH, limit, paper_number, quoted, row_of, with_published
from .drawing import PANELS
from .experiment import KINDS, Experiment, Measurements, Need

NETWORKS = [Need("network", 0), Need("network", 1)]
POLYCHAIN = [*NETWORKS, Need("polychain", 0)]
CURVES = [*NETWORKS, Need("bezier", 0), Need("polychain", 0)]
TABLE = (
    ("train", "loss", ("min", "int", "mean", "max")),
    ("train", "error", ("min", "int", "max")),
    ("test", "error", ("min", "int", "max")),
)
PUBLISHED = {"the paper": "curves", "its public code": "reference_curves"}
# points, and times the loss, from which on a curve of the paper's is not one along which they stay
FAR, TWICE = 5.0, 2.0
HIGH = ("vgg16", "resnet158", "wrn28_10")  # of which the paper says how high the error on the line is
Outcome = tuple[list[dict[str, Any]], list[Claim]]


def scans_of(experiment: Experiment, out: Path) -> dict[str, tw.Scan]:
    """Both ends alone, the straight line, and both curves."""
    return keep({"single": experiment.scan_ends(), **experiment.scan_curves("segment", *KINDS)}, out)


def scanned(experiment: Experiment, seeds: int) -> Measurements:
    """What `scans_of` measures."""
    return [*experiment.to_scan("single", points=2), *experiment.to_scan("segment", *KINDS)]


def keep(scans: dict[str, tw.Scan], out: Path) -> dict[str, tw.Scan]:
    """Save them next to the result, for the figures."""
    for name, scan in scans.items():
        scan.save(out / f"{name.replace(' ', '-')}.json")
    return scans


def curves(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """The paper's table, transposed: a column for each curve."""
    scans = scans_of(experiment, out)
    keys = "length_ratio", *(f"{data}_{quantity}_{end}" for data, quantity, ends in TABLE for end in ends)
    rows = [{"": key.replace("_", " ") + (" (%)" if "error" in key else "")} for key in keys]
    for (row, key), (name, scan) in product(zip(rows, keys, strict=True), scans.items()):
        row |= with_published(name, _measured(scan, key), "curves", key, **_row_of_curves(experiment, name))
    as_published = _as_published(rows) if experiment.recipe.changes else []
    return rows, [*_low_all_along(experiment, scans), _losses_agree(scans), *as_published]


def _as_published(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Whether a changed setting, where the paper does not give all of its own, explains the numbers of the paper."""
    named = {row[""]: row for row in rows}
    ratios = [(f"length ratio of the {kind}", named["length ratio"], kind) for kind in KINDS]
    return [
        Claim(
            f"the {what} is the paper's {row[kind + PAPER]:g}, within a twentieth",
            abs(row[kind] - row[kind + PAPER]) <= TWENTIETH * row[kind + PAPER],
            f"{row[kind]:.3g}",
        )
        for what, row, kind in [("train loss of the ends", named["train loss max"], "single"), *ratios]
        if row.get(kind + PAPER) is not None
    ]


def _losses_agree(scans: Mapping[str, tw.Scan]) -> Claim:
    """The mean over the curve's length is what loss (1) is about, that over t loss (2)."""
    found = {name: scans[name].summary()["train"]["loss"] for name in KINDS}
    return Claim(
        "the mean train loss over the length of a curve and over t are close, within a twentieth",
        all(abs(loss["int"] - loss["mean"]) <= TWENTIETH * loss["int"] for loss in found.values()),
        ", ".join(f"{loss['int']:.3g} and {loss['mean']:.3g} on the {name}" for name, loss in found.items()),
    )


def _row_of_curves(experiment: Experiment, curve: str) -> dict[str, Any]:
    """Where the table of curves has it; the reference code names networks as we do."""
    return {
        "dataset": experiment.recipe.dataset,
        "model": experiment.recipe.in_curves or experiment.recipe.title,
        "curve": curve,
    }


def _measured(scan: tw.Scan, key: str) -> float | None:
    if key == "length_ratio":
        return scan.length_ratio
    data, quantity, summary = key.split("_")
    value = scan.summary()[data][quantity].get(summary)
    return None if value is None else factor(quantity) * value


def _low_all_along(experiment: Experiment, scans: Mapping[str, tw.Scan]) -> Iterator[Claim]:
    losses, errors = (
        {name: highest(scan, *of) for name, scan in scans.items()} for of in (("train", "loss"), ("test", "error"))
    )
    ends, middle = losses["single"], 100 * np.median(scans["segment"].values["test"]["error"])
    least, whose = _barrier(experiment)
    yield Claim(
        f"on the straight line the train loss rises to at least {least:.1f} times that of its ends ({whose})",
        losses["segment"] >= least * ends,
        f"{losses['segment'] / ends:.1f} times, {losses['segment']:.3g} on it and {ends:.3g} at its ends; "
        f"median test error {middle:.1f} %",
    )
    theirs = row_of("curves", **_row_of_curves(experiment, "segment")).get("test_error_max")
    if experiment.recipe.model in HIGH and theirs is not None:
        worst, chance = 100 * errors["segment"], 100 - 100 / experiment.recipe.classes
        yield Claim(
            f"on the line the error reaches at least {theirs - HALF:.2f} %, the paper's {theirs:g} less half a point",
            worst >= theirs - HALF,
            f"{worst:.2f} %, chance {chance:.0f} %",
        )
    for name in KINDS:
        above, times = 100 * (errors[name] - errors["single"]), losses[name] / ends
        for whose, points, share in _bounds(experiment, name):
            error = [f"the error stays within {points:.2f} points of the worse end"] if points < inf else []
            stays = "" if error else "stays "
            loss = [f"the train loss {stays}within {share:.2f} times that end's"] if share < inf else []
            yield Claim(
                f"along the {name} {' and '.join(error + loss)} ({whose})",
                above <= points and times <= share,
                f"{above:+.2f} points, {times:.3f} times",
            )


def highest(scan: tw.Scan, data: str = "train", quantity: str = "loss") -> float:
    return float(scan.values[data][quantity].max())


def _barrier(experiment: Experiment) -> tuple[float, str]:
    """How many times the train loss of its ends that of the straight line reaches at least."""
    line, ends = (row_of("curves", **_row_of_curves(experiment, name)) for name in ("segment", "single"))
    if not line:
        return TWICE, "our bound"
    return (1 - TWENTIETH) * line["train_loss_max"] / ends["train_loss_max"], "the paper"


def _bounds(experiment: Experiment, curve: str) -> Iterator[tuple[str, float, float]]:
    """How far a curve may rise above its worse end, in points of error and in times the train loss, by the paper and by
    its code; without bound where their own curve leaves its ends, and not at all where both do.
    """
    for whose, table in PUBLISHED.items():
        here, ends = (row_of(table, **_row_of_curves(experiment, name)) for name in (curve, "single"))
        if here:
            points = limit(here["test_error_max"] - ends["test_error_max"])
            times = (1 + TWENTIETH) * here["train_loss_max"] / ends["train_loss_max"]
            if points < FAR or times < TWICE:
                yield whose, points if points < FAR else inf, times if times < TWICE else inf


def profile(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    scans = scans_of(experiment, out)
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
    return rows, [*_low_all_along(experiment, scans)]


def scanned_planes(experiment: Experiment, seeds: int) -> Measurements:
    side = experiment.recipe.grid
    names = [f"plane-{name}-{side}" for name in ("three-optima", *KINDS)]
    return [*experiment.to_scan(*names, points=side**2), *experiment.to_scan(*KINDS)]


def planes(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    a, b, c = experiment.networks(3)
    curves = {kind: experiment.curve(kind) for kind in KINDS}
    thirds = {"three optima": c, **{kind: curve.bends[0] for kind, curve in curves.items()}}
    side = experiment.recipe.grid
    scans = {
        name: experiment.scan(
            f"plane-{name.replace(' ', '-')}-{side}",
            tw.Plane(a, b, third),
            grid=(side, side),
            overlay={type(curve).__name__: curve for kind, curve in curves.items() if kind == name},
        )
        for name, third in thirds.items()
    }
    keep({f"plane {name}": scan for name, scan in scans.items()}, out)
    rows = [
        {"plane": name, "train loss min": scan.values["train"]["loss"].min().item(), "train loss max": highest(scan)}
        for name, scan in scans.items()
    ]
    worst = max(map(highest, experiment.scan_curves(*KINDS).values()))
    between = min(_halfway(scans["three optima"]))
    return rows, [
        Claim(
            "the three optima are apart, each in a hollow of its own, and the curves lead around what is between",
            worst < 0.5 * between,
            f"highest train loss {worst:.3g} on the curves, at least {between:.3g} halfway between two of the three",
        )
    ]


def _halfway(scan: tw.Scan) -> list[float]:
    """The train loss at the points of the grid nearest to halfway between each two of the plane's three networks."""
    assert scan.x is not None
    assert scan.y is not None
    middles = [np.mean(pair, axis=0) for pair in combinations(scan.corners, 2)]
    nearest = [(np.abs(scan.y - y).argmin(), np.abs(scan.x - x).argmin()) for x, y in middles]
    return [float(scan.values["train"]["loss"][place]) for place in nearest]


def two_bends(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    one, two = experiment.curve("polychain", 0), experiment.curve("polychain", 1)
    apart, ends = one.bends[0].distance(two.bends[0]), one.start.distance(one.end)
    same = experiment.recipe.name == "cifar10-vgg16"
    of_bends, of_ends = "distance between the bends of two polychains with the same ends", "distance between those ends"
    row = quoted("bends apart", apart, of_bends, same) | quoted("ends apart", ends, of_ends, same)
    share = (1 - TWENTIETH) * paper_number(of_bends) / paper_number(of_ends)
    worst = [highest(experiment.scan(name, curve)) for name, curve in (("polychain", one), ("polychain-1", two))]
    alone = highest(experiment.scan_ends())
    return [{**row, "ratio": apart / ends}], [
        Claim(
            "curves between the same networks are not unique: their bends lie at least "
            f"{share:.2f} as far apart as the ends",
            apart >= share * ends,
            f"{apart:.1f} against {ends:.1f}, {apart / ends:.2f}",
        ),
        *(
            Claim(
                f"and both are low all along, at most {times:.2f} times the ends' loss ({whose})",
                max(worst) <= times * alone,
                f"worst train loss {worst[0]:.3g} and {worst[1]:.3g}, {alone:.3g} at the ends",
            )
            for whose, _, times in _bounds(experiment, "polychain")
            if times < inf
        ),
    ]


def trivial(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    """Through the origin: predictions stay, the loss rises."""
    ends, last = experiment.networks(2), experiment.scale.points - 1
    path = OriginPath(experiment.architecture, *ends)
    at = [k / last for k in range(last + 1) if 2 * k != last]
    exact = replace(experiment.compute, precision="fp32")  # bf16 would change some predictions near the origin
    scan = experiment.scan("trivial", [path.point(s) for s in at], bn_batches=None, compute=exact)
    keep({"path": replace(scan, t=np.array(at))}, out)
    losses, errors = scan.values["train"]["data_loss"].tolist(), scan.values["test"]["error"].tolist()
    rows = [
        {"s": at[k], "t": path.shrink(at[k]), "train data loss": losses[k], "test error (%)": 100 * errors[k]}
        for k in np.linspace(0, len(at) - 1, min(len(at), 11)).round().astype(int)
    ]
    (off, agree), rise = _in_float64(experiment, ends), max(losses) / losses[0]
    return rows, [
        Claim(
            "predictions are kept and logits multiplied by t^n, for t from 0.05 to 1 in float64",
            off < 1e-9 and agree == 1,
            f"off by at most {off:.1e}; {100 * agree:.4g} % of predictions the same",
        ),
        Claim(
            "while the train data loss goes up substantially",
            rise > 1.5,
            f"to {rise:.3g} times that of the first network",
        ),
    ]


def _in_float64(experiment: Experiment, ends: Sequence[tw.Weights]) -> tuple[float, float]:
    """How far logits are from t^n times those of the end, relative to them, and the share of equal predictions; on
    1,000 test images, at t = 0.05, 0.1, ..., 1.
    """
    module = deepcopy(experiment.architecture).cpu().double().eval()
    mean, std = (torch.tensor(v).double().reshape(1, -1, 1, 1) for v in experiment.recipe.colours)
    x = (experiment.images[1][0][:1000].double() / 255 - mean) / std
    exact = [replace(tw.Weights.of(module), vector=end.vector.cpu().double()) for end in ends]
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
    with on_side_stream(experiment.device):
        times = experiment.timer(experiment.compute, rounds=9).training()
    extra = 100 * (times["curve step"].median / times["plain step"].median - 1)
    most = paper_number("extra time of a curve epoch over a plain epoch (%)")
    return [{"step": name, "ms": 1e3 * timing.median} for name, timing in times.items()], [
        Claim(f"a curve epoch costs less than {most:.0f} % more than a plain one", extra < most, f"{extra:+.1f} %")
    ]
