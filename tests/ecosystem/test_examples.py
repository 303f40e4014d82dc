"""The examples run from beginning to end; what they show at full length is in their headers."""

import runpy
from pathlib import Path

import pytest
from without_torchvision import import_timm

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
import_timm()


@pytest.mark.parametrize("name", ["lora", "timm_network"])
def test_example(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](epochs=2)
    printed = capsys.readouterr().out
    assert printed.count("barrier") == 2
    assert "disagreement" in printed
