"""Run folders: one folder per command, never written over."""

import sys
from pathlib import Path
from typing import Any

from ..errors import ThalwegError
from .files import load_json, save_json

RECORD = "run.json"


def start_run(folder: Path, command: str, settings: dict[str, Any], again: bool = False) -> Path:
    """Make a folder for one run and note in it what is run; a folder that holds anything else is refused.

    again: take a folder that an earlier run of the same command made.
    """
    if _occupied(folder) and not (again and _made_by(folder, command)):
        raise ThalwegError(f"{folder} is already there, and nothing is written over: choose another --out, or remove it")
    save_json(folder / RECORD, "run", {"command": command, "settings": settings, "versions": _versions()})
    return folder


def _occupied(folder: Path) -> bool:
    """A run that failed before it had anything to show leaves only its note, which does not count."""
    return folder.exists() and (not folder.is_dir() or any(path.name != RECORD for path in folder.iterdir()))


def _made_by(folder: Path, command: str) -> bool:
    record = folder / RECORD
    return record.is_file() and load_json(record, "run")["command"] == command


def _versions() -> dict[str, str]:
    import torch

    from .. import __version__

    return {"thalweg": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
