"""The path through the origin: logits times t^n, in float64, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.weightspace.origin import OriginPath


@pytest.mark.parametrize("make", [tw.models.fc, lambda: tw.models.conv3fc3(0.1)])
def test_origin_path_scales_logits_and_keeps_predictions(make):
    torch.manual_seed(0)
    networks = [make().double().eval() for _ in range(2)]
    ends = [tw.Weights.of(network) for network in networks]
    shape = (1, 28, 28) if isinstance(networks[0][0], nn.Flatten) else (3, 32, 32)
    x, module = torch.randn(4, *shape).double(), make().double().eval()
    path = OriginPath(module, *ends)
    depth = max(path.powers.values())
    assert depth == len([part for part in module if isinstance(part, nn.Linear | nn.Conv2d)])
    for s in (0.0, 0.2, 0.475, 0.525, 0.9, 1.0):
        path.point(s).load_into(module)
        wanted = abs(1 - 2 * s) ** depth * networks[int(s > 0.5)](x)
        assert torch.allclose(module(x), wanted, rtol=1e-9, atol=0)


def test_origin_path_points_carry_no_provenance():
    a = tw.Weights.of(tw.models.fc())
    trained = replace(a, made={"seed": 1})
    assert OriginPath(tw.models.fc(), trained, a).point(0.2).made == {}


def test_origin_path_refuses_the_origin_itself():
    a = tw.Weights.of(tw.models.fc())
    for s in (0.5, -0.1, 1.1):
        with pytest.raises(tw.ThalwegError, match="except the origin"):
            OriginPath(tw.models.fc(), a, a).point(s)


@pytest.mark.parametrize(
    ("layer", "named"),
    [(nn.Tanh(), "a Tanh"), (nn.BatchNorm1d(4), "a BatchNorm1d"), (nn.InstanceNorm1d(4), "a InstanceNorm1d")],
)
def test_origin_path_refuses_networks_without_such_a_path(layer, named):
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))
    a = tw.Weights.of(module)
    with pytest.raises(tw.ThalwegError, match=named):
        OriginPath(module, a, a)


def test_origin_path_refuses_frozen_layers():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    a = tw.Weights.of(module)
    with pytest.raises(tw.ThalwegError, match=r"'0.weight', which is frozen"):
        OriginPath(module, a, a)
