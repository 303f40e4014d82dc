"""A seed for the length of a call, whatever happens in it."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from thalweg.randomness import seeded


def draw():
    return torch.rand(1).item(), random.random(), np.random.rand()


def test_the_callers_state_comes_back_also_after_an_error():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = draw()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with pytest.raises(ZeroDivisionError), seeded(5):
        draw()[0] / 0
    assert draw() == expected


def test_a_seed_decides_every_source():
    with seeded(5):
        first = draw()
    with seeded(5):
        assert draw() == first
    with seeded(6):
        assert draw() != first


@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_loaders_with_a_generator_of_their_own(where):
    generator = torch.Generator().manual_seed(9)
    if where == "loader":
        loader = DataLoader(range(20), 5, shuffle=True, generator=generator)
    else:
        loader = DataLoader(range(20), 5, sampler=RandomSampler(range(20), generator=generator))
    state = generator.get_state()
    orders = []
    for _ in range(2):
        with seeded(3, loader):
            orders.append(torch.cat(list(loader)))
    assert torch.equal(*orders)
    assert torch.equal(generator.get_state(), state)
