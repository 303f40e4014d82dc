"""The demo as a user runs it, from a wheel in an environment of its own: a barrier on the straight line, none on the
curves.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import thalweg as tw
from thalweg import demo as demo_module
from thalweg.cli import app
from thalweg.reporting.contents import content
from thalweg.reporting.result_files import find

ROOT = Path(__file__).parents[1]


def command(*words):
    """What a command prints; without what would lead it to the sources instead of the wheel."""
    plain = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, words)], env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The command `thalweg` of a wheel that was built and installed into an empty environment."""
    folder = tmp_path_factory.mktemp("wheel")
    command(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    [wheel] = folder.glob("thalweg-*.whl")
    command(sys.executable, "-m", "venv", folder / "venv")
    binaries = folder / "venv" / "bin"
    quietly = ("--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    command(binaries / "pip", "install", *quietly, wheel)
    return binaries / "thalweg"


@pytest.fixture(scope="module")
def demo(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "out"
    return folder, command(installed, "demo", "--out", folder)


def test_demo_segment_has_a_barrier_and_curves_have_none(demo):
    folder, _ = demo
    summaries = {name: tw.Scan.load(folder / f"{name}.json").summary() for name in ("segment", "bezier", "polychain")}
    single = tw.Scan.load(folder / "segment.json").values["train"]["loss"][[0, -1]].max()
    assert summaries["segment"]["train"]["loss"]["barrier"] > 10 * single
    assert summaries["segment"]["test"]["error"]["max"] > 0.3
    for name in ("bezier", "polychain"):
        assert summaries[name]["train"]["loss"]["max"] <= 1.05 * single
        assert summaries[name]["train"]["error"]["max"] < 0.005
        assert summaries[name]["test"]["error"]["max"] < 0.06


def test_demo_says_what_it_wrote_and_wrote_it(demo):
    folder, output = demo
    for name in (
        "profile.png",
        "profile.pdf",
        "planes.png",
        "planes.pdf",
        "bezier.safetensors",
        "run.json",
        "page.html",
    ):
        assert str(folder / name) in output
        assert (folder / name).stat().st_size > 0
    assert "Segment" in output
    assert re.search(r"^next: \S*thalweg plane ", output, re.MULTILINE)
    assert tw.Scan.load(folder / "plane-bezier.json").values["train"]["loss"].shape == (21, 21)
    curve = tw.Curve.load(folder / "bezier.safetensors")
    assert isinstance(curve, tw.Bezier)


def test_demo_ensembles_at_one_budget(demo):
    folder, output = demo
    result = tw.Comparison.load(folder / "budget.json")
    assert list(result.entries) == ["Independent", "Snapshot", "FGE"]
    assert all(entry["epochs"] <= result.budget for entry in result.entries.values())
    assert result.table() in output


def test_demo_page_has_every_part(demo):
    folder, output = demo
    assert f"The page, to open in a browser: {folder / 'page.html'}" in output
    shown = content(find([folder]))
    assert [curve["label"] for curve in shown["curves"]] == ["Segment", "Bezier", "PolyChain"]
    assert [plane["label"] for plane in shown["planes"]] == ["plane-bezier", "plane-polychain", "plane-three-networks"]
    [report], [comparison] = shown["reports"], shown["comparisons"]
    assert (report["data"], len(report["members"]), comparison["budget"]) == ("test", 3, 40)


@pytest.fixture
def small(monkeypatch):
    """All lines of the demo on a few images, in a second or two."""
    digits = tw.data.digits

    def coarse(module, target, *rest, points=None, **settings):
        where = (
            {"grid": (3, 3)} if isinstance(target, tw.Plane) else {"points": 5} if isinstance(target, tw.Curve) else {}
        )
        return tw.scan(module, target, *rest, **where, **settings)

    few = SimpleNamespace(**{**vars(tw.data), "digits": lambda: tuple((x[:60], y[:60]) for x, y in digits())})
    names = {name: getattr(tw, name) for name in tw.__all__}
    monkeypatch.setattr(demo_module, "tw", SimpleNamespace(**{**names, "scan": coarse, "data": few}))
    monkeypatch.setattr(demo_module, "BUDGET", 16)
    for settings in (demo_module.FIT, demo_module.CONNECT):
        monkeypatch.setitem(settings, "epochs", 1)


def test_demo_runs_again_over_an_earlier_demo(small, tmp_path):
    outputs = []
    for _ in range(2):
        result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out"), "--quiet"])
        assert result.exit_code == 0, result.output
        outputs.append((tw.Scan.load(tmp_path / "out" / "bezier.json").table(), sorted(os.listdir(tmp_path / "out"))))
        (tmp_path / "out" / "bezier.json").write_text("spoilt")
    assert outputs[0] == outputs[1]


def test_demo_does_not_overwrite_foreign_files(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "is never overwritten" in result.output
    assert (tmp_path / "mine.txt").read_text() == "precious"
