"""What is held out."""

import pytest
import torch

import thalweg as tw
from thalweg.paper.data import held_out


def test_held_out_split_is_the_last_five_thousand():
    images, labels = torch.zeros(5010, 1, 2, 2, dtype=torch.uint8), torch.arange(5010)
    (rest, first), (held, last) = held_out((images, labels))
    assert (len(rest), len(held)) == (10, 5000)
    assert torch.cat([first, last]).equal(labels)


@pytest.mark.parametrize("count", [-1, 0, 3, 4])
def test_held_out_split_refuses_none_and_all(count):
    with pytest.raises(tw.ThalwegError, match=f"count must be above 0 and below 3, the number of images; got {count}"):
        held_out((torch.zeros(3, 1, 2, 2), torch.arange(3)), count)
