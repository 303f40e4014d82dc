"""Reports of ensembles: their files and their equivalents."""

from math import isnan

import pytest
from zoo import ZOO

import thalweg as tw


def members_of(case, count=4):
    return [tw.fit(case.module(seed), case.task, case.batches(), epochs=2, lr=0.1) for seed in range(count)]


def test_report_save_and_load(tmp_path):
    case = ZOO["mlp"]
    report = tw.Ensemble(case.module(7), members_of(case)).report(case.task, case.batches())
    report.save(tmp_path / "report.json")
    assert type(report).load(tmp_path / "report.json").to_dict() == report.to_dict()
    assert repr(report).startswith(f"Report(members: 4, error (%) {100 * report.scores['error']:.2f}, nll ")


def test_report_equivalents_are_interpolated():
    def report(*values):
        growth = [{"error": 0.1, "calibrated_nll": value} for value in values]
        return tw.Report(growth, growth, [], [])

    reference = report(1.0, 0.8, 0.7)
    assert report(1.1, 1.0, 0.9, 0.7, 0.69).equivalents(reference) == pytest.approx([0, 1, 1.5, 3, float("inf")])
    # two are as good as the better of one and two
    assert report(0.85).equivalents(report(1.0, 1.2, 0.7)) == pytest.approx([2.5])
    assert isnan(report(0.85).equivalents(report(1.0, float("nan")))[0])
