"""The files of a data set on disk, read whole and checked."""

import gzip
import zlib
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

from ..errors import ThalwegError
from .sources import Form


class Copy(NamedTuple):
    """A data set in one of its forms, and the folder where the files should lie, packed (.gz) or not."""

    form: Form
    folder: Path

    def missing(self) -> list[str]:
        return [name for name in self.form.files if self.path(name) is None]

    def path(self, name: str) -> Path | None:
        return next((path for path in (self.folder / f"{name}.gz", self.folder / name) if path.is_file()), None)

    def content(self, name: str, check: bool = True) -> bytes:
        """What one of the files holds, unpacked; with `check` it must be what its makers publish."""
        path, remedy = self.path(name), f"delete it, and fetch it again from {self.form.origin(name)}"
        if path is None:
            raise ThalwegError(f"{self.folder / name} is missing: fetch it from {self.form.origin(name)}")
        content = path.read_bytes() if path.suffix != ".gz" else _unpacked(path, remedy)
        digest = md5(content, usedforsecurity=False).hexdigest()
        require(not check or digest == self.form.files[name], str(path), remedy)
        return content


def require(same: bool, what: str, remedy: str) -> None:
    if not same:
        raise ThalwegError(f"{what} is not the file its makers publish, for its md5 is another: {remedy}")


def _unpacked(path: Path, remedy: str) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ThalwegError(f"{path} is not a whole gz file ({error}): {remedy}") from None
