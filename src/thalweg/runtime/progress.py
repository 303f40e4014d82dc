"""A progress bar for work of more than a second; one line a minute if standard error is not a terminal."""

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import DURING_NOTE, note
from .compute import Context

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PATIENCE = 1.0  # seconds before a bar appears
REFRESH = 0.1  # seconds between two reads of the loss, which may synchronize with the device
PACE = 60.0  # seconds between two lines without a terminal, such as in a log file


class Progress:
    """Counts `total` steps of one piece of work; `show=None` means a bar on a terminal, and lines elsewhere. Of several
    processes, the first alone shows it.
    """

    def __init__(self, description: str, total: int, show: bool | None, context: Context):
        self.description, self.total, self.done = description, total, 0
        self.visible = show is not False and context.processes.first
        self.lines = show is None and not sys.stderr.isatty()
        self.started = self.looked = time.monotonic()
        self.before: int | None = None  # done by an earlier process, which says nothing about the pace
        self.bar: RichProgress | None = None
        self.bars = context.bars

    def __enter__(self) -> "Progress":
        return self

    def due(self) -> bool:
        """Whether the next `advance` will be drawn, so that its note is worth computing."""
        now = time.monotonic()
        waited = now - self.looked >= (PACE if self.lines else REFRESH)
        return self.visible and waited and (self.lines or now - self.started >= PATIENCE)

    def advance(self, note: str = "") -> None:
        self.before = self.done if self.before is None else self.before
        self.done += 1
        if not self.due():
            return
        self.looked = time.monotonic()
        if self.lines:
            print(self._line(note), file=sys.stderr, flush=True)
            return
        if self.bar is None:
            self.bar = self.bars[0] if self.bars else _bar()
            self.bar.start()
            self.bars.append(self.bar)
            self.row = self.bar.add_task(self.description, total=self.total, note=note)
        self.bar.update(self.row, completed=self.done, total=self.total, note=note)

    def _line(self, note: str) -> str:
        elapsed = self.looked - self.started
        left = elapsed / (self.done - (self.before or 0)) * (self.total - self.done)
        said = f", {note}" if note else ""
        return f"{self.description} {self.done}/{self.total}{said}, {_clock(elapsed)} elapsed, {_clock(left)} left"

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            note(error, f"{DURING_NOTE} {self.description} ({self.done} of {self.total} done)", DURING_NOTE)
        if self.bar is not None:
            self.bar.update(self.row, completed=self.done)
            self.bar.stop_task(self.row)
            self.bars.pop()
            if not self.bars:
                self.bar.stop()


def _clock(seconds: float) -> str:
    """
    >>> _clock(61.4), _clock(3600)
    ('0:01:01', '1:00:00')
    """
    return str(timedelta(seconds=max(0, round(seconds))))


def _bar() -> "RichProgress":
    from rich import progress
    from rich.console import Console

    counted = "{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(), "{task.fields[note]}"
    times = progress.TimeElapsedColumn(), "left", progress.TimeRemainingColumn()
    return progress.Progress(*counted, *times, console=Console(stderr=True))
