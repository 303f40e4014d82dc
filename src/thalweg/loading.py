"""The inputs of the command line: a task factory by name, weights and curves by path."""

import importlib.util
import sys
from collections.abc import Collection
from contextlib import chdir
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Batches, count
from .error_notes import in_a_sentence
from .errors import ThalwegError, first_line
from .evaluation.ensemble import Ensemble
from .evaluation.ensemble_folder import MANIFEST
from .runtime.compute import shards_of
from .runtime.rng import seeded
from .store import checkpoints, files
from .tasks import Task
from .weightspace.checkpoint import Checkpoint
from .weightspace.curves import Curve
from .weightspace.weights import Weights

KEYS = "model, task, train and perhaps bn_batches, data, optimizer, schedule and groups"
CURVE_LAYER = "coeff_layer."  # a prefix that only curves of the paper's public code have


@dataclass(frozen=True)
class Inputs:
    """What a task factory returned, checked."""

    model: nn.Module
    task: Task
    train: Batches
    bn_batches: Batches | None
    data: dict[str, Batches]
    optimizer: Any = None
    schedule: Any = None
    groups: Any = None


def load_inputs(spec: str, seed: int, device: str | None) -> Inputs:
    """Call `factory(seed)` of `file.py:factory`, or of `package.module:factory`, also from the current folder."""
    with chdir("."), seeded(0):  # data drawn at import or in the factory are the same in every command
        factory = _find(spec)
    with chdir("."), seeded(seed):
        made = _call(factory, spec, seed)
    if not isinstance(made, dict):
        raise ThalwegError(f"{spec} must return a dict with {KEYS}; it returned {type(made).__name__}")
    known = [field.name for field in fields(Inputs)]
    for odd in (key for key in made if key not in known):
        near = [repr(key) for key in get_close_matches(str(odd), known, 1)]
        advice = f"did you mean {near[0]}?" if near else f"a task's dict holds {KEYS}"
        raise ThalwegError(f"{odd!r}, in the dict that {spec} returned, is not known: {advice}")
    for key in ("model", "task", "train"):
        if key not in made:
            raise ThalwegError(f"'{key}' is missing in the dict that {spec} returned: add it")
    made = {"bn_batches": None, "data": {"train": made["train"]}, **made}
    for key, kind in (("model", nn.Module), ("task", Task), ("data", dict)):
        if not isinstance(made[key], kind):
            called = f" '{name}': call it" if (name := getattr(made[key], "__name__", "")) else ""
            raise ThalwegError(
                f"{spec} must return a {kind.__name__} as '{key}'; it returned {type(made[key]).__name__}{called}"
            )
    count(made["train"], f"the training batches of {spec}")
    if not made["data"]:
        raise ThalwegError(f"{spec} must return data, a dict of one or more batches by name; it is empty")
    for name, batches in made["data"].items():
        count(batches, f"the batches of '{name}' in {spec}")
    _move(made["model"], device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Inputs(**made)


def keys_of(paths: Collection[Path], key: str | None) -> dict[Path, str | None]:
    """Where to look in each file: in a plain state dict nowhere but at its top, if the key is for another file."""
    plain = {path for path in paths if key is not None and path.is_file() and _is_plain(path, key)}
    nested = [path for path in paths if path not in plain and path.is_file() and _kind(path) is None]
    return {path: None if path in plain and nested else key for path in paths}


def _is_plain(path: Path, key: str) -> bool:
    """Whether a file of others holds tensors alone, none of them under the key."""
    if _kind(path) is not None:
        return False
    return not any(
        label or f".{key}." in f".{name}" for label, tensors in checkpoints.read_tensors(path, key) for name in tensors
    )


def load_start(path: Path, model: nn.Module, key: str | None = None) -> Weights | Checkpoint:
    """Where a walk starts: a kept epoch with its optimizer state, or weights."""
    return Checkpoint.load(path) if path.is_file() and _kind(path) == "checkpoint" else Weights.load(path, model, key)


def load_members(path: Path, model: nn.Module, key: str | None = None) -> list[Weights]:
    """The members of an ensemble (its folder, or a run folder with one in it), or the one network of another path."""
    if any((folder / MANIFEST).is_file() for folder in (path, path / "members")):
        return Ensemble.load(path, model).members
    found = load_start(path, model, key)
    return [found.weights if isinstance(found, Checkpoint) else found]


def load_training(path: Path, model: nn.Module) -> list[Weights]:
    """The epochs kept in the folder of a training run, in order, and its last; none if fewer than two were kept."""
    kept = sorted(path.glob("kept-*.safetensors"), key=lambda file: int(file.stem.partition("-")[2]))
    if len(kept) < 2:
        return []
    return [*(Checkpoint.load(file).weights for file in kept), Weights.load(path, model)]


def load_curve(path: Path, model: nn.Module) -> Curve:
    path = files.existing(files.inside(path, files.CURVE))
    if not is_curve(path):
        raise ThalwegError(
            f"{path} is not a curve: give a folder of `thalweg connect`, or two networks, for the straight line "
            "between them"
        )
    state = find_curve(path) if _kind(path) is None else None
    with files.reading(path):
        made = (
            Curve.load(path, model if shards_of(model) else None) if state is None else Curve.from_state(state, model)
        )
    return made.to(next((parameter.device for parameter in model.parameters()), torch.device("cpu")))


def find_curve(path: Path) -> dict[str, Tensor] | None:
    """The control points in a checkpoint of the paper's public code, if it holds a curve."""
    for _, tensors in checkpoints.read_tensors(path):
        prefixes = {name.partition(CURVE_LAYER)[0] for name in tensors if CURVE_LAYER in name}
        if len(prefixes) == 1:
            return files.below(tensors, prefixes.pop())
    return None


def is_curve(path: Path) -> bool:
    path = path / files.CURVE if path.is_dir() else path
    if not path.is_file():
        return False
    kind = _kind(path)
    return find_curve(path) is not None if kind is None else kind == "curve"


def _kind(path: Path) -> str | None:
    """What a tensor file of ours holds; None for files of others."""
    return files.kind_of(path) if files.is_safetensors(path) else None


def _move(model: nn.Module, device: str) -> None:
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("tensors on it have no values")
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        why = "" if "device string" in str(error) else f" ({first_line(error)})"
        others = "cpu or cuda:0" if torch.cuda.is_available() else "cpu"
        raise ThalwegError(
            f"the network cannot be moved to device '{device}'{why}: give another, such as {others}"
        ) from None


def _find(spec: str) -> Any:
    """The factory that `package.module:factory` or `path/to/file.py:factory` names."""
    place, _, name = spec.rpartition(":")
    if not (place and name) or ("/" in place and not place.endswith(".py")):
        raise ThalwegError(f"a task is named file.py:factory or package.module:factory; got '{spec}'")
    path = Path(place).expanduser().resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise ThalwegError(f"the task {spec} cannot be found: there is no file {path}")
    folders = [str(path.parent), ""] if path else [""]  # they stay on the path, for what the factory itself imports
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    try:
        found = importlib.import_module(place) if path is None else _from_file(path)
    except (Exception, SystemExit) as error:  # as from a script that reads its own command line
        where = (
            f"looked in {Path.cwd()} and among the installed packages; "
            if isinstance(error, ModuleNotFoundError)
            else "it ends the program: put what is for a script alone under `if __name__ == '__main__':`; "
            if isinstance(error, SystemExit)
            else ""
        )
        raise ThalwegError(f"the task {spec} cannot be imported: {where}{in_a_sentence(error)}") from error
    if not hasattr(found, name):
        advice = "".join(f"; did you mean {near}?" for near in get_close_matches(name, vars(found), 1))
        raise ThalwegError(f"the task {spec} cannot be found: {place} has no '{name}'{advice}")
    return getattr(found, name)


def _from_file(path: Path) -> Any:
    """Import a file under its own name, so that pickles and data loading processes find it again."""
    name = path.stem
    if name in sys.modules and Path(getattr(sys.modules[name], "__file__", None) or "").resolve() != path:
        name = f"{name} in {path.parent}"  # since another module has that name
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None
        assert found.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _call(factory: Any, spec: str, seed: int) -> Any:
    try:
        return factory(seed)
    except ThalwegError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise ThalwegError(f"a task factory takes one argument, the seed; {spec} does not ({error})") from error
        raise ThalwegError(f"the task factory {spec} failed with {in_a_sentence(error)}") from error
