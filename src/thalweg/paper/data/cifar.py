"""CIFAR-10 and CIFAR-100, in the published binary or Python version."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ThalwegError
from .fetch import Copy, found
from .pickles import read_pickle
from .splits import Pair


def cifar10(folder: str | Path, *, download: bool = False) -> tuple[Pair, Pair]:
    """Training and test images of CIFAR-10 (uint8, 3 x 32 x 32) with their labels.

    Examples:
        >>> (images, labels), test = cifar10("data")  # doctest: +SKIP
        >>> images.shape, labels[:4].tolist()  # doctest: +SKIP
        (torch.Size([50000, 3, 32, 32]), [6, 9, 9, 4])

    Args:
        folder: Where the files are, or the folder that contains `cifar-10-batches-bin` or `cifar-10-batches-py`.
        download: Download the data set from its authors if it is not there.
    """
    return _read("cifar10", folder, download, labels=1)


def cifar100(folder: str | Path, *, download: bool = False) -> tuple[Pair, Pair]:
    """Training and test images of CIFAR-100 (uint8, 3 x 32 x 32) with their fine labels.

    Examples:
        >>> (images, labels), test = cifar100("data")  # doctest: +SKIP
        >>> images.shape, labels[:4].tolist()  # doctest: +SKIP
        (torch.Size([50000, 3, 32, 32]), [19, 29, 0, 11])

    Args:
        folder: Where the files are, or the folder that contains `cifar-100-binary` or `cifar-100-python`.
        download: Download the data set from its authors if it is not there.
    """
    return _read("cifar100", folder, download, labels=2)


def _read(name: str, folder: str | Path, download: bool, labels: int) -> tuple[Pair, Pair]:
    copy = found(name, folder, download)
    *train, test = (
        _pickled(copy, file) if "." not in file else _binary(copy, file, labels) for file in copy.form.files
    )
    images, targets = zip(*train, strict=True)
    return (torch.cat(images), torch.cat(targets)), test


def _binary(copy: Copy, name: str, labels: int) -> Pair:
    """A row of bytes for each image: its labels, of which the last is the fine one, then its pixels."""
    rows = torch.frombuffer(bytearray(copy.content(name)), dtype=torch.uint8).reshape(-1, labels + 3 * 32 * 32)
    return _shaped(rows[:, labels:]), rows[:, labels - 1].long()


def _pickled(copy: Copy, name: str) -> Pair:
    return images_of(read_pickle(copy.content(name), copy.folder / name), copy.folder / name)


def images_of(entries: Mapping[str, Any], path: Path) -> Pair:
    """The images and labels in a pickle.

    Args:
        entries: The content of the pickle.
        path: Its path, for the error message.
    """
    try:
        labels = entries["fine_labels"] if "fine_labels" in entries else entries["labels"]
        return _shaped(entries["data"].tensor()), torch.tensor(labels, dtype=torch.long)
    except Exception as error:  # a damaged pickle may hold anything
        raise ThalwegError(f"{path} does not hold images with labels ({error!r}): fetch it again") from error


def _shaped(pixels: Tensor) -> Tensor:
    return pixels.contiguous().reshape(-1, 3, 32, 32)
