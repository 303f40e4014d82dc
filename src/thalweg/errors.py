"""The errors a caller can put right."""

from typing import Any


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
