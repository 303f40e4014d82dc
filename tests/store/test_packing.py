"""Values that go through tensors and JSON come back as they were."""

import json

import numpy as np
import pytest
import torch

from thalweg.object_state import same
from thalweg.store.packing import packed, unpacked

ONE, TWO, THREE = torch.zeros(2), torch.ones(2), torch.full((3,), 2.0)


@pytest.mark.parametrize(
    "held",
    [
        {1: ONE, "1": TWO},
        {1.5: ONE, "1.5": TWO},
        {None: ONE, "None": TWO},
        {"a": {"b": ONE}, "a.b": TWO},
        {"a": [ONE, TWO], "a.0": THREE, "a.0'": ONE},
        {"a.0": np.arange(2), "a": [np.arange(3), np.float64(4)]},
    ],
)
def test_every_tensor_has_a_name_of_its_own(held):
    tensors, about = packed({"held": held, "held.1": THREE})
    assert same(unpacked(tensors, json.loads(json.dumps(about))), {"held": held, "held.1": THREE})
