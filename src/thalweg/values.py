"""Numbers as callers give them, numpy's and torch's scalars too, made plain where a call begins."""

from collections.abc import Iterable
from numbers import Real
from operator import index
from typing import Any

from .errors import ThalwegError


def whole(value: Any, name: str, least: int | None = None) -> int:
    """
    >>> import numpy as np
    >>> whole(np.int64(3), "epochs", least=1)
    3
    """
    try:
        found = None if isinstance(value, bool) else index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        raise ThalwegError(f"{name} must be a whole number{'' if least is None else f', at least {least}'}; got {value!r}")
    return found


def number(value: Any, name: str) -> float:
    """
    >>> import numpy as np
    >>> number(np.float64(0.5), "lr"), number(np.int32(2), "cycle")
    (0.5, 2)
    """
    if isinstance(value, bool) or not (isinstance(value, Real) or getattr(value, "ndim", None) == 0):
        raise ThalwegError(f"{name} must be a number; got {value!r}")
    try:
        return index(value)
    except TypeError:
        return float(value)


def several(values: Any, name: str, of: Any = number) -> list[Any]:
    """A list of plain numbers from any sequence of them, `of` being `number` or `whole`."""
    if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ThalwegError(f"{name} must be a sequence of numbers; got {values!r}")
    return [of(value, name) for value in values]
