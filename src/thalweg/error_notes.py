"""Where user code failed, and on which input."""

import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import DURING_NOTE, INPUT_NOTE, first_line, note, notes_of

KEYS = "; the keys of a dict, but for its labels, are the names of the network's arguments"
ARRAYS = "; a batch holds tensors: convert numpy's arrays with torch.as_tensor"
OURS = (Path(__file__).parent, Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib"), "importlib"))
INSTALLED = tuple(Path(sysconfig.get_paths()[kind]) for kind in ("stdlib", "purelib", "platlib"))
# raised by a DataLoader's worker
WORKER = re.compile(r"\ACaught .*\nOriginal Traceback(?:.*\n)+  File .*\n(?: .*\n)*(\S.*)")
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextmanager
def explained(module: nn.Module, batch: Any) -> Iterator[None]:
    """Add a note to an error from the network or its loss: what the batch was and what the network expects.

    >>> try:
    ...     with explained(nn.Linear(2, 1), (torch.ones(3, 2).double(), torch.ones(3))):
    ...         raise RuntimeError("mat1 and mat2 must have the same dtype")
    ... except RuntimeError as error:
    ...     print(error.__notes__[0])
    thalweg gave the network, whose weights are float32 on cpu, a batch of (float64 3 x 2, float32 3)
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, torch.OutOfMemoryError):
            said = _described(batch)
            hint = ARRAYS if "ndarray" in said else KEYS if isinstance(batch, Mapping) else ""
            note(error, f"{INPUT_NOTE}{_weights(module)} a batch of {said}{hint}", INPUT_NOTE)
        raise


def in_a_sentence(error: Exception | SystemExit) -> str:
    """The error, the line of user code where it happened, and what the network was given, as far as these are known."""
    where = users_line(error)
    if isinstance(error, OSError) and not where:
        return str(error)
    worker = WORKER.search(str(error))
    said = worker[1] if worker else f"{type(error).__name__}: {first_line(error)}"
    return "; ".join(
        [f"{said}{where}", *notes_of(error, INPUT_NOTE, DURING_NOTE), "the traceback is shown by thalweg --debug ..."]
    )


def users_line(error: BaseException) -> str:
    """The last line of user code on the way to an error, in brackets: code that is not installed, or else not ours.

    A syntax error says itself where it is.
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames += FRAME.findall(str(error))  # of another process, such as a DataLoader's worker
    foreign = [frame for frame in frames if frame[0][:1] != "<" and not any(map(Path(frame[0]).is_relative_to, OURS))]
    own = [frame for frame in foreign if is_users(frame[0])] or foreign
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def is_users(file: str) -> bool:
    """Whether code is the user's: neither installed nor of this library."""
    return file[:1] != "<" and not any(map(Path(file).is_relative_to, OURS + INSTALLED))


def _weights(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "" if first is None else f", whose weights are {_short(first.dtype)} on {first.device},"


def _described(item: Any) -> str:
    match item:
        case Tensor():
            return f"{_short(item.dtype)} {' x '.join(map(str, item.shape)) or 'number'}"
        case Mapping():
            return "{" + ", ".join(f"{key}: {_described(value)}" for key, value in item.items()) + "}"
        case list() | tuple():
            return f"({', '.join(map(_described, item))})"
        case _:
            return type(item).__name__


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
