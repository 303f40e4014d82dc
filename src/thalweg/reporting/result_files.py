"""The result files inside folders: found, read and named."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ThalwegError
from ..store import files

MEASURED = ("scan", "report", "comparison", "trace", "barriers")
USUAL = (*MEASURED, "run", "result")  # names that say nothing the folder does not


@dataclass(frozen=True)
class ResultFile:
    """One file of ours: where it is, what kind it is, and its content.

    Args:
        path: The file.
        kind: Its kind.
        content: What it holds.
        group: The folder above the one it is in, relative to where the search began; results in one group belong
            together.
        label: A short name inside the group.
    """

    path: Path
    group: str
    label: str
    kind: str
    content: dict[str, Any]

    @property
    def full_label(self) -> str:
        return f"{self.group}/{self.label}" if self.group else self.label


def find(folders: Sequence[str | Path]) -> list[ResultFile]:
    """Every JSON file of ours in the folders and their subfolders; a damaged one is an error that names it."""
    for folder in folders:
        if not files.place(folder).is_dir():
            raise ThalwegError(
                f"a page is made from folders that thalweg commands have written; {folder} is not a folder"
            )
    roots = [Path(folder).resolve() for folder in folders]
    bases = roots if len(roots) == 1 else [root.parent for root in roots]
    common = Path(os.path.commonpath(bases))
    found: dict[Path, ResultFile] = {}
    for root, base in zip(roots, bases, strict=True):
        for path in sorted(root.rglob("*.json")):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if not hidden and path not in found and _may_be_ours(path) and (kind := files.json_kind(path)) is not None:
                item = ResultFile(path, *_named(path, base, common), kind, files.load_json(path, kind))
                known = [(each.group, each.kind, each.content) for each in found.values() if root in each.path.parents]
                if kind == "run" or (item.group, kind, item.content) not in known:
                    found[path] = item
    return list(found.values())


def _may_be_ours(path: Path) -> bool:
    """Whether it has one of our names or marks, or no content, as after a crash: other files need not be JSON."""
    with files.reading(path):
        content = path.read_bytes() if path.is_file() else b"-"
    return (
        path.stem in USUAL or not content.strip(b"\0") or any(f'"{mark}"'.encode() in content for mark in files.MARKS)
    )


def _named(path: Path, base: Path, common: Path) -> tuple[str, str]:
    """Group and label; a folder passed by itself is named by its place among the others."""
    # parts of a run, such as the straight line of a curve, are inside its folder
    runs = [folder for folder in path.parents if folder.is_relative_to(base) and (folder / "run.json").is_file()]
    around = base / [path.parent, *runs][-1].relative_to(base).parent
    alone = path.stem == path.parent.name and not any((path.parent / f"{name}.json").is_file() for name in MEASURED)
    named = path.parent if alone or path.stem in USUAL else path.with_suffix("")
    label = base.relative_to(common) / named.relative_to(around)
    return _plain(around.relative_to(base)), _plain(label) or base.name


def _plain(path: Path) -> str:
    return path.as_posix().removeprefix(".")
