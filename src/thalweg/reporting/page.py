"""The page: the results in run folders as one self-contained HTML file."""

import html
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from string import Template
from typing import Any

from .. import __version__
from ..errors import ThalwegError
from ..store.files import place, write_text
from .contents import READERS, content
from .result_files import find

SCRIPTS = ("tools", "tables", "chart", "plane", "surface", "curves", "numbers", "ensembles", "main")


def write(path: str | Path, runs: Sequence[str | Path] | str | Path, *, replace: bool = False) -> Path:
    """Write the results in run folders as one self-contained HTML file.

    Examples:
        >>> import tempfile, numpy as np, thalweg as tw
        >>> folder, t = Path(tempfile.mkdtemp()), np.linspace(0, 1, 5)
        >>> scan = tw.Scan("Segment", "curve", {"train": {"loss": t * (1 - t)}}, t=t, length=t, length_ratio=1.0)
        >>> scan.save(folder / "scan.json")
        >>> write(folder / "page.html", [folder]).name
        'page.html'

    Args:
        path: The .html file to write.
        runs: Folders written by commands or calls, or folders that contain such folders, of which each must hold a
            result; or one such folder.
        replace: Whether to overwrite an existing file.
    """
    path, runs = place(path), [runs] if isinstance(runs, str | Path) else runs
    if not runs:
        raise ThalwegError("a page is made from folders that thalweg commands have written; got none")
    if path.suffix != ".html":
        raise ThalwegError(f"a page is a file that ends in .html; got {path}")
    if os.path.lexists(path) and not replace:
        raise ThalwegError(f"{path} already exists: choose another name, or ask to replace it (replace=True)")
    found = [item for item in find(runs) if item.kind in READERS]
    shown = content(found)
    known = [item.path for item in found if any(other.kind != "run" for other in found)]
    empty = [str(run) for run in runs if not any(path.is_relative_to(Path(run).resolve()) for path in known)]
    if empty:
        advice = " ".join(shown["notes"]) or "make some with `thalweg scan` or `thalweg demo`"
        raise ThalwegError(f"{', '.join(empty)} holds no results that a page could show: {advice}")
    write_text(path, _filled(", ".join(Path(run).resolve().name for run in runs), shown))
    return path


def _filled(title: str, shown: Mapping[str, Any]) -> str:
    web = resources(__package__) / "web"
    data = json.dumps(_finite(shown), allow_nan=False, separators=(",", ":"))
    return Template((web / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        version=__version__,
        date=time.strftime("%Y-%m-%d"),
        style=(web / "page.css").read_text(encoding="utf-8"),
        script="\n".join((web / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
        data=data.replace("<", "\\u003c"),  # so that no text can end the script element
    )


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, which figures show as gaps."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
