"""Whether two batches are called in the same way, whatever objects are beside their tensors."""

from dataclasses import dataclass
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


def test_alike_takes_objects_that_cannot_be_compared_for_others():
    assert not alike((torch.zeros(2), Ambiguous()), (torch.zeros(2), Ambiguous()))
