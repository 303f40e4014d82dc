"""The idx files of MNIST and its relatives."""

import gzip

import pytest
import torch

import thalweg as tw
from thalweg.data import mnist


def idx(array):
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + shape + array.numpy().tobytes()


@pytest.fixture
def folder(tmp_path):
    g = torch.Generator().manual_seed(0)
    for part, count in (("train", 7), ("t10k", 3)):
        images = torch.randint(256, (count, 28, 28), generator=g).to(torch.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(torch.arange(count).to(torch.uint8)))
    return tmp_path, images


def test_packed_and_plain_files(folder):
    path, test_images = folder
    (train, labels), (test, _) = mnist(path)
    assert train.shape == (7, 1, 28, 28)
    assert labels.tolist() == list(range(7))
    assert torch.equal(test[:, 0], test_images)


def test_damaged_and_missing_files(folder):
    path, _ = folder
    labels = path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(tw.ThalwegError, match="train-labels-idx1-ubyte is not a whole idx file"):
        mnist(path)
    labels.unlink()
    with pytest.raises(tw.ThalwegError, match=r"must hold train-labels-idx1-ubyte\.gz"):
        mnist(path)
