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
BASE = {"errors", "generators", "object_state", "batches", "tasks", "store", "error_notes", "turns"}
# of which the files on the way to `connect` import the one that asks for accelerators; see below
PLAIN = BASE | {"runtime"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),
    "arguments": {"errors", "error_notes", "turns"},
    "store": BASE | {"runtime"},  # for the types of what a call finds around it
    "runtime": PLAIN | {"weightspace", "training", "evaluation"},
    "results": BASE | {"results", "weightspace"},  # for the type of what a walk collects
    "weightspace": PLAIN | {"weightspace"},
    "alignment": PLAIN | {"weightspace", "alignment"},
    "training": PLAIN | {"results", "weightspace", "evaluation", "training"},
    "evaluation": PLAIN | {"results", "weightspace", "alignment", "evaluation"},
    "integrations": BASE | {"weightspace", "training", "integrations"},
    "reporting": BASE | {"results", "reporting"},
}
CORE = {*ALLOWED, "loading", "bench", "demo"}
PUBLIC = ""  # `import thalweg`
ALLOWED |= {**dict.fromkeys(("loading", "bench", "demo"), CORE | {PUBLIC}), "paper": CORE | {"paper", PUBLIC}}
ALLOWED |= {"cli": CORE | {"paper", "cli", PUBLIC}, "__main__": {"cli"}}
ALLOWED["__init__"] = CORE | {"paper"}  # what is public, imported when it is used
FILES, STATEMENTS = 17, 2000  # on the way to `connect`, at most
DYNAMIC = {"arguments.py", "loading.py", "residual.py"}  # public names, the user's task, an optional library
ACCELERATED = {
    *("accelerated", "accumulated", "captured", "compiled", "cuda_graphs", "distributed", "fused", "interleave"),
    *("kernels", "sharded", "shards", "streamed"),
}
ACCELERATORS = re.compile(
    r"cuda.?graph|triton|\branks?\b|all_reduce|capture_begin|interleav|torch\.compile|replay", re.IGNORECASE
)


def named(path: Path, tree: ast.AST | None = None, late: bool = True):
    """Every module of ours that a file imports, as parts of its name below thalweg; `()` is the public surface.

    Args:
        path: The file.
        tree: Its syntax tree, if it is known.
        late: Whether to include imports inside functions.
    """
    here, nodes = path.relative_to(ROOT).with_suffix("").parts, [tree or ast.parse(path.read_text())]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.ImportFrom):
                above = node.module.split(".") if node.module else []
                if node.level:
                    above = ["thalweg", *here[: len(here) - node.level], *above]
                if above[:1] == ["thalweg"]:
                    yield from ((*above[1:], alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "thalweg")
            elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
                assert path.name in DYNAMIC, f"{path} imports a module by its name at run time"
                nodes.append(node)
            elif late or not isinstance(node, ast.FunctionDef):
                nodes.append(node)


def imported(path: Path, **how):
    """First part below thalweg of every module that a file imports; "" is the public surface."""
    return {parts[0] if parts and parts[0] not in tw.__all__ else "" for parts in named(path, **how)}


def files(path: Path, **how):
    """The files of ours that a file imports."""
    for parts in named(path, **how):
        tried = [ROOT.joinpath(*parts[:count]) for count in (len(parts), len(parts) - 1) if count > 0]
        found = [one for place in tried if (one := place.with_suffix(".py")).is_file()]
        found += [one for place in tried if (one := place / "__init__.py").is_file()]
        yield from found[:1]


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        assert part in ALLOWED, f"{path} lies in no known part; add it to the picture"
        wrong = {name for name in imported(path) if name not in ALLOWED[part] | {"__version__"}}
        assert not wrong, f"{path} imports {sorted(wrong)}, which lies above it"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f():\n    from ..evaluation.scan import Scan", "evaluation"),
        ("def f():\n    import thalweg.cli", "cli"),
        ("from . import files", "store"),
        ("from .. import cli", "cli"),
        ("from thalweg import cli", "cli"),
        ("from thalweg.runtime.distributed import Ranks", "runtime"),
        ("import thalweg.runtime.distributed", "runtime"),
        ("import thalweg", ""),
        ("import thalweg as tw", ""),
        ("from thalweg import fit", ""),
        ("class A:\n    if True:\n        from ..cli import app", "cli"),
    ],
)
def test_import_check_sees_every_form(code, found):
    assert imported(ROOT / "store" / "x.py", tree=ast.parse(code)) == {found}


