"""The benchmarks that need transformers and peft run, tiny on a CPU; their numbers mean nothing there."""

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
def test_it_runs(name, words, found, tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), str(out), "--tiny", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(out.read_text()).keys() >= set(found)
