"""Parameter counts and initialisation of the paper's networks."""

from math import sqrt

import pytest
import torch
from torch import nn

from thalweg import models

COUNTS = {
    (models.vgg16, 10): 15_245_130,
    (models.vgg16, 100): 15_291_300,
    (models.preresnet, 10): 1_703_258,
    (models.preresnet, 100): 1_726_388,
    (models.wrn28_10, 10): 36_489_290,
    (models.wrn28_10, 100): 36_546_980,
}


@pytest.mark.parametrize(("make", "classes"), COUNTS)
def test_counts_and_shapes(make, classes):
    network = make(classes=classes).eval()
    assert sum(p.numel() for p in network.parameters()) == COUNTS[make, classes]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, classes)


@pytest.mark.parametrize("make", [models.vgg16, models.preresnet, models.wrn28_10])
def test_convolutions_start_as_in_the_reference(make):
    torch.manual_seed(0)
    for part in make().modules():
        if isinstance(part, nn.Conv2d):
            expected = sqrt(2 / (part.kernel_size[0] ** 2 * part.out_channels))
            assert float(part.weight.detach().std()) == pytest.approx(expected, rel=6 / sqrt(2 * part.weight.numel()))
            assert part.bias is None or not part.bias.any()


def test_a_depth_that_does_not_fit():
    with pytest.raises(ValueError, match="9 n \\+ 2; got 100"):
        models.preresnet(100)
