"""Run folders: one folder per run, locked while in use, resumable, and never overwritten."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ThalwegError
from . import files
from .facts import differences, is_fact
from .records import check_run

RECORD = "run.json"
LOCK = ".lock"
STATE = "state.safetensors"
POINTS = "points.jsonl"
LOG = "log.jsonl"
MEMBERS = "members"
HOLDER = "process "  # how the content of a lock begins
State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and JSON about them
ELSEWHERE = "choose another folder (run=)"
PATH_SETTINGS = ("task", "ends", "start", "what", "key")  # paths given to a command; the contents are compared instead


class Run:
    """A folder that stores the state of a run and its results.

    Args:
        folder: A new folder, or that of the same run, which is then resumed.
        every: How often to save: a number of epochs, or minutes written as "5m".
        resume: Whether an existing run may be resumed.
        note: Further facts to store, and to compare when the run is resumed.
    """

    def __init__(
        self, folder: str | Path, *, every: int | str = "1m", resume: bool = True, note: Mapping[str, Any] | None = None
    ):
        self.folder = files.place(folder)
        self.resume = resume
        self.note = dict(note or {})
        self.every = every
        self.epochs, self.seconds = _interval(every)
        self.saved = time.monotonic()

    @staticmethod
    def of(run: "Run | str | Path | None", child: str = "") -> "Run | None":
        """The run that a call was given, or a part of it; the same on all ranks, of which only rank 0 holds it open."""
        whole = run if isinstance(run, Run | None) else Run(run)
        return whole.child(child) if whole is not None and child else whole

    def child(self, name: str) -> "Run":
        """A run inside this one, for a part of its work."""
        return Run(files.no_link(self.folder / name), every=self.every, note=self.note)

    def due(self, epoch: int | None) -> bool:
        """Whether it is time to save: by the clock at any time, by epochs at the end of one."""
        return time.monotonic() - self.saved >= self.seconds or bool(epoch and self.epochs and epoch % self.epochs == 0)

    def save(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        files.save_tensors(self.folder / STATE, "state", tensors, about)
        self.saved = time.monotonic()

    def load(self, whole: bool = True) -> State | None:
        """The last saved state, if there is one; without its sharded tensors, unless `whole`."""
        path = self.folder / STATE
        return files.load_tensors(path, "state", whole) if path.is_file() else None

    def own(self, state: State) -> State:
        """What this rank needs of a state that rank 0 has loaded: all of it."""
        return state

    def append(self, name: str, entry: Mapping[str, Any]) -> None:
        """Append one line with its own hash; a line cut short by a kill is ignored when it is read."""
        with files.writing(self.folder / name), open(files.no_link(self.folder / name), "a") as file:
            file.write(_hashed(entry))
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The complete lines of a file; the last may have been cut short, any other that is damaged is an error."""
        path = self.folder / name
        content = path.read_text(errors="replace") if path.is_file() else ""
        cut = bool(content) and not content.endswith("\n")
        found = [_line(path, text) for text in content.splitlines()]
        if cut and found[-1] is None:
            found.pop()
        if None in found:
            raise ThalwegError(
                f"{path} is damaged in line {found.index(None) + 1}: restore it from a copy, or start a new run"
            )
        entries = [entry for entry in found if entry is not None]
        self.rewrite(name, entries, changed=cut)  # the next line must not be appended to half of one
        return entries

    def rewrite(self, name: str, entries: Sequence[Mapping[str, Any]], changed: bool = True) -> None:
        if changed:
            files.write_text(self.folder / name, "".join(map(_hashed, entries)))

    def finish(self, write: Callable[[Path], object]) -> None:
        """Write the result; the state for resuming is no longer needed."""
        write(self.folder)
        self._end()

    def _end(self) -> None:
        record = files.load_json(self.folder / RECORD, "run")
        if "finished" not in record:
            files.save_json(self.folder / RECORD, "run", {**record, "finished": _now()})
        files.remove(self.folder / STATE, "state")

    def _tidy(self, command: str) -> None:
        """Finish what a kill interrupted after the result was written, unless another process does or the disk is
        read-only.
        """
        ended = "finished" in files.load_json(self.folder / RECORD, "run")
        if ended and not (self.folder / STATE).is_file() and not any(self.folder.glob(f"*{files.PART}")):
            return
        with suppress(OSError, ThalwegError), _locked(self.folder / LOCK, command):
            files.sweep(self.folder)
            self._end()

    @contextmanager
    def opened(self, command: str, settings: Mapping[str, Any], result: str = "") -> Iterator["Run"]:
        """Lock the folder during a run; what would be computed must not have changed.

        Args:
            command: The name of the call.
            settings: What would be computed.
            result: The file that a finished run holds; it may then be read by many processes.
        """
        given = {key: value for key, value in self.note.items() if value is not None}
        known = json.loads(json.dumps({**self.note, **settings, **given}))
        with files.writing(self.folder):  # which may not be readable
            finished, occupied = result and (self.folder / result).is_file(), _occupied(self.folder)
        if finished or occupied:
            self._check(command, known)  # before anything is written, since the folder may hold other files
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if finished:
            self._tidy(command)
            yield self
            return
        with _locked(self.folder / LOCK, command):
            files.sweep(self.folder)
            self._check(command, known)
            yield self

    def check_new(self, command: str) -> None:
        """Raise if the folder holds anything but a run of this command that may be resumed."""
        with files.writing(self.folder):  # which may not be readable
            occupied = _occupied(self.folder)
        if occupied and not (self.folder / RECORD).is_file():
            raise ThalwegError(f"{self.folder} already exists and is never overwritten: {ELSEWHERE}")
        if occupied:
            self._check_resumable(command, files.load_json(self.folder / RECORD, "run"))

    def _check_resumable(self, command: str, before: dict[str, Any]) -> None:
        with files.reading(self.folder / RECORD):
            check_run(before)
        if before["command"] != command:
            raise ThalwegError(f"{self.folder} holds a run of {before['command']}, not of {command}: {ELSEWHERE}")
        if "facts" not in before:
            raise ThalwegError(
                f"{self.folder} was written by an older thalweg, which did not record what its run would compute, so "
                f"it cannot be known whether this is the same: {ELSEWHERE}"
            )
        given = {key for key, value in self.note.items() if value is not None and key not in PATH_SETTINGS}
        in_python = "task" in before["settings"] and "task" not in self.note  # and the run is of a command
        if in_python or not given <= before["settings"].keys():  # or the other way, or of another that makes this call
            raise ThalwegError(f"{self.folder} holds a run of {command} by another command or call: {ELSEWHERE}")
        if not self.resume:
            state, advice = ("finished ", "") if "finished" in before else ("", "resume it (resume=True), or ")
            raise ThalwegError(
                f"{self.folder} already holds a {state}run of {command}, and is never overwritten: {advice}{ELSEWHERE}"
            )

    def _check(self, command: str, settings: dict[str, Any]) -> None:
        record = self.folder / RECORD
        if not _occupied(self.folder):
            return _record(self.folder, command, settings)
        self.check_new(command)
        before = files.load_json(record, "run")
        with files.reading(record):
            old, new = (
                {key: value for key, value in each.items() if key not in PATH_SETTINGS}
                for each in ({**before["settings"], **before["facts"]}, settings)
            )
            changed = differences(old, new)
        if changed:
            measured = any("first batch" in clause for clause in changed)
            why = ": the task, the model or the data has changed" if measured else ""
            raise ThalwegError(
                f"{self.folder} was made by a different call: {'; '.join(changed)}{why}; use another folder, or "
                "restore what it was"
            )


