"""Imports point one way, and the public names are all there."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import thalweg as tw

ROOT = Path(tw.__file__).parent
BASE = {"errors", "generators", "object_state", "batches", "tasks", "store", "error_notes"}
# of which the files on the way to `connect` import the one that asks for accelerators; see below
PLAIN = BASE | {"runtime"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),
    "arguments": {"errors", "error_notes"},
    "store": BASE | {"runtime"},  # for the types of what a call finds around it
    "runtime": PLAIN | {"weightspace", "training", "evaluation"},
    "results": BASE | {"results", "weightspace"},  # for the type of what a walk collects
    "weightspace": PLAIN | {"weightspace"},
    "training": PLAIN | {"results", "weightspace", "evaluation", "training"},
    "evaluation": PLAIN | {"results", "weightspace", "evaluation"},
    "integrations": BASE | {"weightspace", "training", "integrations"},
    "reporting": BASE | {"results", "reporting"},
}
CORE = {*ALLOWED, "loading", "bench", "demo"}
ALLOWED |= {**dict.fromkeys(("loading", "bench", "demo"), CORE), "paper": CORE | {"paper"}}
ALLOWED |= {"cli": CORE | {"paper", "cli"}, "__main__": {"cli"}}
ALLOWED["__init__"] = CORE | {"paper"}  # what is public, imported when it is used
FILES, STATEMENTS = 17, 2000  # on the way to `connect`, at most
ACCELERATORS = re.compile(
    r"cuda.?graph|triton|\brank\b|all_reduce|capture_begin|interleav|torch\.compile|replay", re.IGNORECASE
)


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


def statements(path: Path) -> int:
    def counts(node: ast.AST) -> bool:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return isinstance(node, ast.stmt) and not text

    return sum(map(counts, ast.walk(ast.parse(path.read_text()))))


def modules(path: Path):
    """The files of ours that a file imports; not those that it names for the type checker, nor, in `runtime`, those
    that a function imports when it picks an accelerator.
    """
    here = path.relative_to(ROOT).with_suffix("").parts
    runtime, nodes = here[0] == "runtime", [ast.parse(path.read_text())]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
                wanted = [
                    ROOT.joinpath(*filter(None, base)),
                    *(ROOT.joinpath(*filter(None, base), a.name) for a in node.names),
                ]
                yield from (file for one in wanted if (file := one.with_suffix(".py")).is_file())
            elif not (runtime and isinstance(node, ast.FunctionDef)):
                nodes.append(node)


def closure(start: Path) -> set[Path]:
    found, waiting = set(), [start]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            waiting += modules(path)
    return found


def test_the_way_to_connect_is_short_and_plain():
    read = closure(ROOT / "training" / "connect.py")
    assert {path.name for path in read} >= {"step.py", "loop.py", "probe.py", "curves.py", "compute.py"}
    assert len(read) <= FILES, sorted(map(str, read))
    assert sum(map(statements, read)) <= STATEMENTS
    speaking = {str(path.relative_to(ROOT)) for path in read if ACCELERATORS.search(path.read_text())}
    assert speaking == {"runtime/compute.py"}


def test_a_call_without_accelerators_imports_none():
    code = """
import sys, torch, thalweg as tw
x = torch.ones(4, 2)
tw.fit(torch.nn.Linear(2, 1), tw.regression(), [(x, x[:, :1])], epochs=1, lr=0.1)
print(sorted(name for name in sys.modules if name.startswith("thalweg.runtime.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    accelerators = {"captured", "compiled", "kernels", "streamed", "interleave", "distributed", "sharded", "shards"}
    assert not {name for name in accelerators if f"thalweg.runtime.{name}'" in done.stdout}, done.stdout
    assert "thalweg.runtime.running" in done.stdout


def test_only_the_context_is_module_level_state():
    """No module-level object is written to after it was made, except the context of a call and a weak cache."""
    writes = {"append", "pop", "update", "clear", "add", "setdefault", "extend", "remove", "set"}
    found = set()
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        made = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        targets = [
            target for node in made for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Global), f"{path} has a global statement"
            owner = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in writes:
                owner = node.func.value
            elif (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)) or (
                isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            ):
                owner = node.value
            if isinstance(owner, ast.Name) and owner.id in names:
                found.add(f"{path.relative_to(ROOT)}: {owner.id}")
        if "threading.local" in path.read_text() or "ContextVar(" in path.read_text():
            found.add(f"{path.relative_to(ROOT)}: context")
    assert found == {"runtime/compute.py: context", "weightspace/weights.py: _held"}


def test_no_two_classes_have_one_name():
    """But for the callbacks of Lightning and transformers, which do the same for each."""
    named = [
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name, count in Counter(named).items() if count > 1} == {"WalkCallback"}


def test_figures_and_the_page_do_not_load_torch():
    code = (
        "import sys, thalweg.reporting.figures, thalweg.reporting.page; print({'torch', 'matplotlib'} & "
        "set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )


def test_public_names():
    assert sorted(tw.__all__) == sorted({*tw._NAMES, *tw._MODULES})
    for name, home in tw._NAMES.items():
        assert (getattr(tw, name).__module__, getattr(tw, name).__name__) == (f"thalweg.{home}", name)
    for name, home in tw._MODULES.items():
        assert getattr(tw, name) is sys.modules[f"thalweg.{home}"]
    with pytest.raises(AttributeError, match="module 'thalweg' has no attribute 'nothing'"):
        tw.nothing  # noqa: B018
    assert len(tw.__all__) <= 52
    block = ast.parse(Path(tw.__file__).read_text())
    typed = {a.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) and node.level for a in node.names}
    assert typed - {"checked"} == set(tw.__all__)


def test_the_command_line_does_not_load_torch():
    code = "import sys, thalweg.cli; print(sorted({'torch', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
