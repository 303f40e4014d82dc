"""Whether two batches are called in the same way, whatever objects are beside their tensors."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.alignment.alike import alike


@dataclass(slots=True)
class Slots:
    x: torch.Tensor
    ids: Any


class Settings:
    """Equal only to itself."""

    def __init__(self, mode):
        self.mode = mode


class Ambiguous:
    """As a table of which every entry is compared."""

    def __eq__(self, other):
        raise ValueError("the truth value is ambiguous")

    __hash__ = None


@pytest.mark.parametrize("make", [lambda x, ids: (x, ids), lambda x, ids: {"x": x, "ids": [ids]}, Slots])
def test_alike_compares_shapes_of_tensors_and_values_of_everything_else(make):
    x = torch.zeros(2, 3)
    for ids, others in ((np.arange(3), np.ones(3)), (Settings("a"), Settings("b")), ("a", None)):
        same = np.arange(3) if isinstance(ids, np.ndarray) else Settings("a") if isinstance(ids, Settings) else ids
        assert alike(make(x, ids), make(x + 1, same))
        assert not alike(make(x, ids), make(x, others))
        assert not alike(make(x, ids), make(x[1:], same))


def test_alike_tells_dicts_apart_whose_tensors_come_in_another_order():
    x = torch.zeros(2, 3)
    assert alike({"x": x, "y": x}, {"x": x + 1, "y": x})
    assert not alike({"x": x, "y": x}, {"y": x, "x": x})


def test_alike_takes_objects_that_cannot_be_compared_for_others():
    assert not alike((torch.zeros(2), Ambiguous()), (torch.zeros(2), Ambiguous()))


@dataclass
class Flagged:
    """With an attribute that is no field."""

    x: Any

    def __post_init__(self):
        self.flag = "a"


@dataclass
class Soft:
    rate: int = 1


@dataclass
class Hard:
    rate: int = 1


def plus(x, y=1):
    return x + y


def minus(x, y=1):
    return x - y


def flagged(flag):
    made = Flagged(1)
    made.flag = flag
    return made


@pytest.mark.parametrize(
    ("one", "two"),
    [(plus, minus), (partial(plus, y=1), partial(plus, y=2)), (Soft, Hard), (flagged("a"), flagged("b"))],
)
def test_alike_looks_at_all_that_an_object_is_made_of(one, two):
    assert alike((torch.zeros(2), one), (torch.ones(2), one))
    assert not alike((torch.zeros(2), one), (torch.zeros(2), two))


def test_alike_takes_partial_functions_of_equal_arguments_for_one():
    assert alike(partial(plus, y=1), partial(plus, y=1))
