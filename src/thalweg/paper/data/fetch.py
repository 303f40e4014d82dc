"""A data set in a folder: found, checked against the published md5, and downloaded if asked."""

import gzip
import os
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from hashlib import md5
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

from ...errors import ThalwegError
from ...runtime.progress import Progress
from .sources import SETS, Form

MB = 1_000_000
LARGEST = 2**30  # bytes that a compressed file of a data set may decompress to
PATIENCE = 60  # seconds without an answer


class Copy(NamedTuple):
    """A data set in one of its forms, and the folder of its files, compressed (.gz) or not."""

    form: Form
    folder: Path

    def missing(self) -> list[str]:
        return [name for name in self.form.files if self.path(name) is None]

    def path(self, name: str) -> Path | None:
        return next((path for path in (self.folder / f"{name}.gz", self.folder / name) if path.is_file()), None)

    def content(self, name: str, check: bool = True) -> bytes:
        """The decompressed content of one of the files; with `check` its md5 must be the published one."""
        path, remedy = self.path(name), f"delete it, and fetch it again from {self.form.origin(name)}"
        if path is None:
            raise ThalwegError(f"{self.folder / name} is missing: fetch it from {self.form.origin(name)}")
        content = path.read_bytes() if path.suffix != ".gz" else _unpacked(path, remedy)
        digest = md5(content, usedforsecurity=False).hexdigest()
        require(not check or digest == self.form.files[name], str(path), remedy)
        return content


def find_data(folder: str | Path | None = None) -> Path:
    """The folder of data sets: the one given, or the one in the environment variable THALWEG_DATA.

    Examples:
        >>> find_data("/data").as_posix()
        '/data'

    Args:
        folder: A folder, or None to look at the environment.
    """
    chosen = folder or os.environ.get("THALWEG_DATA")
    if not chosen:
        raise ThalwegError(
            "no folder with data sets is known: name one, or set the environment variable THALWEG_DATA to it"
        )
    return Path(chosen)


def found(name: str, folder: str | Path, download: bool) -> Copy:
    """The copy of a data set in `folder`, in whichever form; if there is none it is downloaded, or the error says how
    to.
    """
    folder, form = Path(folder), SETS[name][0]
    usual = Copy(form, folder / form.home)
    copies = [Copy(form, folder / place) for form in SETS[name] for place in form.places]
    for copy in copies:
        if not copy.missing():
            return copy
    if download:
        fetch(form, folder)
        return usual
    best = min([usual, *copies], key=lambda copy: len(copy.missing()) - len(copy.form.files))
    raise ThalwegError(
        f"{form.title} must lie in {folder} as its makers publish it, and {best.folder / best.missing()[0]} is not "
        f"there: {_by_hand(best.form, folder)}, or let it be fetched: --download, in Python download=True"
    )


def fetch(form: Form, folder: Path) -> None:
    """Download the files of one form of a data set to their place below `folder`, where they appear once complete."""
    home = folder / form.home
    for url, expected in form.urls.items():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=home, prefix=".fetching-") as scratch:
                path = Path(scratch) / posixpath.basename(url)
                download(url, expected, path)
                for whole in _unpack(form, path) if form.archived else [path]:
                    whole.replace(home / whole.name)
        except (OSError, HTTPException, tarfile.TarError) as error:
            raise ThalwegError(f"{url} could not be fetched ({error}): {_by_hand(form, folder)}") from error


def download(url: str, expected: str, path: Path) -> None:
    """Download a file, which must have the expected md5."""
    digest = md5(usedforsecurity=False)
    with urlopen(url, timeout=PATIENCE) as answer, open(path, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        with Progress(f"{path.name}, MB", -(-size // MB)) as progress:
            while piece := answer.read(MB):
                file.write(piece)
                digest.update(piece)
                progress.advance()
        if file.tell() < size:
            raise OSError(f"it broke off after {file.tell():,} of {size:,} bytes")
    require(digest.hexdigest() == expected, f"what came from {url}", "try again later, or ask its makers")


def _unpack(form: Form, archive: Path) -> Iterator[Path]:
    """Only the files of the form, under names of ours: nothing in the archive decides where anything is written."""
    names = {f"{form.home}/{name}": name for name in form.files}
    with tarfile.open(archive) as members:
        for member in members:
            name = names.get(posixpath.normpath(member.name))
            content = members.extractfile(member) if name and member.isfile() else None
            if name and content:
                path = archive.with_name(name)
                path.write_bytes(content.read())
                yield path


def _by_hand(form: Form, folder: Path) -> str:
    urls = ", ".join(form.urls)
    return f"unpack {urls} in {folder}" if form.archived else f"put {urls} into {folder / form.home}"


def require(same: bool, what: str, remedy: str) -> None:
    if not same:
        raise ThalwegError(f"{what} is not the file its makers publish, for its md5 is another: {remedy}")


def _unpacked(path: Path, remedy: str) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise EOFError(f"it does not end after {LARGEST:,} bytes")
        return content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ThalwegError(f"{path} is not a whole gz file ({error}): {remedy}") from None
