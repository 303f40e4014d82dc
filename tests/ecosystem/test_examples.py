"""The examples run from beginning to end; what they show at full length is in their headers."""

import re
import runpy
from pathlib import Path

import pytest
from without_torchvision import import_timm

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
import_timm()


@pytest.mark.parametrize("name", ["lora", "timm_network"])
def test_example_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](epochs=2)
    printed = capsys.readouterr().out
    assert printed.count("barrier") == 2
    assert "disagreement" in printed


def test_serving_example_exports_to_onnx(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["serving.py", "--budget", "10"])
    runpy.run_path(str(EXAMPLES / "serving.py"), run_name="__main__")
    apart = re.findall(r"(\w+) through ONNX: outputs differ by at most (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in apart] == ["ensemble", "average"]
    assert all(float(number) < 1e-5 for _, number in apart)
