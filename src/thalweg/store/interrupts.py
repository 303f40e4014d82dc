"""Ctrl-C and SIGTERM: a run stops after the current step, so that its state can be saved first."""

import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import Stopped

if TYPE_CHECKING:
    from ..runtime.interleave import Job
    from .runs import Run

# seconds within which a second SIGTERM counts as the first: timeout(1) sends it to the process and to its group
SAME_SIGNAL = 1.0


class Interrupts:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after the current step; a second one stops at once."""

    def __init__(self, wanted: bool = True, job: "Job | None" = None) -> None:
        self.wanted, self.job = wanted, job
        self._requested: int | None = None
        self._received_at = 0.0  # by time.monotonic()

    @property
    def requested(self) -> int | None:
        """The signal that came, to this run or to all interleaved ones."""
        return self._requested if self.job is None else self.job.interrupts.requested

    def __enter__(self) -> "Interrupts":
        if self.job is not None:
            self.job.resumable = self.wanted
        listens = self.wanted and threading.current_thread() is threading.main_thread()
        handled = (signal.SIGINT, signal.SIGTERM) if listens else ()
        self._before = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._requested == number:  # torchrun sends another signal to processes that got the first
            if number == signal.SIGTERM and time.monotonic() - self._received_at < SAME_SIGNAL:
                return
            raise KeyboardInterrupt
        self._requested, self._received_at = self._requested or number, time.monotonic()

    def stop(self, run: "Run | None", what: str) -> None:
        """End the run; if another rank received the signal, as if by SIGTERM."""
        number = self.requested or signal.SIGTERM
        kept = f"; its state is saved in {run.folder}" if run is not None else ""
        raise Stopped(f"stopped by {signal.Signals(number).name} after {what}{kept}", number)
