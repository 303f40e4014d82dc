"""MNIST and similar data sets, in the published idx files."""

from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ...errors import ThalwegError
from .fetch import Copy, found
from .splits import Pair


def mnist(folder: str | Path, *, download: bool = False) -> tuple[Pair, Pair]:
    """Training and test images (uint8, 1 x 28 x 28) of MNIST, Fashion-MNIST or another set in that format, with their
    labels.

    Examples:
        >>> (images, labels), test = mnist("data")  # doctest: +SKIP
        >>> images.shape, labels[:4].tolist()  # doctest: +SKIP
        (torch.Size([60000, 1, 28, 28]), [5, 0, 4, 1])

    Args:
        folder: Where the four `*-ubyte` files are, compressed (.gz) or not, or the folder that contains `MNIST/raw`.
            Files in a folder of that name must be those of MNIST itself; elsewhere they may be those of a similar set.
        download: Download MNIST from its authors if the files are not there.
    """
    copy = found("mnist", folder, download)
    train_images, train_labels, test_images, test_labels = copy.form.files
    return _pair(copy, train_images, train_labels), _pair(copy, test_images, test_labels)


def _pair(copy: Copy, images: str, labels: str) -> Pair:
    pixels, targets = _array(copy, images, 3), _array(copy, labels, 1)
    if len(pixels) != len(targets):
        raise ThalwegError(f"{copy.folder}: {images} holds {len(pixels)} images and {labels} {len(targets)} labels")
    return pixels[:, None], targets.long()


def _array(copy: Copy, name: str, dimensions: int) -> Tensor:
    """An array of bytes: two zeros, a type, the number of dimensions, each dimension, then the data."""
    content = copy.content(name, check=copy.folder.parts[-2:] == ("MNIST", "raw"))
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    data = content[4 + 4 * dimensions :]
    if content[:4] != bytes([0, 0, 8, dimensions]) or not data or len(data) != prod(shape):
        raise ThalwegError(f"{copy.path(name)} is not a whole idx file of bytes: fetch it again")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)
