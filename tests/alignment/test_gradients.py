"""Networks whose outputs keep, and whose gradients do not: what is trained further must stay the same network."""

import pytest
import torch
from align_zoo import Of
from torch import nn

import thalweg as tw

pytestmark = pytest.mark.filterwarnings("ignore:renumbering .* of groups= changes")

TASK = tw.classification()
X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(8).long()
RAMP = torch.linspace(0.1, 2, 16)


class Scaled(torch.autograd.Function):
    """Changes gradients alone."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale.to(gradient), None


def layers(between=None):
    return nn.Sequential(nn.Linear(6, 16), between or nn.Tanh(), nn.Linear(16, 4))


def of(function):
    return layers(Of(lambda _, x: function(x.tanh())))


def hooked(x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * RAMP.to(gradient))
    return x


def frozen_rows():
    net = layers()
    net[0].weight.register_hook(lambda gradient: gradient * (torch.arange(16) < 8)[:, None])
    return net


def backward_hook():
    net = layers()
    net[1].register_full_backward_hook(lambda _, given, __: (given[0] * RAMP.to(given[0]),))
    return net


@pytest.mark.parametrize(
    "make",
    [lambda: of(lambda x: Scaled.apply(x, RAMP)), lambda: of(hooked), frozen_rows, backward_hook],
)
@pytest.mark.parametrize("groups", [None, {"hidden": {"0.weight": 0, "0.bias": 0, "2.weight": 1}}])
def test_units_whose_gradients_have_an_order_are_dropped(make, groups):
    symmetries = tw.symmetries(make(), TASK, (X, Y), groups=groups)
    assert not symmetries.groups
    assert "changed the outputs or gradients" in str(symmetries)


def test_units_with_small_gradients_are_dropped_as_well():
    """As behind a LayerScale."""

    def forward(net, x):
        hidden = net.one(x)
        return net.last(hidden + net.scale * net.three(Scaled.apply(net.two(hidden).tanh(), RAMP)))

    parts = {"one": nn.Linear(6, 8), "two": nn.Linear(8, 16), "three": nn.Linear(16, 8), "last": nn.Linear(8, 4)}
    net = Of(forward, **parts, scale=nn.Parameter(torch.full((8,), 1e-6)))
    symmetries = tw.symmetries(net, TASK, (X, Y))
    assert [group.size for group in symmetries.groups.values()] == [8]
    assert [*symmetries.dropped] == ["two.weight[0]"]


def test_units_that_are_not_trained_have_an_order_though_given_by_hand():
    net = of(lambda x: torch.cat([x[:, :8].detach(), x[:, 8:]], 1))
    groups = {"hidden": {"0.weight": 0, "0.bias": 0, "2.weight": 1}}
    assert "hidden" in tw.symmetries(net, TASK, (X, Y), groups=groups).dropped


@pytest.mark.parametrize(
    "between", [lambda x: Scaled.apply(x, torch.tensor(-1.0)), lambda x: Scaled.apply(x.sign(), torch.ones(()))]
)
def test_gradients_that_are_reversed_or_passed_straight_through_keep_their_groups(between):
    assert len(tw.symmetries(of(between), TASK, (X, Y)).groups) == 1
