"""Where the data sets come from; one in a folder: found, checked against the published md5, downloaded if asked."""

import gzip
import os
import posixpath
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import md5
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

from ...errors import ThalwegError
from ...runtime.compute import Call, Compute

MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
MB = 1_000_000
LARGEST = 2**30  # bytes that a compressed file of a data set may decompress to
PATIENCE = 60  # seconds without an answer


@dataclass(frozen=True)
class Form:
    """One of the forms in which a data set is published.

    Args:
        title: Its name.
        home: Where its files are below the data folder, and where they go when downloaded.
        files: The md5 of each file's decompressed content.
        urls: The published downloads, with the md5 of each.
        also: Other places where people keep copies.
    """

    title: str
    home: str
    files: Mapping[str, str]
    urls: Mapping[str, str]
    also: tuple[str, ...] = ()

    @property
    def archived(self) -> bool:
        """Whether the files come in one archive, or each on its own."""
        return all(url.endswith((".tar.gz", ".tgz")) for url in self.urls)

    def origin(self, name: str) -> str:
        """The URL of one of the files."""
        return next((url for url in self.urls if PurePosixPath(url).stem == name), next(iter(self.urls)))


SETS: dict[str, tuple[Form, ...]] = {
    "cifar10": (
        Form(
            "CIFAR-10",
            "cifar-10-batches-bin",
            files={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
            urls={"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        ),
        Form(
            "CIFAR-10",
            "cifar-10-batches-py",
            files={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            urls={"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        ),
    ),
    "cifar100": (
        Form(
            "CIFAR-100",
            "cifar-100-binary",
            files={
                "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
                "test.bin": "4499cfba6c016c1be1438163640a0898",
            },
            urls={"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        ),
        Form(
            "CIFAR-100",
            "cifar-100-python",
            files={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
            urls={"https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        ),
    ),
    "mnist": (
        Form(
            "MNIST",
            "MNIST/raw",
            files={
                "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
                "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
                "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
                "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
            },
            urls={
                f"{MNIST}/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                f"{MNIST}/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                f"{MNIST}/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                f"{MNIST}/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    ),
    "ptb": (
        Form(
            "the Penn Treebank",
            "simple-examples/data",
            files={
                "ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
                "ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
                "ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
            },
            urls={"http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz": "30177ea32e27c525793142b6bf2c8e2d"},
            also=("ptb",),
        ),
    ),
}


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
        path, remedy = self.path(name), f"delete it, and download it again from {self.form.origin(name)}"
        if path is None:
            raise ThalwegError(f"{self.folder / name} is missing: download it from {self.form.origin(name)}")
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
            "no folder with data sets is known: give one (--data on the command line), or set the environment variable "
            "THALWEG_DATA to it"
        )
    return Path(chosen)


def found(name: str, folder: str | Path, download: bool) -> Copy:
    """The copy of a data set in `folder`, in whichever form; if there is none it is downloaded, or the error says how
    to.
    """
    folder, form = Path(folder), SETS[name][0]
    usual = Copy(form, folder / form.home)
    copies = [Copy(form, folder / place) for form in SETS[name] for place in (".", form.home, *form.also)]
    for copy in copies:
        if not copy.missing():
            return copy
    if download:
        fetch(form, folder)
        return usual
    best = min([usual, *copies], key=lambda copy: len(copy.missing()) - len(copy.form.files))
    raise ThalwegError(
        f"{form.title} must be in {folder} as it is published, and {best.folder / best.missing()[0]} is missing: "
        f"{_by_hand(best.form, folder)}, or download it with download=True"
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
            raise ThalwegError(f"{url} could not be downloaded ({error}): {_by_hand(form, folder)}") from error


def download(url: str, expected: str, path: Path) -> None:
    """Download a file, which must have the expected md5."""
    digest = md5(usedforsecurity=False)
    with urlopen(url, timeout=PATIENCE) as answer, open(path, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        with Call(Compute()).bar(f"{path.name}, MB", -(-size // MB)) as progress:
            while piece := answer.read(MB):
                file.write(piece)
                digest.update(piece)
                progress.advance()
        if file.tell() < size:
            raise OSError(f"the download broke off after {file.tell():,} of {size:,} bytes")
    require(digest.hexdigest() == expected, f"the download of {url}", "try again later, or ask its publisher")


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
        raise ThalwegError(f"{what} is not the published file, since its md5 differs: {remedy}")


def _unpacked(path: Path, remedy: str) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise EOFError(f"it does not end after {LARGEST:,} bytes")
        return content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ThalwegError(f"{path} is not a whole gz file ({error}): {remedy}") from None