def start_run(folder: Path, command: str, settings: dict[str, Any], again: bool = False) -> None:
    """Make a folder for a run that cannot be resumed; one that holds more than the record of a run is refused.

    Args:
        folder: The folder.
        command: The name of the command.
        settings: Stored in the record.
        again: Accept a folder that an earlier run of the same command made.
    """
    record = folder / RECORD
    if not (again and record.is_file() and files.load_json(record, "run")["command"] == command):
        check_free(folder)
    files.sweep(folder)
    _record(folder, command, settings)


def check_free(folder: Path) -> None:
    """Raise if a folder holds more than the record of a run."""
    with files.writing(folder):  # which may not be readable
        occupied = _occupied(folder)
    if occupied:
        raise ThalwegError(f"{folder} already exists and is never overwritten: choose another --out, or remove it")


def check_no_run(folder: Path) -> None:
    """Raise if a folder for several runs is itself that of one."""
    if (folder / RECORD).is_file():
        raise ThalwegError(f"{folder} holds a run, and several networks need a folder that holds none: {ELSEWHERE}")


def _record(folder: Path, command: str, settings: Mapping[str, Any]) -> None:
    record = {
        "command": command,
        "settings": {key: value for key, value in settings.items() if not is_fact(value)},
        "facts": {key: value for key, value in settings.items() if is_fact(value)},
        "versions": versions(),
        "code": _code(),
        "started": _now(),
        "argv": sys.argv[1:],
    }
    files.save_json(folder / RECORD, "run", record)


