"""The examples run, shortened where they can be; those that need data say how they are called."""

import re
import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = {
    "digits": ["--epochs", "2", "--points", "3", "--grid", "3"],
    "fge": ["--budget", "10", "--seeds", "2"],
    "wise_ft": ["--epochs", "3", "--points", "3"],
    "serving": ["--budget", "10"],
    "penn_treebank": ["--tiny", "--words", "4400", "--epochs", "4", "--points", "3"],
}
NEED_DATA = ("cifar_curve", "cifar_plane")


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", SHORT)
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    run(name, monkeypatch, *SHORT[name])
    plt.close("all")
    printed = capsys.readouterr().out
    assert re.search(r"^\d+ s, torch", printed, re.MULTILINE)
    apart = re.findall(r"through .*: outputs differ by at most (\S+)$", printed, re.MULTILINE)
    assert len(apart) >= 2 * (name == "serving")
    assert all(float(number) < 1e-5 for number in apart)


def test_spirals_example_finds_a_curve(tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    run("spirals", monkeypatch, "--epochs", "40", "--points", "11", "--grid", "3", "--out", str(tmp_path / "spirals"))
    plt.close("all")
    barriers = re.findall(r"^train loss.* (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert float(barriers[1]) < 0.25 * float(barriers[0])


@pytest.mark.parametrize("name", NEED_DATA)
def test_example_help_says_what_it_takes(name, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="0"):
        run(name, monkeypatch, "--help")
    assert "--data" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["spirals", *SHORT, *NEED_DATA])
def test_example_header_says_how_and_where_it_ran(name):
    header = (EXAMPLES / f"{name}.py").read_text().split('"""')[1]
    assert f"$ python examples/{name}.py" in header
    assert re.search(r"\d+ s, \d{4}-\d\d-\d\d: .*torch \d", header)
