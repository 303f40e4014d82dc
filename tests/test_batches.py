"""Batches: every nest of tensors is moved, everything else is left alone."""

from collections import namedtuple
from dataclasses import dataclass, field

import pytest
import torch

import thalweg as tw
from thalweg.batches import count, to_device
from thalweg.runtime.transfer import moved

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


def test_batches_of_nested_tensors_are_moved():
    meta, x = torch.device("meta"), torch.ones(2)
    batch = {"pair": Pair(x, [x, "text"]), "record": Record(x, "name"), "own": Movable(), "none": None}
    out = to_device(batch, meta)
    assert isinstance(out["pair"], Pair)
    assert out["pair"].x.device == out["pair"].y[0].device == out["record"].x.device == meta
    assert out["pair"].y[1] == "text"
    assert out["record"].name == "name"
    assert out["own"].device == meta
    assert out["none"] is None


@dataclass
class Prepared:
    x: torch.Tensor
    scale: float = field(init=False, default=1.0)

    def __post_init__(self):
        self.x = self.x / 255


def test_batches_of_a_dataclass_are_not_rebuilt():
    batch = Prepared(torch.full((2,), 255.0))
    batch.scale = 3.0
    out = to_device(batch, torch.device("cpu"))
    assert out.x.tolist() == [1.0, 1.0]
    assert out.scale == 3.0


def test_batches_of_a_custom_dict_stay_one():
    class Record(dict):
        __getattr__ = dict.__getitem__

    out = to_device(Record(x=torch.ones(1)), torch.device("meta"))
    assert isinstance(out, Record)
    assert out.x.device.type == "meta"


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"a": [1]}, "of one data set; got a dict of 'a': give one, or a list of batches"),
        ([], "are empty"),
        (iter([1]), "must have a length"),
        ((i for i in [1]), "must have a length"),
    ],
)
def test_batches_refuse_what_is_no_list_of_batches(batches, message):
    with pytest.raises(tw.ThalwegError, match=message):
        count(batches)


def test_batches_refuse_a_length_that_promises_too_much():
    class Liar:
        def __len__(self):
            return 3

        def __iter__(self):
            return iter(())

    with pytest.raises(tw.ThalwegError, match="of the batches is 3, but iterating gave none"):
        list(moved(Liar(), torch.device("cpu")))


X, Y = torch.randn(8, 4), torch.zeros(8).long()
TASK = tw.classification()
CALLS = {
    "fit": lambda m, w, batches: tw.fit(m, TASK, batches, epochs=1, lr=0.1),
    "align": lambda m, w, batches: tw.align(m, w, w, TASK, batches),
    "align, activations": lambda m, w, batches: tw.align(m, w, w, TASK, batches, by="activations"),
    "scan": lambda m, w, batches: tw.scan(m, [w], TASK, {"test": batches}),
    "barriers": lambda m, w, batches: tw.barriers(m, [w, w], TASK, {"test": batches}, bn_batches=[(X, Y)]),
    "score": lambda m, w, batches: tw.Ensemble(m, [w]).score(TASK, batches),
    "update_bn": lambda m, w, batches: tw.update_bn(m, w, batches),
    "update_bn, task": lambda m, w, batches: tw.update_bn(m, w, batches, TASK),
}


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], {"input": X, "labels": Y}], ids=["tuple", "list", "dict"])
@pytest.mark.parametrize("call", CALLS)
def test_one_batch_in_place_of_a_list_is_refused(call, batch):
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    with pytest.raises(tw.ThalwegError) as refused:
        CALLS[call](module, tw.Weights.of(module), batch)
    said = str(refused.value)
    assert "[batch]" in said
    assert "a list of batches" in said
    assert "float64" not in said