def test_import_check_sees_imports_by_name():
    with pytest.raises(AssertionError, match="by its name at run time"):
        imported(ROOT / "store" / "x.py", tree=ast.parse("x = importlib.import_module('thalweg.cli')"))


def test_no_files_import_each_other():
    """When they are loaded; functions that pick what they need may import from above."""
    edges = {path: {*files(path, late=False)} - {path} for path in ROOT.rglob("*.py")}
    while leaves := [path for path, others in edges.items() if not others & edges.keys()]:
        edges = {path: others for path, others in edges.items() if path not in leaves}
    assert not edges, f"in a cycle, or above one: {sorted(str(path.relative_to(ROOT)) for path in edges)}"


def test_accelerators_are_imported_where_they_are_chosen():
    """Outside of `runtime`, by what interleaves whole runs and by what times a step."""
    own = {
        (str(path.relative_to(ROOT)), parts[1])
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in ("runtime", "cli", "__init__.py")
        for parts in named(path)
        if len(parts) > 1 and parts[0] == "runtime" and parts[1] in ACCELERATED
    }
    assert own == {
        ("bench.py", "accelerated"),
        ("evaluation/measure.py", "sharded"),  # measures a network in shards
        ("paper/experiment.py", "interleave"),
        ("paper/models/fusable.py", "fused"),  # asks whether kernels can be built
        ("training/compare.py", "interleave"),
        ("training/walk.py", "accelerated"),  # the type of what it observes
    }


def statements(path: Path) -> int:
    def counts(node: ast.AST) -> bool:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return isinstance(node, ast.stmt) and not text

    return sum(map(counts, ast.walk(ast.parse(path.read_text()))))


def closure(start: Path) -> set[Path]:
    found, waiting = set(), [start]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            # a function of `runtime` picks an accelerator
            late = path.relative_to(ROOT).parts[0] != "runtime"
            waiting += [file for file in files(path, late=late) if file.name != "__init__.py"]
    return found


def test_the_way_to_connect_is_short_and_plain():
    read = closure(ROOT / "training" / "connect.py")
    assert {path.name for path in read} >= {"step.py", "loop.py", "probe.py", "curves.py", "compute.py"}
    assert len(read) <= FILES, sorted(map(str, read))
    assert sum(map(statements, read)) <= STATEMENTS
    speaking = {str(path.relative_to(ROOT)) for path in read if ACCELERATORS.search(path.read_text())}
    assert speaking == {"runtime/compute.py"}


def output(*command: str) -> list[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


PROCESS = str(Path(__file__).with_name("module_state.py"))


def test_calls_on_a_cpu_import_no_accelerator():
    loaded = {name.rpartition(".")[2] for name in output(PROCESS, "loaded") if name.startswith("thalweg.runtime.")}
    assert loaded & ACCELERATED == {"accelerated"}  # which chooses them
    assert "running" in loaded


def test_only_the_context_is_module_level_state():
    """No module, class or function keeps anything from one call to the next; it is in ContextVars."""
    assert not [line for line in output(PROCESS, "changed") if line]
    contexts = [path for path in ROOT.rglob("*.py") if re.search(r"ContextVar\(|threading\.local", path.read_text())]
    assert sorted(path.name for path in contexts) == ["compute.py", "turns.py"]


def test_state_check_sees_what_is_kept():
    """Globals, entries of a dict, attributes of classes and functions, and what a cache remembers."""
    hidden = {
        "sys.modules['thalweg.demo'].OWN = 1": "thalweg.demo: OWN",
        "sys.modules['thalweg.paper.recipes'].RECIPES['x'] = 1": "thalweg.paper.recipes: RECIPES",
        "sys.modules['thalweg.training.step'].Step.seen = []": "thalweg.training.step: Step.seen",
        "sys.modules['thalweg.training.step'].mean_of.calls = 1": "thalweg.training.step: mean_of",
        "sys.modules['thalweg.alignment.operations']._pointwise('relu')": "thalweg.alignment.operations: _pointwise",
    }
    assert {*hidden.values()} <= {*output(PROCESS, "changed", "; ".join(hidden))}


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
        "import sys, thalweg.reporting.figures, thalweg.reporting.page; print({'torch', 'matplotlib', 'safetensors'} & "
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
