"""The page is made from files alone, says what they lack, and refuses what is damaged."""

import json
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from run_folders import RECORD, curve, plane, whole
from typer.testing import CliRunner
from zoo import ZOO

import thalweg as tw
from thalweg.cli import app
from thalweg.reporting import page
from thalweg.reporting.result import Claim, Result
from thalweg.store import files

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"


def shown(path):
    """The data inside a page, as a strict reader sees them."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def made(folder, *runs):
    return shown(page.write(folder / "page.html", runs or [folder], replace=True))


def test_page_finds_a_whole_folder_and_shows_it_exactly(tmp_path):
    found = made(whole(tmp_path))
    assert [scan["label"] for scan in found["curves"]] == ["Segment", "Bezier"]
    assert [scan["label"] for scan in found["planes"]] == ["plane"]
    for scan, file in zip([*found["curves"], *found["planes"]], ("line", "scan", "plane"), strict=True):
        stored = tw.Scan.load(tmp_path / file / "scan.json")
        assert scan["csv"] == stored.to_csv()
        for data, entry in stored.values.items():
            for quantity, values in entry.items():
                assert np.array_equal(scan["values"][data][quantity], values)
    expected = tw.Scan.load(tmp_path / "scan" / "scan.json").summary()["test"]["error"]
    [row] = [r for r in found["summary"] if (r["label"], r["data"], r["quantity"]) == ("Bezier", "test", "error")]
    assert {key: row[key] for key in expected} == expected
    assert [report["data"] for report in found["reports"]] == ["test"]
    [matrices], stored = found["barriers"], tw.Barriers.load(tmp_path / "barriers")
    assert (matrices["label"], matrices["networks"], matrices["csv"]) == ("barriers", ["a", "b", "c"], stored.to_csv())
    shown, exact = matrices["matrices"][1]["panels"]["aligned"], stored.between("test", "error", aligned=True)
    assert np.array_equal(shown, np.round(exact, 6))  # 1e-8 is no barrier, and not shown as one
    assert len(found["walks"]) == 1  # a walk keeps its trace twice
    facts = dict(found["runs"][1]["facts"])
    assert facts["weight_decay"] == "0.001"
    assert facts["t"].endswith("1 (121 values)")
    assert facts["code changed"] == "no"


def test_page_comparison_shows_averages_and_equivalents(tmp_path):
    [found] = made(whole(tmp_path))["comparisons"]
    rows = {(row["method"], row["quantity"]): (row["1B"], row["2B"]) for row in found["rows"]}
    assert rows["FGE, averaged", "error"] == pytest.approx((0.105, 0.09))
    assert rows["FGE", "equivalent in independent networks"] == pytest.approx((1.5, None))  # more than there are
    assert rows["Independent", "equivalent in independent networks"] == pytest.approx((1, 2))


def test_page_of_many_results_is_small_and_fast(tmp_path):
    whole(tmp_path)
    start = time.process_time()
    path = page.write(tmp_path / "page.html", [tmp_path])
    assert time.process_time() - start < 5
    assert path.stat().st_size < 7e6


def test_page_groups_results_of_one_folder(tmp_path):
    for name in ("one", "two"):
        whole(tmp_path / name)
    assert {scan["group"] for scan in made(tmp_path)["curves"]} == {"one", "two"}
    found = made(tmp_path, tmp_path / "one" / "scan", tmp_path / "two" / "scan", tmp_path / "one")
    assert [(scan["group"], scan["label"]) for scan in found["curves"]] == [
        ("", "Bezier, one/scan"),
        ("", "Bezier, two/scan"),
        ("one", "Segment"),
    ]


def test_page_curve_is_named_after_its_file(tmp_path):
    curve().save(tmp_path / "curves" / "bezier.json")
    curve(height=2.0).save(tmp_path / "path" / "path.json")
    assert [scan["label"] for scan in made(tmp_path)["curves"]] == ["Bezier", "Bezier, path"]


def test_page_curve_styles_are_those_of_figures(tmp_path):
    for name in ("Own", "PolyChain", "Segment"):
        curve(name).save(tmp_path / f"{name}.json")
    assert {scan["label"]: scan["style"] for scan in made(tmp_path)["curves"]} == {
        "Segment": 0,
        "PolyChain": 2,
        "Own": 1,
    }


def test_page_finds_scanned_curves_in_the_plane_whatever_they_are_called(tmp_path):
    case = ZOO["mlp"]
    a, b, c, d = (tw.Weights.of(case.module(seed)) for seed in range(4))
    one, other, line = tw.Bezier(a, b).with_bends([c.vector]), tw.Bezier(a, b).with_bends([d.vector]), tw.Segment(c, a)
    reread = tw.Bezier.through([replace(point, made={}) for point in one.points])
    for name, item in (("Bezier", other), ("mine", reread), ("line", line), ("PolyChain", tw.PolyChain(a, b))):
        scan = tw.scan(case.module(1), item, case.task, case.batches(), points=3, run=tmp_path / f"run-{name}")
        replace(scan, name=name).save(tmp_path / f"run-{name}" / "scan.json")
    target = tw.Plane(a, b, c)
    tw.scan(case.module(1), target, case.task, case.batches(), grid=(3, 3), overlay={"Bezier": one}).save(
        tmp_path / "plane.json"
    )
    found = made(tmp_path)
    [plane] = found["planes"]
    ends = [[*target.corners[2]], [*target.corners[0]]]
    assert dict(zip([scan["name"] for scan in found["curves"]], plane["holds"], strict=True)) == {
        "Bezier": None, "mine": {"name": "Bezier"}, "line": {"path": ends}, "PolyChain": None}  # fmt: skip


def test_page_paper_entry_has_its_table_claims_and_origin(tmp_path):
    claim = Claim("it works", False, "by 0.1")
    rows = [{"method": "FGE", "1B (%)": 25.0, "1B (%) (paper)": 25.7}]
    Result("ensembles", "VGG-16 on CIFAR-100", rows, [claim], {"machine": "a GPU"}).save(tmp_path / "result.json")
    [found] = made(tmp_path)["papers"]
    assert (found["title"], found["heads"]) == ("ensembles: VGG-16 on CIFAR-100", ["method", "1B (%)"])
    assert found["rows"] == [["FGE", "25.00 (25.7)"]]
    assert found["claims"] == [{"says": "it works", "holds": False, "measured": "by 0.1", "earlier": ""}]
    assert ["machine", "a GPU"] in found["facts"]


def test_page_thins_a_long_walk_but_keeps_all_collected(tmp_path):
    steps = np.arange(1.0, 78_001)
    tw.Trace(steps / 1e6, steps, steps / 2, [40_002, 77_000], 390).save(tmp_path / "trace.json")
    series = {one["quantity"]: one for one in made(tmp_path)["walks"][0]["series"]}
    shown = series["mini-batch loss"]
    assert 3000 < len(shown["at"]) < 5000
    assert shown["every"] == 20
    assert {40_002, 77_000, 78_000} <= {*shown["at"]}
    assert shown["values"] == shown["at"]


def test_page_shows_a_scan_in_two_folders_once(tmp_path):
    for name in ("curves", "profile"):
        curve().save(tmp_path / name / "bezier.json")
    assert [scan["label"] for scan in made(tmp_path)["curves"]] == ["Bezier"]


def test_page_run_of_a_plane_is_called_so(tmp_path):
    plane().save(tmp_path / "plane" / "scan.json")
    record = {**RECORD, "settings": {**RECORD["settings"], "of": "Plane"}}
    files.save_json(tmp_path / "plane" / "run.json", "run", record)
    assert made(tmp_path)["runs"][0]["title"].startswith("plane, ")


def test_page_names_a_folder_with_nothing_to_show(tmp_path):
    whole(tmp_path / "one")
    (tmp_path / "ensemble").mkdir()
    with pytest.raises(tw.ThalwegError, match=r"^\S*ensemble holds no results that a page could show"):
        made(tmp_path, tmp_path / "one", tmp_path / "ensemble")


def test_page_takes_one_folder_and_refuses_none(tmp_path):
    curve().save(tmp_path / "run" / "scan.json")
    for number, folder in enumerate((tmp_path / "run", str(tmp_path / "run"))):
        assert "Bezier" in page.write(tmp_path / f"{number}.html", folder).read_text()
    with pytest.raises(
        tw.ThalwegError, match="a page is made from folders that thalweg commands have written; got none"
    ):
        page.write(tmp_path / "none.html", [])
    assert not (tmp_path / "none.html").exists()


def test_page_shows_one_loss_without_weight_decay(tmp_path):
    scan = curve()
    tw.Scan(**{**vars(scan), "weight_decay": 0.0}).save(tmp_path / "scan.json")
    assert list(made(tmp_path)["curves"][0]["values"]["train"]) == ["loss", "error"]


def test_page_non_finite_values_become_null(tmp_path):
    scan = curve()
    scan.values["train"]["loss"][3:5] = np.nan, np.inf
    scan.save(tmp_path / "scan.json")
    found = made(tmp_path)
    assert found["curves"][0]["values"]["train"]["loss"][2:6].count(None) == 2
    assert found["summary"][0]["max"] is None


def test_page_escapes_names(tmp_path):
    curve(data=(HOSTILE,)).save(tmp_path / HOSTILE.replace("/", "") / "scan.json")
    path = page.write(tmp_path / "page.html", [tmp_path / HOSTILE.replace("/", "")])
    assert "<img" not in path.read_text()
    assert list(shown(path)["curves"][0]["values"]) == [HOSTILE]


def test_page_reports_an_unfinished_run(tmp_path):
    begun = {key: value for key, value in RECORD.items() if key != "finished"}
    files.save_json(tmp_path / "walk" / "run.json", "run", {**begun, "command": "walk", "facts": {"start": {}}})
    files.save_json(tmp_path / "demo" / "run.json", "run", {**begun, "command": "demo", "facts": {}})
    files.save_json(tmp_path / "scan" / "run.json", "run", {**RECORD, "finished": "2026", "facts": {"start": {}}})
    note = "walk holds a run of walk without its result: resume it (`--resume` on the command line)."
    with pytest.raises(tw.ThalwegError, match=f"could show: .*{re.escape(note)}"):
        made(tmp_path)
    curve().save(tmp_path / "scan" / "scan.json")
    assert made(tmp_path)["notes"] == [note]


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-40], lambda text: text.replace("0.05", "0.04", 1), lambda _: "", lambda _: "\0"]
)
def test_page_names_a_damaged_file(damage, tmp_path):
    file = whole(tmp_path) / "plane" / "scan.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(tw.ThalwegError, match=re.escape(str(file))):
        page.write(tmp_path / "page.html", [tmp_path])
    assert not (tmp_path / "page.html").exists()


def test_page_ignores_foreign_files(tmp_path):
    plane().save(tmp_path / "plane.json")
    (tmp_path / "theirs.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "commented.json").write_text('// mine\n{"a": 1}')
    (tmp_path / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "latin.json").write_bytes(b'{"a": "caf\xe9"}')
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    assert len(made(tmp_path)["planes"]) == 1


def test_page_refuses_what_cannot_be_shown(tmp_path):
    with pytest.raises(tw.ThalwegError, match="nowhere is not a folder"):
        page.write(tmp_path / "page.html", [tmp_path / "nowhere"])
    with pytest.raises(tw.ThalwegError, match="holds no results"):
        page.write(tmp_path / "page.html", [tmp_path])
    with pytest.raises(tw.ThalwegError, match=r"ends in \.html; got .*scan\.json"):
        page.write(tmp_path / "scan.json", [tmp_path])


@pytest.mark.parametrize("content", ["mine", "<!doctype html><title>an earlier page</title>"])
def test_page_replaces_an_existing_file_only_on_request(content, tmp_path):
    curve().save(tmp_path / "scan.json")
    path = tmp_path / "page.html"
    path.write_text(content)
    with pytest.raises(tw.ThalwegError, match=r"page\.html already exists: .* \(replace=True\)"):
        page.write(path, [tmp_path])
    assert path.read_text() == content
    page.write(path, [tmp_path], replace=True)
    assert "Made by thalweg" in path.read_text()


def test_page_command(tmp_path):
    whole(tmp_path / "runs")
    out = tmp_path / "page.html"
    arguments = ["page", str(tmp_path / "runs" / "scan"), str(tmp_path / "runs" / "plane"), "-o", str(out)]
    for options in ([], ["--replace"]):
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.output
        assert f"wrote {out}" in result.output
    assert "<title>scan, plane</title>" in out.read_text()
    result = CliRunner().invoke(app, ["page", str(tmp_path / "none"), "-o", str(out), "--replace"])
    assert result.exit_code == 2
    assert "none is not a folder" in result.output
