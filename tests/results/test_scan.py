"""Summaries of a scan against the paper's definitions, and its file."""

import json

import numpy as np
import pytest
from zoo import ZOO

import thalweg as tw


def test_scan_summary_is_the_papers():
    """min, max; mean: trapezoid over t; int: trapezoid over arc length; barrier: excess over the straight line."""
    case = ZOO["mlp"]
    a, b = case.ends()
    curve = tw.PolyChain(a, b).with_bends([a.vector.lerp(b.vector, 0.9)])
    scan = tw.scan(case.module(1), curve, case.task, {"train": case.batches()}, points=7)
    values, t = scan.values["train"]["loss"], np.linspace(0, 1, 7)
    mean = sum((values[i] + values[i + 1]) / 2 * (t[i + 1] - t[i]) for i in range(6))
    lengths = [curve.point(t[i]).distance(curve.point(t[i + 1])) for i in range(6)]
    integral = sum((values[i] + values[i + 1]) / 2 * lengths[i] for i in range(6)) / sum(lengths)
    excess = values - ((1 - t) * values[0] + t * values[-1])
    numbers = {"min": values.min(), "max": values.max(), "mean": mean, "int": integral, "barrier": excess.max()}
    assert scan.summary()["train"]["loss"] == pytest.approx(numbers, rel=1e-12)
    assert abs(numbers["int"] - numbers["mean"]) > 1e-3
    assert scan.length[-1] == pytest.approx(curve.length())
    assert scan.length_ratio == pytest.approx(1)


def test_scan_summary_int_equals_mean_on_a_segment():
    case = ZOO["mlp"]
    scan = tw.scan(case.module(1), tw.Segment(*case.ends()), case.task, {"train": case.batches()}, points=11)
    numbers = scan.summary()["train"]["loss"]
    assert numbers["int"] == pytest.approx(numbers["mean"], rel=1e-13)


@pytest.mark.parametrize(
    ("losses", "barrier"),
    [([1, 4, 3], 2), ([3, 1, 3], 0), ([0, 1, 2, 3], 0), ([2, 0, 2.5, 8], 0), ([6, 6, 3, 0], 2)],
)
def test_scan_barrier_is_the_excess_over_the_line_between_the_ends(losses, barrier):
    t = np.linspace(0, 1, len(losses))
    scan = tw.Scan("Bezier", "curve", {"train": {"loss": np.array(losses, dtype=float)}}, t=t, length=t**2)
    assert scan.summary()["train"]["loss"]["barrier"] == pytest.approx(barrier, abs=1e-12)


@pytest.mark.parametrize("name", ["conv_bn", "mlp"])
def test_scan_save_and_load(name, tmp_path):
    case = ZOO[name]
    batches = case.batches()
    scan = tw.scan(case.module(1), tw.Bezier(*case.ends()), case.task, {"train": batches}, points=4, bn_batches=batches)
    scan.save(tmp_path / "scan.json")
    back = tw.Scan.load(tmp_path / "scan.json")
    assert json.dumps(back.to_dict()) == json.dumps(scan.to_dict())
    assert back.table() == scan.table()
    with pytest.raises(ValueError, match="read-only"):
        back.values["train"]["loss"][0] = 0


def test_scans_saved_without_units_have_errors_in_percent():
    entry = tw.Scan(
        "Segment", "curve", {"x": {"error": np.array([0.5, 0.5])}}, t=np.array([0.0, 1.0]), length=np.array([0, 1.0])
    ).to_dict()
    del entry["units"]
    assert "x error (%)" in tw.Scan.from_dict(entry).table()


def test_scan_csv_keeps_quantities_whose_names_would_be_one():
    values = {"val": {"data_loss": np.array([1.0, 2.0])}, "val_data": {"loss": np.array([3.0, 4.0])}}
    scan = tw.Scan("Segment", "curve", values, t=np.array([0.0, 1.0]), length=np.array([0.0, 1.0]))
    assert scan.to_csv().split() == ["t,length,val/data_loss,val_data/loss", "0.0,0.0,1.0,3.0", "1.0,1.0,2.0,4.0"]
