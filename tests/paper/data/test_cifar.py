"""Both versions of CIFAR give the same arrays; a file that is not the published one is refused."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

import thalweg as tw
from thalweg.paper.data import cifar10, cifar100
from thalweg.paper.data.readers import read_pickle

READERS = {"cifar10": cifar10, "cifar100": cifar100}
PARTS = {"cifar10": [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], "cifar100": ["train", "test"]}
HOMES = {
    "cifar10": ["cifar-10-batches-bin", "cifar-10-batches-py"],
    "cifar100": ["cifar-100-binary", "cifar-100-python"],
}
ROWS = 2  # in every file


def arrays(name):
    generator = np.random.default_rng(0)
    for part in PARTS[name]:
        pixels = generator.integers(256, size=(ROWS, 3072)).astype(np.uint8)
        yield part, pixels, generator.integers(20, size=ROWS), generator.integers(10, size=ROWS)


def binary(name):
    columns = {"cifar10": lambda coarse, fine: [fine], "cifar100": lambda coarse, fine: [coarse, fine]}[name]
    return {
        f"{part}.bin": b"".join(
            bytes([*map(int, columns(c, f))]) + row.tobytes() for row, c, f in zip(pixels, coarse, fine, strict=True)
        )
        for part, pixels, coarse, fine in arrays(name)
    }


def entries(name, pixels, coarse, fine):
    if name == "cifar10":
        return {"data": pixels, "labels": fine.tolist(), "batch_label": "one of five"}
    return {
        "data": pixels,
        "fine_labels": fine.tolist(),
        "coarse_labels": coarse.tolist(),
        "filenames": ["a.png", "b.png"],
    }


def pickled(name, dumps):
    return {part: dumps(entries(name, *rest)) for part, *rest in arrays(name)}


def by_python_3(table):
    return pickle.dumps(table, protocol=2)


def by_python_2(table, by_columns=False):
    """The opcodes that Python 2 wrote, as in the published files: texts without a kind, and numpy's old names."""

    def write(value):
        if isinstance(value, str | bytes):
            content = value.encode() if isinstance(value, str) else value
            return b"T" + struct.pack("<i", len(content)) + content
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(write, value)) + b"e"
        rows, columns = value.shape
        kind = (
            b"cnumpy\ndtype\n"
            + write("u1")
            + b"K\x00K\x01\x87R(K\x03"
            + write("|")
            + b"NNN"
            + 2 * write(-1)
            + b"K\x00tb"
        )
        content = write(value.tobytes(order="F" if by_columns else "C"))
        start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + write("b") + b"\x87R"
        return (
            start
            + b"(K\x01"
            + write(rows)
            + write(columns)
            + b"\x86"
            + kind
            + b"\x89\x88"[by_columns:][:1]
            + content
            + b"tb"
        )

    return b"\x80\x02}(" + b"".join(write(key) + write(value) for key, value in table.items()) + b"u."


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_cifar_versions_give_the_same(name, below, tmp_path, published, written):
    versions = [binary(name), pickled(name, by_python_2), pickled(name, by_python_3)]
    results = []
    for i, (version, form) in enumerate(zip(versions, [0, 1, 1], strict=True)):
        published(name, version, form=form)
        written(tmp_path / str(i) / (HOMES[name][form] if below else "."), version)
        results.append(READERS[name](tmp_path / str(i)))
    for train, test in results:
        for (images, labels), parts in ((train, list(arrays(name))[:-1]), (test, list(arrays(name))[-1:])):
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            assert images.shape == (ROWS * len(parts), 3, 32, 32)
            assert np.array_equal(images.flatten(1), np.concatenate([pixels for _, pixels, _, _ in parts]))
            assert labels.tolist() == np.concatenate([fine for _, _, _, fine in parts]).tolist()


@pytest.mark.parametrize("by_columns", [False, True])
def test_cifar_python_arrays_in_both_orders(by_columns, tmp_path):
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    read = read_pickle(by_python_2({"data": values}, by_columns), tmp_path)["data"].tensor()
    assert np.array_equal(read, values)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:-1] + bytes([content[-1] ^ 1])]
)
def test_cifar_refuses_a_damaged_file(damage, tmp_path, published, written):
    files = binary("cifar100")
    published("cifar100", files)
    written(tmp_path, {**files, "test.bin": damage(files["test.bin"])})
    with pytest.raises(tw.ThalwegError, match=r"test\.bin is not the published file.*again from https.*binary\.tar"):
        cifar100(tmp_path)


class Evil:
    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_pickle_cannot_run_code(protocol, tmp_path, published, written):
    evil = Evil()
    evil.path = str(tmp_path / "was here")
    files = {
        **pickled("cifar100", by_python_3),
        "test": pickle.dumps({"data": evil, "fine_labels": []}, protocol=protocol),
    }
    published("cifar100", files, form=1)
    written(tmp_path / "cifar-100-python", files)
    with pytest.raises(tw.ThalwegError, match=r"cifar-100-python.test must be a pickle of plain arrays, .* \w+\.mkdir"):
        cifar100(tmp_path)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy._core.multiarray.fromfile", "torch.load"])
def test_cifar_pickle_refuses_other_names(name, tmp_path):
    module, _, function = name.rpartition(".")
    with pytest.raises(tw.ThalwegError, match=f"asks for {name}"):
        read_pickle(f"c{module}\n{function}\n.".encode(), tmp_path)


def test_cifar_names_absent_files(tmp_path, published, written):
    with pytest.raises(tw.ThalwegError) as error:
        cifar10(tmp_path)
    assert str(error.value) == (
        f"CIFAR-10 must be in {tmp_path} as it is published, and "
        f"{tmp_path}/cifar-10-batches-bin/data_batch_1.bin is missing: unpack "
        f"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz in {tmp_path}, or download it with download=True"
    )
    files = pickled("cifar10", by_python_3)
    published("cifar10", files, form=1)
    del files["data_batch_4"]
    written(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(tw.ThalwegError, match=r"batches-py.data_batch_4 is missing: unpack .*cifar-10-python\.tar\.gz"):
        cifar10(tmp_path)
