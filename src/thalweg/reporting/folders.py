"""The result files inside folders: found, checked, and named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ThalwegError
from ..store import files

USUAL = ("scan", "report", "comparison", "run", "trace", "result")  # names that say nothing the folder does not


@dataclass(frozen=True)
class Found:
    """One file of ours: where it lies, what kind it is, and what it holds.

    group: the folder around the one it lies in, from where the search began; what lies in one belongs together.
    label: a short name inside the group.
    """

    path: Path
    group: str
    label: str
    kind: str
    content: dict[str, Any]

    @property
    def full_label(self) -> str:
        return f"{self.group}/{self.label}" if self.group else self.label


def find(folders: Sequence[str | Path]) -> list[Found]:
    """Every JSON file of ours in the folders and in those inside them; a damaged one is an error that names it."""
    roots = [_existing(Path(folder)) for folder in folders]
    found: dict[Path, Found] = {}
    for root in roots:
        base = root.resolve() if len(roots) == 1 else root.resolve().parent
        for path in _json_files(root):
            kind = files.json_kind(path)
            if kind is not None and path.resolve() not in found:
                found[path.resolve()] = Found(path, *_named(path.resolve(), base), kind, files.load_json(path, kind))
    return list(found.values())


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise ThalwegError(f"a page is made from folders that thalweg commands have written; {folder} is not a folder")
    return folder


def _json_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def _named(path: Path, base: Path) -> tuple[str, str]:
    around = base / path.parent.relative_to(base).parent
    named = path.parent if path.stem in USUAL else path.with_suffix("")
    label, group = named.relative_to(around).as_posix(), around.relative_to(base).as_posix()
    return group.removeprefix("."), base.name if label == "." else label
