"""Batches: every nest of tensors is moved, everything else is left alone."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

import thalweg as tw
from thalweg.batches import count, moved, to_device

Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    x: torch.Tensor
    name: str


class Movable:
    def __init__(self, device="cpu"):
        self.device = device

    def to(self, device):
        return Movable(device)


def test_tensors_in_any_nest_are_moved():
    meta, x = torch.device("meta"), torch.ones(2)
    batch = {"pair": Pair(x, [x, "text"]), "record": Record(x, "name"), "own": Movable(), "none": None}
    out = to_device(batch, meta)
    assert isinstance(out["pair"], Pair)
    assert out["pair"].x.device == out["pair"].y[0].device == out["record"].x.device == meta
    assert out["pair"].y[1] == "text"
    assert out["record"].name == "name"
    assert out["own"].device == meta
    assert out["none"] is None


@pytest.mark.parametrize(
    ("batches", "message"),
    [([], "are empty"), (iter([1]), "must have a length"), ((i for i in [1]), "must have a length")],
)
def test_what_is_no_set_of_batches(batches, message):
    with pytest.raises(tw.ThalwegError, match=message):
        count(batches)


def test_a_length_that_promises_too_much():
    class Liar:
        def __len__(self):
            return 3

        def __iter__(self):
            return iter(())

    with pytest.raises(tw.ThalwegError, match="are empty"):
        list(moved(Liar(), torch.device("cpu")))
