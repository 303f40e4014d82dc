"""A progress bar for whatever takes longer than a second; nothing at all where nobody watches."""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PATIENCE = 1.0  # seconds before a bar appears
REFRESH = 0.1  # seconds between two looks at the loss, which may wait for the device


class Progress:
    """Counts `total` steps of one piece of work; `show=None` means only when standard error is a terminal."""

    def __init__(self, description: str, total: int, show: bool | None = None):
        self.description, self.total, self.done = description, total, 0
        self.visible = sys.stderr.isatty() if show is None else show
        self.started = self.looked = time.monotonic()
        self.bar: RichProgress | None = None

    def __enter__(self) -> "Progress":
        return self

    def due(self) -> bool:
        """Whether the next `advance` will be drawn, so that its note is worth making."""
        now = time.monotonic()
        return self.visible and now - self.looked >= REFRESH and now - self.started >= PATIENCE

    def advance(self, note: str = "") -> None:
        self.done += 1
        if not self.due():
            return
        self.looked = time.monotonic()
        if self.bar is None:
            self.bar = _shared()
            self.row = self.bar.add_task(self.description, total=self.total, note=note)
        self.bar.update(self.row, completed=self.done, note=note)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.update(self.row, completed=self.done)
            self.bar.stop_task(self.row)
            _release()


_open: "list[RichProgress]" = []  # the one on the screen, once for each row in use


def _shared() -> "RichProgress":
    """Runs that take turns have one row each."""
    bar = _open[0] if _open else _bar()
    bar.start()
    _open.append(bar)
    return bar


def _release() -> None:
    bar = _open.pop()
    if not _open:
        bar.stop()


def _bar() -> "RichProgress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    counted = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}"
    return RichProgress(*counted, TimeElapsedColumn(), "left", TimeRemainingColumn(), console=Console(stderr=True))
