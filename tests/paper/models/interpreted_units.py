"""Kernels of residual units in Triton's interpreter, in float32 on a CPU, against the modules in float64.

Run by test_fused_units.py in a process of its own with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import sys

import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.paper.models import fusable, fused_units, residual
from thalweg.weightspace.batchnorm import StatisticsHook


def unit_of_two(width, leak):
    layers = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)]
    return residual.Unit(layers, nn.Identity(), False, leak, nn.BatchNorm2d)


def unit_of_three(width, leak):
    sizes = (4 * width, width, 1), (width, width, 3), (width, 4 * width, 1)
    layers = [nn.Conv2d(before, after, size, padding=size // 2, bias=False) for before, after, size in sizes]
    return residual.Unit(layers, nn.Identity(), False, leak, nn.BatchNorm2d)


def units(kind, width):
    torch.manual_seed(0)
    made = nn.Sequential(*(kind(width, 0.1) for _ in range(2)))
    for norm in (part for part in made.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return made


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def compare(kind, width, images, pixels):
    ours, reference = units(kind, width), units(kind, width).double()
    channels = ours[0].layers[0][0].num_features
    x, back = torch.randn(images, channels, *pixels), torch.randn(images, channels, *pixels)
    for network, function in ((ours, lambda x: fused_units.computed([*ours], x)), (reference, reference)):
        given = x.to(next(network.parameters()).dtype, copy=True).requires_grad_()
        out = function(given)
        out.backward(back.to(out))
        network.found = [out.detach(), given.grad, *(p.grad for p in network.parameters()), *network.buffers()]
    for found, expected in zip(ours.found, reference.found, strict=True):
        close(found, expected.double())
    with torch.no_grad():
        seen = []
        look = StatisticsHook(lambda norm, inputs, named, out: seen.append(inputs[0]))
        hook = ours[1].norms[1].register_forward_hook(look, with_kwargs=True)
        close(fused_units.computed([*ours], x), reference(x.double()))
        hook.remove()
        inner = reference[0](x.double())
        close(seen[0], reference[1].convolutions[0](nn.functional.leaky_relu(reference[1].norms[0](inner), 0.1)))
        ours.eval(), reference.eval()
        reference.load_state_dict(ours.state_dict())
        close(fused_units.computed([*ours], x), reference(x.double()))


def compare_statistics_of_a_channel_that_decayed():
    """Its variance is far below what the buffers hold before the pass."""
    ours, reference = units(unit_of_three, 16), units(unit_of_three, 16).double()
    for network in (ours, reference):
        with torch.no_grad():
            network[0].convolutions[0].weight[3] *= 1e-4
        for norm in (part for part in network.modules() if isinstance(part, nn.BatchNorm2d)):
            norm.momentum = 1.0
    x = torch.randn(2, 64, 8, 8)
    with torch.no_grad():
        fused_units.computed([*ours], x)
        reference(x.double())
    found, expected = (network[0].norms[1].running_var.double() for network in (ours, reference))
    assert expected[3] < 1e-6
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def compare_statistics_of_what_is_not_finite():
    ours, reference = units(unit_of_three, 16), units(unit_of_three, 16)
    x = torch.randn(2, 64, 4, 4)
    x[0, 3, 1, 1], x[0, 5, 1, 1] = torch.nan, torch.inf
    with torch.no_grad():
        out, expected = fused_units.computed([*ours], x), reference(x)
    assert torch.equal(out.isnan(), expected.isnan())
    for found, buffer in zip(ours.buffers(), reference.buffers(), strict=True):
        assert torch.equal(found.isfinite(), buffer.isfinite())


def compare_passes_for_statistics():
    """Of layers that are called twice, in two runs of units."""
    repeated = [*units(unit_of_three, 16)]
    network = residual.ResidualNetwork(*repeated, nn.ReLU(), *repeated)
    batches = [torch.randn(2, 64, 4, 4) for _ in range(2)]
    found = []
    for able in (fusable._untouched, lambda _: False):
        fusable.applicable = lambda units, x, able=able: all(able(p) for unit in units for p in unit.modules())
        found.append(tw.update_bn(network, tw.Weights.of(network), batches).buffers)
    for name, expected in found[1].items():
        close(found[0][name], expected.double())


def refuse_second_derivatives():
    ours = units(unit_of_two, 16)
    loss = fused_units.computed([*ours], torch.randn(2, 16, 4, 4)).square().sum()
    with pytest.raises(tw.ThalwegError, match="no second derivatives"):
        torch.autograd.grad(loss, [*ours.parameters()], create_graph=True)


if __name__ == "__main__":
    fused_units.PROGRAMS = int(sys.argv[1])  # fewer programs than blocks, and more
    compare(unit_of_two, 16, 3, (8, 8))
    compare(unit_of_two, 32, 2, (6, 5))  # blocks that end within an image and beyond the last
    compare(unit_of_three, 16, 2, (5, 9))
    compare(unit_of_three, 64, 1, (4, 4))
    compare_statistics_of_what_is_not_finite()
    refuse_second_derivatives()
    compare_passes_for_statistics()
    compare_statistics_of_a_channel_that_decayed()
