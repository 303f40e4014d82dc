"""Imports point one way, and the public names are all there."""

import ast
import subprocess
import sys
from pathlib import Path

import thalweg as tw

ROOT = Path(tw.__file__).parent
BASE = {"errors", "text", "hidden", "batches", "tasks", "store", "explaining", "values", "runtime"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),
    "runtime": BASE | {"weightspace", "training", "evaluation"},
    "data": {"errors", "runtime", "data"},
    "models": {"models"},
    "weightspace": BASE | {"weightspace"},
    "training": BASE | {"weightspace", "evaluation", "training"},
    "evaluation": BASE | {"weightspace", "evaluation"},
    "integrations": BASE | {"weightspace", "training", "integrations"},
    "reporting": BASE | {"evaluation", "reporting"},
}
TOP = {"__init__", "__main__", "cli", "commands", "demo", "inputs", "bench", "paper"}


def imported(path: Path):
    """First part below thalweg of every module a file imports, late imports included."""
    here = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level]
            parts = [*base, *(node.module or "").split(".")] if node.module else list(base)
            yield from [parts[0]] if parts else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (name.split(".")[1] for name in names if name and name.startswith("thalweg."))


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        if part in TOP:
            continue
        assert part in ALLOWED, f"{path} lies in no known part; add it to the picture"
        wrong = {name for name in imported(path) if name not in ALLOWED[part] | {"__version__"}}
        assert not wrong, f"{path} imports {sorted(wrong)}, which lies above it"


def test_the_check_sees_late_and_relative_imports(tmp_path):
    file = ROOT / "store" / "x.py"
    tree = "def f():\n    from ..evaluation.scan import Scan\n    import thalweg.cli\n    from . import files\n"
    found = set()
    original = Path.read_text
    try:
        Path.read_text = lambda self: tree
        found = set(imported(file))
    finally:
        Path.read_text = original
    assert found == {"evaluation", "cli", "store"}


def test_public_names():
    assert sorted(tw.__all__) == sorted({*tw._NAMES, *tw._MODULES})
    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert len(tw.__all__) <= 45
    block = ast.parse(Path(tw.__file__).read_text())
    typed = {a.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) and node.level for a in node.names}
    assert typed == set(tw.__all__)


def test_the_command_line_does_not_load_torch():
    code = "import sys, thalweg.cli; print(sorted({'torch', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
