"""Records read from JSON files into dataclasses, each field checked against its declared type."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

Record = TypeVar("Record")
RUN = {  # what `run.json` holds, which describes a run
    "command": str,
    "settings": dict[str, Any],
    "versions": dict[str, Any],
    "code": dict[str, Any] | None,
    "started": str,
    "argv": list[str],
}


def decoded(cls: type[Record], entry: Mapping[str, Any]) -> Record:
    """An instance of a dataclass from its fields in a file.

    >>> from dataclasses import make_dataclass
    >>> Path = make_dataclass("Path", [("points", list[tuple[float, float]])])
    >>> decoded(Path, {"points": [[0, 1.5]]})
    Path(points=[(0, 1.5)])
    >>> decoded(Path, {"points": ["one"]})
    Traceback (most recent call last):
    TypeError: 'points' is not a list[tuple[float, float]]
    """
    hints = get_type_hints(cls)
    return cls(**{name: _field(name, value, hints.get(name, Any)) for name, value in entry.items()})


def check_run(record: Mapping[str, Any]) -> None:
    """Raise unless `run.json` held what we write there."""
    for name, hint in RUN.items():
        _field(name, record[name], hint)


def _field(name: str, value: Any, hint: Any) -> Any:
    try:
        return _as(hint, value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"'{name}' is not a {hint.__name__ if isinstance(hint, type) else hint}") from error


def _as(hint: Any, value: Any) -> Any:
    """The value as a type; JSON has neither arrays nor tuples, and writes 1.0 also as 1."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    match value:
        case None if NoneType in parts:
            return None
        case _ if kind in (Union, UnionType):
            return _as(parts[0], value)
        case _ if kind is np.ndarray:
            return array(value)
        case dict() if kind is dict:
            return {_as(parts[0], key): _as(parts[1], item) for key, item in value.items()}
        case list() | tuple() if kind in (list, tuple):
            each = parts if kind is tuple and parts[-1] is not Ellipsis else parts[:1] * len(value)
            return kind(_as(part, item) for part, item in zip(each, value, strict=True))
        case bool() if kind not in (bool, Any):
            raise TypeError("true and false are no numbers")
        case _ if kind is Any or isinstance(value, int | float if kind is float else kind):
            return value
    raise TypeError(f"it is a {type(value).__name__}")


def array(values: Any) -> np.ndarray:
    """A read-only array of float64."""
    found = np.array(values, dtype=np.float64)
    found.setflags(write=False)
    return found
