"""Benchmarks that need transformers and peft, or a GPU, run tiny on a CPU; their numbers mean nothing there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("transformer_steps", ["--steps", "6", "--rounds", "1"], ["gpt2", "llama", "bert", "vit"]),
        ("billion", [], ["by hand", "fit", "connect", "connect, stream", "LoRA by hand", "LoRA connect"]),
        ("billion", ["--weights", "bfloat16"], ["by hand", "connect", "LoRA connect"]),
    ],
)
def test_benchmark_runs(name, words, found, tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), str(out), "--tiny", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(out.read_text()).keys() >= set(found)


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("ensembles", ["--samples", "2"], {"seeds": [4, 2], "columns": ["networks", "error", "nll", "calibrated_nll"]}),
        ("training_plane", ["--every", "1", "--grid", "5"], {"seed 4": {"points": 25}, "seed 2": {"points": 25}}),
    ],
)
def test_benchmark_takes_a_list_of_seeds(name, words, found, tmp_path):
    """Twice, the second time from what the first has trained; its last line is JSON."""
    script, out = str(BENCHMARKS / f"{name}.py"), str(tmp_path / "out")
    command = [sys.executable, script, "--out", out, "--scale", "smoke", "--seeds", "4,2", *words]
    first, again = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    one, two = (json.loads(text.splitlines()[-1]) for text in (first, again))
    assert {key: one[key] for key in one if key not in ("seconds", "milliseconds")}.items() <= two.items()
    for key, value in found.items():
        assert value.items() <= one[key].items() if isinstance(value, dict) else one[key][: len(value)] == value
