"""The idx files of MNIST and its relatives."""

import gzip

import pytest
import torch

import thalweg as tw
from thalweg.paper.data import mnist


def idx(array):
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + shape + array.numpy().tobytes()


@pytest.fixture
def files():
    g = torch.Generator().manual_seed(0)
    contents = {}
    for part, count in (("train", 7), ("t10k", 3)):
        contents[f"{part}-images-idx3-ubyte"] = idx(torch.randint(256, (count, 28, 28), generator=g).to(torch.uint8))
        contents[f"{part}-labels-idx1-ubyte"] = idx(torch.arange(count).to(torch.uint8))
    return contents


def packed(files, part="images"):
    return {
        f"{name}.gz" if part in name else name: gzip.compress(f) if part in name else f for name, f in files.items()
    }


def test_idx_packed_and_plain_files(tmp_path, files, written):
    written(tmp_path, packed(files))
    (train, labels), (test, _) = mnist(tmp_path)
    assert train.shape == (7, 1, 28, 28)
    assert labels.tolist() == list(range(7))
    assert idx(test[:, 0]) == files["t10k-images-idx3-ubyte"]


def test_idx_only_the_folder_of_mnist_itself_must_hold_its_files(tmp_path, files, published, written):
    written(tmp_path / "MNIST" / "raw", packed(files))
    for folder in (tmp_path, tmp_path / "MNIST" / "raw"):
        with pytest.raises(
            tw.ThalwegError,
            match=r"train-images-idx3-ubyte\.gz is not the published file.*mnist/train-images-idx3-ubyte",
        ):
            mnist(folder)
    published("mnist", files)
    assert len(mnist(tmp_path)[0][0]) == 7


def test_idx_damaged_and_missing_files(tmp_path, files, written):
    written(tmp_path, packed(files))
    labels, images = tmp_path / "train-labels-idx1-ubyte", tmp_path / "train-images-idx3-ubyte.gz"
    labels.write_bytes(files[labels.name][:-1])
    with pytest.raises(tw.ThalwegError, match="train-labels-idx1-ubyte is not a whole idx file"):
        mnist(tmp_path)
    labels.write_bytes(files["t10k-labels-idx1-ubyte"])
    with pytest.raises(tw.ThalwegError, match="holds 7 images and train-labels-idx1-ubyte 3 labels"):
        mnist(tmp_path)
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(tw.ThalwegError, match=r"train-images-idx3-ubyte\.gz is not a whole gz file"):
        mnist(tmp_path)
    labels.unlink()
    with pytest.raises(tw.ThalwegError, match=r"train-labels-idx1-ubyte is missing: put https.*into .*MNIST.raw"):
        mnist(tmp_path)
