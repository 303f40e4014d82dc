"""What the command line is given: a task factory by name, weights and curves by path."""

import importlib
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .batches import Batches, count
from .errors import ThalwegError
from .store import files
from .tasks import Task
from .weightspace.curves import Curve
from .weightspace.weights import Weights

WEIGHTS, CURVE = "weights.safetensors", "curve.safetensors"


@dataclass(frozen=True)
class Inputs:
    """What a task factory returns, checked."""

    model: nn.Module
    task: Task
    train: Batches
    refresh: Batches | None
    data: dict[str, Batches]


def load_inputs(spec: str, seed: int, device: str | None) -> Inputs:
    """Call `factory(seed)` of `package.module:factory`, which may lie in the current folder."""
    made = _call(_find(spec), spec, seed)
    wanted = [f.name for f in fields(Inputs)]
    if not isinstance(made, dict) or not {"model", "task", "train"} <= set(made) <= set(wanted):
        got = f"a dict with {sorted(made)}" if isinstance(made, dict) else type(made).__name__
        raise ThalwegError(
            f"{spec} must return a dict with model, task, train and perhaps refresh and data; it returned {got}"
        )
    made = {"refresh": None, "data": {"train": made["train"]}, **made}
    for key, kind in (("model", nn.Module), ("task", Task), ("data", dict)):
        if not isinstance(made[key], kind):
            raise ThalwegError(f"{spec} must return a {kind.__name__} as '{key}'; it returned {type(made[key]).__name__}")
    count(made["train"], f"the training batches of {spec}")
    for name, batches in made["data"].items():
        count(batches, f"the batches of '{name}' in {spec}")
    made["model"].to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Inputs(**made)


def load_weights(path: Path, model: nn.Module) -> Weights:
    """Weights from a run folder, a file of ours, or a checkpoint of the user's own."""
    path = path / WEIGHTS if path.is_dir() else path
    if path.suffix == ".safetensors" and files.kind_of(path) is not None:
        return Weights.load(path).to(_device(model))
    return Weights.from_state(files.read_state(path), model)


def load_curve(path: Path, model: nn.Module) -> Curve:
    path = path / CURVE if path.is_dir() else path
    return Curve.load(path).to(_device(model))


def is_curve(path: Path) -> bool:
    path = path / CURVE if path.is_dir() else path
    return path.suffix == ".safetensors" and path.is_file() and files.kind_of(path) == "curve"


def _find(spec: str) -> Any:
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise ThalwegError(f"a task is named package.module:factory; got '{spec}'")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ThalwegError(f"the task {spec} cannot be found: {module} has no '{name}'") from None
    except Exception as error:
        raise ThalwegError(f"the task {spec} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")


def _call(factory: Any, spec: str, seed: int) -> Any:
    try:
        return factory(seed)
    except ThalwegError:
        raise
    except Exception as error:
        where = error.__traceback__
        while where and where.tb_next:
            where = where.tb_next
        line = f"{where.tb_frame.f_code.co_filename}, line {where.tb_lineno}" if where else "?"
        raise ThalwegError(f"the task factory {spec} failed with {type(error).__name__}: {error} ({line})") from error


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
