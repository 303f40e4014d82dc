"""What is held out."""

import pytest
import torch

import thalweg as tw
from thalweg.paper.data import held_out


def test_the_last_five_thousand():
    images, labels = torch.zeros(5010, 1, 2, 2, dtype=torch.uint8), torch.arange(5010)
    (rest, first), (held, last) = held_out((images, labels))
    assert (len(rest), len(held)) == (10, 5000)
    assert torch.cat([first, last]).equal(labels)


@pytest.mark.parametrize("count", [-1, 0, 3, 4])
def test_some_and_not_all(count):
    with pytest.raises(tw.ThalwegError, match=f"some of the 3 images and not all; got count={count}"):
        held_out((torch.zeros(3, 1, 2, 2), torch.arange(3)), count)
