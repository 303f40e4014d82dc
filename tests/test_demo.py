"""The demo as a user runs it: a barrier on the straight line, none on the trained curves."""

import pytest
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.reporting.contents import content
from thalweg.reporting.folders import find


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "out"
    result = CliRunner().invoke(app, ["demo", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_the_segment_has_a_barrier_and_the_curves_have_none(demo):
    folder, _ = demo
    summaries = {name: tw.Scan.load(folder / f"{name}.json").summary() for name in ("segment", "bezier", "polychain")}
    single = tw.Scan.load(folder / "segment.json").values["train"]["loss"][[0, -1]].max()
    assert summaries["segment"]["train"]["loss"]["barrier"] > 10 * single
    assert summaries["segment"]["test"]["error"]["max"] > 0.3
    for name in ("bezier", "polychain"):
        assert summaries[name]["train"]["loss"]["max"] <= 1.05 * single
        assert summaries[name]["train"]["error"]["max"] < 0.005
        assert summaries[name]["test"]["error"]["max"] < 0.06


def test_it_says_what_it_wrote_and_wrote_it(demo):
    folder, output = demo
    for name in ("profile.png", "profile.pdf", "planes.png", "planes.pdf", "bezier.safetensors", "run.json", "page.html"):
        assert str(folder / name) in output
        assert (folder / name).stat().st_size > 0
    assert "Segment" in output
    assert "next: thalweg plane" in output
    assert tw.Scan.load(folder / "plane-bezier.json").values["train"]["loss"].shape == (21, 21)
    curve = tw.Curve.load(folder / "bezier.safetensors")
    assert isinstance(curve, tw.Bezier)


def test_ensembles_at_one_budget(demo):
    folder, output = demo
    result = tw.Comparison.load(folder / "budget.json")
    assert list(result.entries) == ["Ind", "Snapshot", "FGE"]
    assert all(entry["epochs"] <= result.budget for entry in result.entries.values())
    assert result.table() in output


def test_its_page_has_every_part(demo):
    folder, output = demo
    assert f"The page, to open in a browser: {folder / 'page.html'}" in output
    shown = content(find([folder]))
    assert [curve["label"] for curve in shown["curves"]] == ["Segment", "Bezier", "PolyChain"]
    assert [plane["label"] for plane in shown["planes"]] == ["plane-bezier", "plane-polychain", "plane-three-networks"]
    [report], [comparison] = shown["reports"], shown["comparisons"]
    assert (report["data"], len(report["members"]), comparison["budget"]) == ("test", 3, 40)


def test_it_may_run_again_but_not_over_something_else(demo, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "nothing is written over" in result.output
    assert (tmp_path / "mine.txt").read_text() == "precious"
