"""Adaptive scans: as good as equal steps with fewer points, on stored profiles too; resumed; and of planes."""

import os
import runpy
import signal
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.evaluation.sampling import MOST
from thalweg.store.runs import POINTS, Run

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "adaptive.py"


class Loss(nn.Module):
    """A network of one weight per dimension; its loss is any function of them."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, batch):
        return self.weights.expand(len(batch), -1)


def scanned(function, target, **how):
    task = tw.Task(lambda outputs, targets: function(*outputs.T), lambda net, batch: (net(batch), batch), metrics={})
    return tw.scan(Loss(*[0.0] * target.layout.size), target, task, {"x": [torch.zeros(1, 1)]}, **how)


def line():
    return tw.Segment(*(tw.Weights.of(Loss(t)) for t in (0.0, 1.0)))


def narrow(t):
    return 1 + torch.exp(-(((t - 0.37) / 0.05) ** 2))


def test_adaptive_points_crowd_where_the_loss_bends():
    scan = scanned(narrow, line(), points="adaptive")
    near = np.abs(scan.t - 0.37) < 0.1
    assert np.diff(scan.t[near]).max() < 0.5 * np.diff(scan.t[~near]).max()
    assert len(scan.t) <= 30
    assert (np.diff(scan.t) > 0).all()
    found = scan.summary()["x"]["loss"]
    assert found["max"] == pytest.approx(2, abs=0.002)
    assert found["int"] == pytest.approx(1 + 0.05 * np.pi**0.5, abs=0.005)
    for t, value in zip(scan.t, scan.values["x"]["loss"], strict=True):
        assert value == pytest.approx(float(narrow(torch.tensor(t))))


@pytest.mark.parametrize("place", [0.03, 0.21, 0.37, 0.4999, 0.71, 0.98])
@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_adaptive_maximum_at_a_corner_is_within_the_tolerance(place, slope):
    def tent(t):
        return slope * t - (t - place).abs()

    scan = scanned(tent, line(), points="adaptive")
    assert len(scan.t) <= 30
    within = 0.002 * np.ptp(scan.values["x"]["loss"])
    assert scan.summary()["x"]["loss"]["max"] == pytest.approx(slope * place, abs=within)


def test_adaptive_smaller_tolerance_takes_more_points():
    counts = [len(scanned(narrow, line(), points="adaptive", tolerance=within).t) for within in (0.05, 0.005, 0.0005)]
    assert counts == sorted(set(counts))


def test_adaptive_corner_of_a_chain_is_a_point_and_no_bend():
    a, b, c = (tw.Weights.of(Loss(x, y)) for x, y in [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
    chain = tw.PolyChain.through([a, b, c])
    scan = scanned(lambda x, y: x - y, chain, points="adaptive")
    assert len(scan.t) == 13  # straight pieces need no second round
    assert 0.5 in scan.t
    assert scan.knots == [0, 0.5, 1]
    assert scan.summary()["x"]["loss"]["int"] == pytest.approx(0.5)


def test_adaptive_integral_follows_cubics():
    scan = scanned(lambda t: t**2, line(), points="adaptive")
    assert scan.summary()["x"]["loss"]["int"] == pytest.approx(1 / 3, abs=1e-12)
    even = scanned(lambda t: t**2, line(), points=len(scan.t))
    assert even.summary()["x"]["loss"]["int"] > 1 / 3 + 1e-4


@pytest.mark.parametrize("function", [lambda t: 3 + 0 * t, lambda t: t / 0, lambda t: torch.log(t - 0.5)])
def test_adaptive_flat_or_non_finite_loss_takes_one_round(function):
    with pytest.warns(UserWarning, match="NaN or infinite") if function(torch.tensor(0.0)).isnan() else nullcontext():
        scan = scanned(function, line(), points="adaptive")
    assert len(scan.t) == 13


@pytest.mark.parametrize("place", [0.01, 1 / 12, 0.2501, 1 / 3, 0.37, 0.5, 0.5 + 1e-9, 0.7071, 0.999])
@pytest.mark.parametrize("height", [-3.0, 3.0, 0.3, 0.02])
def test_adaptive_jump_is_found_without_crowding_all_points_there(place, height):
    """Slopes next to it would grow without limit as intervals become narrow."""
    scan = scanned(lambda t: 1 + (t - 0.5) ** 2 + height * (t > place), line(), points="adaptive")
    assert len(scan.t) <= 60
    assert np.diff(scan.t).min() > 1e-6
    spread = np.ptp(scan.values["x"]["loss"])
    assert scan.summary()["x"]["loss"]["int"] == pytest.approx(13 / 12 + height * (1 - place), abs=0.0045 * spread)


@pytest.mark.parametrize("points", ["adaptive", 21])
@pytest.mark.parametrize(("value", "shown"), [(float("inf"), "inf"), (-float("inf"), "-inf"), (1e300, "1.000e+300")])
def test_scan_summary_of_infinite_losses(points, value, shown):
    scan = scanned(lambda t: torch.where((t - 0.5).abs() < 0.3, value, t), line(), points=points)
    found = scan.summary()["x"]["loss"]
    assert found["min" if value < 0 else "max"] == value
    inside = (np.abs(scan.t - 0.5) < 0.3).astype(float)
    assert found["int"] == pytest.approx(value * float(np.trapezoid(inside, scan.t)), rel=0.02)
    header, row = (line.split() for line in scan.table().splitlines()[1::2])
    assert row[2 + header.index("min" if value < 0 else "max")] == shown  # after "x" and "loss"


def test_adaptive_chain_of_very_many_pieces_takes_one_round_and_no_warning():
    chain = tw.PolyChain.through([tw.Weights.of(Loss(k / 100)) for k in range(101)])
    scan = scanned(lambda t: t**2, chain, points="adaptive")
    assert len(scan.t) == 201
    assert scan.summary()["x"]["loss"]["int"] == pytest.approx(1 / 3, abs=1e-12)


def test_adaptive_rough_profile_stops_and_says_so():
    with pytest.warns(
        UserWarning, match=r"too rough for a tolerance of 1e-06 with 121 points: .* give a number of points instead"
    ):
        scan = scanned(lambda t: torch.sin(80 * t), line(), points="adaptive", tolerance=1e-6)
    assert len(scan.t) <= MOST


@pytest.mark.parametrize("kind", ["curve", "plane"])
@pytest.mark.parametrize("stop", [5, 14, 20])
def test_resume_adaptive_scan_where_it_stopped(kind, stop, tmp_path):
    case = ZOO["mlp"]
    a, b, c = (tw.Weights.of(case.module(seed)) for seed in (1, 2, 3))
    target = tw.Bezier(a, b).with_bends([3 * c.vector]) if kind == "curve" else tw.Plane(a, b, c)
    how = {"points": "adaptive", **({"tolerance": 1e-4} if kind == "curve" else {"grid": (23, 24)})}
    data, seen = {"x": case.batches()}, []
    whole = tw.scan(case.module(1), target, case.task, data, **how)
    assert stop < (len(whole.t) if kind == "curve" else whole.measured.sum())

    def predict(net, batch):
        seen.extend([1] * (signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL))
        if len(seen) == 3 * stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return case.task.predict(net, batch)

    folder = tmp_path / "run"
    with pytest.raises(Stopped, match=rf"after point {stop} of \d+"):
        tw.scan(case.module(1), target, tw.Task(case.task.loss, predict), data, run=folder, **how)
    assert len(Run(folder).lines(POINTS)) == stop
    for _ in range(2):
        found = tw.scan(case.module(1), target, case.task, data, run=folder, **how)
        assert found.to_dict() == whole.to_dict()
    other = {"grid": (23, 24)} if kind == "plane" else {"points": "adaptive", "tolerance": 1e-3}
    with pytest.raises(tw.ThalwegError, match="was made by a different call"):
        tw.scan(case.module(1), target, case.task, data, run=folder, **other)


def test_resume_refuses_points_that_no_adaptive_scan_would_measure(tmp_path):
    case = ZOO["mlp"]
    target, data = tw.Bezier(*case.ends()), {"x": case.batches()}
    tw.scan(case.module(1), target, case.task, data, points="adaptive", run=tmp_path / "run")
    (tmp_path / "run" / "scan.json").unlink()
    run = Run(tmp_path / "run")
    lines = run.lines(POINTS)
    run.append(POINTS, {**lines[-1], "point": len(lines) + 1})
    with pytest.raises(tw.ThalwegError, match="where nothing more is expected"):
        tw.scan(case.module(1), target, case.task, data, points="adaptive", run=tmp_path / "run")


def bowl():
    return tw.Plane(*(tw.Weights.of(Loss(x, y)) for x, y in [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0)]))


def test_adaptive_plane_measures_where_contours_crowd():
    def valley(x, y):
        return 0.1 + torch.clamp(30 * (y - 0.4 * x) ** 2, max=40.0)

    scan = scanned(valley, bowl(), points="adaptive", grid=(49, 49), margin=0.5)
    x, y = np.meshgrid(scan.x - 1, scan.y - 1)  # the plane's origin is its first network
    true = valley(torch.tensor(x), torch.tensor(y)).numpy()
    known = scan.measured.astype(bool)
    assert np.allclose(scan.values["x"]["loss"][known], true[known])
    assert 100 < known.sum() < 0.7 * known.size
    slope = np.abs(y - 0.4 * x)
    assert known[(slope > 0.2) & (slope < 0.3)].mean() > 2 * known[slope > 1.3].mean()
    error = np.abs(np.log(scan.values["x"]["loss"]) - np.log(true))
    assert error[~known].max() < 0.7
    assert "measured" in scan.to_csv().splitlines()[0]
    assert tw.Scan.from_dict(scan.to_dict()).measured.shape == (49, 49)


def test_adaptive_plane_with_one_round_is_the_whole_grid():
    scan = scanned(lambda x, y: x**2 + y**2, bowl(), points="adaptive", grid=(7, 9))
    plain = scanned(lambda x, y: x**2 + y**2, bowl(), grid=(7, 9))
    assert scan.measured.all()
    assert np.array_equal(scan.values["x"]["loss"], plain.values["x"]["loss"])


@pytest.mark.parametrize("shape", [(21, 21), (24, 45), (61, 30)])
def test_adaptive_plane_interpolates_points_between(shape):
    scan = scanned(lambda x, y: 5 + x + 0 * y, bowl(), points="adaptive", grid=shape)
    x = np.tile(scan.x - 1, (shape[1], 1))
    assert np.allclose(scan.values["x"]["loss"], 5 + x)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"points": "adaptive", "tolerance": 0.0}, "a tolerance lies between 0 and 1"),
        ({"points": 5, "tolerance": 0.1}, 'tolerance= is for the scan of a curve with points="adaptive"'),
        ({"points": "dense"}, "points are a whole number, or"),
    ],
)
def test_adaptive_scan_refuses_bad_settings(how, message):
    with pytest.raises(tw.ThalwegError, match=message):
        scanned(narrow, line(), **how)


def test_adaptive_points_of_a_list_are_refused():
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="points= is for a curve, and this is a scan of a list of weights"):
        tw.scan(case.module(1), [case.ends()[0]], case.task, case.batches(), points="adaptive")


def test_adaptive_points_are_at_most_half_on_the_stored_profiles():
    rows = runpy.run_path(str(BENCHMARK))["measured"]()
    assert len(rows) >= 15
    for name, count, top, mean, *_ in rows:
        turns = name == "ptb-lstm-large/ptb/bezier"  # within one interval, as docs/planes.md says
        assert (top <= 0.002, mean <= (0.005 if turns else 0.002)) == (True, True), (name, count, top, mean)
    assert sum(row[1] for row in rows) <= 0.5 * sum(row[4] for row in rows), rows
