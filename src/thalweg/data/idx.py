"""MNIST and its relatives, in the idx files their makers publish."""

import gzip
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ThalwegError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(folder: str | Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images (uint8, 1 x 28 x 28) with their labels, of MNIST, Fashion-MNIST or another set of that form.

    folder: where the four `*-ubyte` files lie, packed (.gz) or not.
    """
    sets = []
    for images, labels in FILES:
        pixels, targets = read_idx(_find(Path(folder), images)), read_idx(_find(Path(folder), labels))
        if len(pixels) != len(targets):
            raise ThalwegError(f"{folder}: {images} holds {len(pixels)} images and {labels} {len(targets)} labels")
        sets.append((pixels[:, None], targets.long()))
    return sets[0], sets[1]


def read_idx(path: Path) -> Tensor:
    """An array of bytes: two zeros, a type, the number of dimensions, each dimension, then the data."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3] if len(content) > 4 and content[:3] == b"\0\0\x08" else 0
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    data = content[4 + 4 * dimensions :]
    if not dimensions or len(data) != prod(shape):
        raise ThalwegError(f"{path} is not a whole idx file of bytes: fetch it again")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise ThalwegError(f"{folder} must hold {name}.gz, as its makers publish it: fetch it, or name another folder")
