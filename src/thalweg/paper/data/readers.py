"""The data sets: digits inside scikit-learn, MNIST, CIFAR and the Penn Treebank as they are published."""

import io
import pickle
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ThalwegError
from .fetch import Copy, found

Pair = tuple[Tensor, Tensor]  # images with their labels


def digits() -> tuple[Pair, Pair]:
    """Training and test images (uint8, 1 x 8 x 8) with their labels; those for testing are by other writers.

    Examples:
        >>> (images, labels), (test_images, _) = digits()
        >>> images.shape, images.dtype, len(test_images)
        (torch.Size([1297, 1, 8, 8]), torch.uint8, 500)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    return held_out((images, torch.tensor(labels, dtype=torch.long)), count=500)


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
        raise ThalwegError(f"{copy.path(name)} is not a whole idx file of bytes: download it again")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)


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
    return _cifar("cifar10", folder, download, labels=1)


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
    return _cifar("cifar100", folder, download, labels=2)


def _cifar(name: str, folder: str | Path, download: bool, labels: int) -> tuple[Pair, Pair]:
    copy = found(name, folder, download)
    *train, test = (
        _binary(copy.content(file), labels)
        if file.endswith(".bin")
        else images_of(read_pickle(copy.content(file), copy.folder / file), copy.folder / file)
        for file in copy.form.files
    )
    images, targets = zip(*train, strict=True)
    return (torch.cat(images), torch.cat(targets)), test


def _binary(content: bytes, labels: int) -> Pair:
    """A row of bytes for each image: its labels, of which the last is the fine one, then its pixels."""
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, labels + 3 * 32 * 32)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].long()


def images_of(entries: Mapping[str, Any], path: Path) -> Pair:
    """The images and labels in a pickle.

    Args:
        entries: The content of the pickle.
        path: Its path, for the error message.
    """
    try:
        labels = entries["fine_labels" if "fine_labels" in entries else "labels"]
        return entries["data"].tensor().reshape(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.long)
    except Exception as error:  # a damaged pickle may hold anything
        raise ThalwegError(f"{path} does not hold images with labels ({error!r}): download it again") from error


class Array:
    """Stands in for NumPy's array and for the types named in it: keeps the content of the pickle, and runs no code."""

    def __init__(self, *arguments: object):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self) -> Tensor:
        _, shape, _, by_columns, content = self.state
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return values.reshape(shape[::-1]).T if by_columns else values.reshape(shape)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


STAND_INS = {
    "numpy.core.multiarray._reconstruct": Array,
    "numpy._core.multiarray._reconstruct": Array,
    "numpy.ndarray": Array,
    "numpy.dtype": Array,
    "_codecs.encode": _encode,  # how Python 3 writes bytes for Python 2
}


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in STAND_INS:
            raise ThalwegError(
                f"{self.path} must be a pickle of plain arrays, and it asks for {module}.{name}, which could run "
                "anything: do not use it, and download it again from its publisher"
            )
        return STAND_INS[f"{module}.{name}"]


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """A dict of lists, strings and `Array`s.

    Examples:
        >>> read_pickle(pickle.dumps({b"labels": [3, 8]}), Path("train"))
        {'labels': [3, 8]}

    Args:
        content: The pickle.
        path: Its path, for the error message.
    """
    try:
        return {
            key.decode() if isinstance(key, bytes) else key: value
            for key, value in _Reader(content, path).load().items()
        }
    except ThalwegError:
        raise
    except Exception as error:  # a damaged pickle may end in any of them
        raise ThalwegError(
            f"{path} is not a whole pickle of arrays ({type(error).__name__}): download it again"
        ) from error


class Corpus(NamedTuple):
    """The tokens of a text (int64), in three parts, and the words they stand for."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: list[str]


def ptb(folder: str | Path, *, download: bool = False) -> Corpus:
    """The Penn Treebank: 929,589 training, 73,760 validation and 82,430 test tokens; 10,000 words.

    Examples:
        >>> train, valid, test, words = ptb("data")  # doctest: +SKIP
        >>> " ".join(words[token] for token in train[24:35].tolist())  # doctest: +SKIP
        '<eos> pierre <unk> N years old will join the board as'

    Words are numbered by their frequency in the training part, most frequent first, then alphabetically; every line
    ends with the word `<eos>`.

    Args:
        folder: Where `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt` are, or the folder that contains `ptb` or
            `simple-examples/data`.
        download: Download the text if it is not there.
    """
    copy = found("ptb", folder, download)
    parts = [copy.content(name).decode().replace("\n", " <eos> ").split() for name in copy.form.files]
    counts = Counter(parts[0])
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(words)}
    train, valid, test = (torch.tensor([number[word] for word in part]) for part in parts)
    return Corpus(train, valid, test, words)


def held_out(train: Pair, count: int = 5000) -> tuple[Pair, Pair]:
    """Split off the last `count` training images, to choose settings with.

    Examples:
        >>> import torch
        >>> (_, labels), (_, held) = held_out((torch.zeros(10, 1, 8, 8), torch.arange(10)), count=3)
        >>> labels.tolist(), held.tolist()
        ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])

    Args:
        train: Images and labels.
        count: The number of images to hold out.

    Returns:
        The rest of the training set, and the held-out images, each with labels.
    """
    images, labels = train
    if not 0 < count < len(images):
        raise ThalwegError(f"count must be above 0 and below {len(images)}, the number of images; got {count}")
    return (images[:-count], labels[:-count]), (images[-count:], labels[-count:])
