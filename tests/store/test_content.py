"""Hashes by content: equal for what is equal, different for what differs anywhere."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from thalweg.store import content
from thalweg.store.content import Content, digest_of


@dataclass
class Pair:
    one: object
    two: object


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Unpicklable:
    def __init__(self, value):
        self.value = value

    def __reduce_ex__(self, protocol):
        raise TypeError("no")


def adding(number):
    return lambda x: x + number


def circular(*items):
    around = list(items)
    around.append(around)
    return around


def generator(seed):
    return torch.Generator().manual_seed(seed)


def sparse(value):
    return torch.tensor([[0.0, value], [0.0, 0.0]]).to_sparse()


def nested(*sizes):
    return torch.nested.nested_tensor([torch.ones(n) for n in sizes], layout=torch.jagged)


def quantized(scale):
    with warnings.catch_warnings(action="ignore"):  # torch will remove them
        return torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.qint8)


MAKERS = {
    "int and float": [lambda: 1, lambda: 1.0, lambda: True, lambda: "1", lambda: b"1", lambda: 1 + 0j, lambda: None],
    "signs of zero": [lambda: 0.0, lambda: -0.0],
    "bytes": [lambda: b"a", lambda: b"b"],
    "no text": [lambda: "\ud800", lambda: "\ud801"],
    "list, tuple, set": [lambda: [1, 2], lambda: [2, 1], lambda: (1, 2), lambda: {1, 2}, lambda: {1, 3}],
    "nesting": [lambda: [[1], 2], lambda: [1, [2]], lambda: [1, 2]],
    "mappings": [lambda: {"a": 1, "b": 2}, lambda: {"a": 2, "b": 1}],
    "itself": [lambda: circular(1), lambda: circular(2), lambda: [1, [1]], lambda: circular(circular(1))],
    "tensors": [
        lambda: torch.zeros(2),
        lambda: torch.zeros(2, 1),
        lambda: torch.zeros(2, dtype=torch.int32),
        lambda: torch.tensor([0.0, -0.0]),
        lambda: torch.tensor([0.0, math.nan]),
    ],
    "bfloat16": [lambda: torch.ones(3, dtype=torch.bfloat16), lambda: torch.zeros(3, dtype=torch.bfloat16)],
    "conjugates": [lambda: torch.tensor([1 + 1j]).conj(), lambda: torch.tensor([1 + 1j])],
    "sparse": [lambda: sparse(1.0), lambda: sparse(2.0)],
    "nested tensors": [lambda: nested(1, 2), lambda: nested(2, 1)],
    "quantized": [lambda: quantized(0.5), lambda: quantized(0.25)],
    "arrays": [lambda: np.zeros(2), lambda: np.zeros(2, np.float32), lambda: np.array([0.0, 1.0])],
    "arrays of objects": [lambda: np.array(["a", None], object), lambda: np.array(["b", None], object)],
    "objects": [lambda: Pair(1, [2]), lambda: Pair(1, [3]), lambda: Slots(1), lambda: Slots(2)],
    "unpicklable": [lambda: Unpicklable(1), lambda: Unpicklable(2)],
    "functions": [lambda: adding(1), lambda: adding(2), lambda: math.sin, lambda: math.cos],
    "methods": [lambda: Pair(1, 2).__eq__, lambda: Pair(1, 3).__eq__],
    "generators": [lambda: generator(1), lambda: generator(2)],
    "types": [lambda: torch.float32, lambda: torch.float64, lambda: torch.device("cpu"), lambda: Pair, lambda: Slots],
}


@pytest.mark.parametrize("kind", MAKERS)
def test_hashes_are_equal_if_and_only_if_contents_are(kind):
    first, second = ([digest_of(make()) for make in MAKERS[kind]] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_hashes_do_not_depend_on_the_order_of_sets_and_mappings_or_on_the_layout_of_memory():
    assert digest_of({"a": 1, "b": {2, 3}}) == digest_of({"b": {3, 2}, "a": 1})
    matrix = torch.arange(6.0).reshape(2, 3)
    assert digest_of(matrix.T) == digest_of(matrix.T.contiguous())
    assert digest_of(matrix.numpy().T) == digest_of(matrix.numpy().T.copy())


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
@pytest.mark.parametrize("place", [0, 1000, -1])
def test_hashes_of_large_data_are_of_blocks_from_the_first_to_the_last(kind, place, monkeypatch):
    """Which leave out most of it."""
    monkeypatch.setattr(content, "LARGE", 1 << 10)
    monkeypatch.setattr(content, "BLOCK", 1 << 7)
    monkeypatch.setattr(content, "BLOCKS", 3)
    item = kind(2001)
    before = digest_of(item)
    seen = Content()
    seen.add(item)
    assert seen.size < item.nbytes / 4
    item[place] = 1
    assert digest_of(item) != before
    item[place] = 0
    item[300] = 1
    assert digest_of(item) == before
