"""The errors a caller can put right."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from operator import index
from typing import Any

GAVE, WAS = "thalweg gave the network", "thalweg was"  # how our notes on an error begin


class ThalwegError(ValueError):
    """Something the caller can put right; the message gives the rule, what came, and what to do."""


class Diverged(ThalwegError):
    """The loss stopped being finite. `last_good` holds the weights, or the curve, from before that epoch."""

    def __init__(self, message: str, *, step: int, t: float | None, lr: float, last_good: Any):
        super().__init__(message)
        self.step, self.t, self.lr, self.last_good = step, t, lr, last_good
        self.members: list[Any] = []  # what a walk had collected by then


class Stopped(KeyboardInterrupt):
    """A run that was asked to stop, by Ctrl-C or SIGTERM, and has saved its state.

    what: what happened, without how to resume, which is another thing in Python and on the command line.
    """

    def __init__(self, what: str, signal: int):
        super().__init__(f"{what}: make the same call again to resume")
        self.what, self.signal = what, signal


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


def first_line(error: BaseException) -> str:
    """
    >>> first_line(ValueError("no\\nmore")), first_line(AssertionError())
    ('no', 'AssertionError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def during(what: str) -> Iterator[None]:
    """Add to an error from inside code of the user's own what it was needed for.

    >>> try:
    ...     with during("training (3 of 8 done)"), during("making the optimizer"):
    ...         raise LookupError("theirs")
    ... except LookupError as error:
    ...     print(error.__notes__)
    ['thalweg was making the optimizer']
    """
    try:
        yield
    except Exception as error:
        note(error, f"{WAS} {what}", WAS)
        raise


def note(error: BaseException, text: str, mark: str) -> None:
    """Add a note that begins with `mark` to an error that is not our own, unless it has one."""
    if isinstance(error, Exception) and not isinstance(error, ThalwegError) and not notes_of(error, mark):
        error.add_note(text)


def notes_of(error: BaseException, *marks: str) -> list[str]:
    """The notes on an error that begin with one of these."""
    return [text for text in getattr(error, "__notes__", []) if text.startswith(marks)]