def versions() -> dict[str, str]:
    from .. import __version__  # imported late, since the package may still be loading

    return {"thalweg": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}


def _occupied(folder: Path) -> bool:
    """Whether it holds more than the record of a run that failed before it had results, and hidden files: our lock, or
    those of the operating system.
    """
    if not folder.is_dir():
        return folder.exists()
    if (folder / RECORD).exists():
        files.load_json(folder / RECORD, "run")  # raises unless it is ours
    return any(path.name != RECORD and not path.name.startswith(".") for path in folder.iterdir())


@contextmanager
def _locked(path: Path, command: str) -> Iterator[None]:
    """Held by the operating system as long as the process lives, so a killed one never blocks."""
    with files.writing(path):
        file = open(files.no_link(path), "a+b", buffering=0)  # noqa: SIM115
    with file:
        with files.writing(path):
            _hold(file, path, command)
        yield


def _hold(file: FileIO, path: Path, command: str) -> None:
    """Lock the file, and say in it who holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().decode(errors="replace").strip()
        raise ThalwegError(f"{path.parent} is in use by {holder}: wait for it, or choose another folder") from None
    os.register_at_fork(after_in_child=file.close)  # otherwise forked workers would keep the lock
    file.seek(0)
    if not HOLDER.startswith(before := file.read(len(HOLDER)).decode(errors="replace")):
        raise ThalwegError(f"{path} belongs to another program, since it begins with {before!r}: choose another folder")
    file.truncate(0)
    file.write(f"{HOLDER}{os.getpid()} on {socket.gethostname()} ({command})".encode())


def _hashed(entry: Mapping[str, Any]) -> str:
    digest = files.text_digest("line", json.dumps(entry))
    return json.dumps({"format": files.FORMAT, "entry": entry, "sha256": digest}) + "\n"


def _line(path: Path, text: str) -> dict[str, Any] | None:
    try:
        record = files.parse(text)
        whole = record["sha256"] == files.text_digest("line", json.dumps(record["entry"]))
        found = record["format"]
    except (ValueError, KeyError, TypeError):
        return None
    if whole:
        files.check_format(path, found)
    return record["entry"] if whole else None


def _interval(every: int | str) -> tuple[int, float]:
    """Epochs, or 0, and seconds, or infinity."""
    text = str(every)
    with suppress(ValueError):
        if text.endswith("m") and float(text[:-1]) >= 0:
            return 0, 60 * float(text[:-1])
        if int(text) >= 1:
            return int(text), inf
    raise ThalwegError(f"every= is a number of epochs, such as 5, or of minutes, such as 10m; got {every!r}")


def _code() -> dict[str, Any] | None:
    """The git state of the user's code in the current folder, if it is in git."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, timeout=5, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["--no-optional-locks", "status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.decode(), "changed": bool(changes)}  # names of files may be in any encoding


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
