"""The errors a caller can correct."""

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from operator import index
from typing import Any

INPUT_NOTE, DURING_NOTE = "thalweg gave the network", "thalweg was"  # how our notes on errors start


class ThalwegError(ValueError):
    """An error the caller can correct; the message says what the rule is, what was given, and what to do."""


class Diverged(ThalwegError):
    """The loss stopped being finite.

    Attributes:
        step: The iteration at which it happened.
        t: The position on the curve; None if a network was trained.
        lr: The learning rate of that iteration.
        last_good: The weights, or the curve, from before that epoch.
        members: The networks a walk had collected until then.
    """

    def __init__(
        self, message: str, *, step: int = 0, t: float | None = None, lr: float = 0.0, last_good: Any = None
    ):  # the defaults are those of an error that is being unpickled, before it gets its attributes
        super().__init__(message)
        self.step = step
        self.t = t
        self.lr = lr
        self.last_good = last_good
        self.members: list[Any] = []  # set by `walk`


class Stalled(UserWarning):
    """Issued once by `fit` and `walk` when, after a tenth of the training, a network still predicts the same for every
    input; `warnings.simplefilter("error", Stalled)` stops the training there.
    """


class Stopped(KeyboardInterrupt):
    """A run that was interrupted, by Ctrl-C or SIGTERM, and has saved its state.

    Args:
        what: What happened, without how to resume, which differs between Python and the command line.
        signal: The signal's number.
    """

    def __init__(self, what: str, signal: int):
        super().__init__(f"{what}: make the same call again to resume")
        self.what, self.signal = what, signal


def whole_number(value: Any, name: str, least: int | None = None, most: int = 2**63 - 1) -> int:
    """A plain whole number; if `least` is given, from there to `most`.

    >>> import numpy as np
    >>> whole_number(np.int64(3), "epochs", least=1)
    3
    """
    try:
        found = None if isinstance(value, bool) else index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and not least <= found <= most):
        least_or_most = f", at most {most:,}" if found is not None and found > most else f", at least {least}"
        raise ThalwegError(f"{name} must be a whole number{'' if least is None else least_or_most}; got {value!r}")
    return found


def real_number(value: Any, name: str, least: float | None = None) -> float:
    """A plain number, of at least `least` up to rounding.

    >>> import numpy as np
    >>> real_number(np.float64(0.5), "lr"), real_number(np.int32(2), "cycle")
    (0.5, 2)
    """
    if (
        isinstance(value, bool)
        or not (isinstance(value, Real) or getattr(value, "ndim", None) == 0)
        or (least is not None and float(value) < least - 1e-12)
    ):
        raise ThalwegError(f"{name} must be a number{'' if least is None else f' of {least:g} or more'}; got {value!r}")
    try:
        return index(value) if abs(float(value)) < 2**63 else float(value)
    except TypeError:
        return float(value)


def number_list(values: Any, name: str, of: Any = real_number) -> list[Any]:
    """A list of plain numbers from any sequence, converted by `of`, which is `real_number` or `whole_number`."""
    if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ThalwegError(f"{name} must be a sequence of numbers; got {values!r}")
    return [of(value, name) for value in values]


def warn(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package from which it was called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("thalweg."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def first_line(error: BaseException) -> str:
    """
    >>> first_line(ValueError("no\\nmore")), first_line(AssertionError())
    ('no', 'AssertionError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(", but expected one of:")


@contextmanager
def during(what: str) -> Iterator[None]:
    """Add a note to an error from user code: what thalweg was doing when it called that code.

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
        note(error, f"{DURING_NOTE} {what}", DURING_NOTE)
        raise


def note(error: BaseException, text: str, mark: str) -> None:
    """Add a note that starts with `mark` to an error that is not our own, unless it already has one."""
    if isinstance(error, Exception) and not isinstance(error, ThalwegError) and not notes_of(error, mark):
        error.add_note(text)


def notes_of(error: BaseException, *marks: str) -> list[str]:
    """The notes of an error that start with one of these marks."""
    return [text for text in getattr(error, "__notes__", []) if text.startswith(marks)]
