"""Parameter counts and initialisation of the paper's networks."""

from math import sqrt

import pytest
import torch
from torch import nn

from thalweg import models

COUNTS = {
    (models.conv3fc3, 10): 2_422_634,
    (models.conv3fc3, 100): 2_512_724,
    (models.vgg16, 10): 15_245_130,
    (models.vgg16, 100): 15_291_300,
    (models.preresnet, 10): 1_703_258,
    (models.preresnet, 100): 1_726_388,
    (models.preresnet164, 10): 1_703_258,
    (models.wrn28_10, 10): 36_489_290,
    (models.wrn28_10, 100): 36_546_980,
}


@pytest.mark.parametrize(("make", "classes"), COUNTS)
def test_models_parameter_counts_and_shapes(make, classes):
    network = make(classes=classes).eval()
    assert sum(p.numel() for p in network.parameters()) == COUNTS[make, classes]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, classes)


def norm_and_convolution(before, after, size):
    """With the batch norm before it, of what comes in."""
    return size * size * before * after + 2 * before


def basic(before, width, after):
    return norm_and_convolution(before, width, 3) + norm_and_convolution(width, after, 3)


def bottleneck(before, width, after):
    return (
        norm_and_convolution(before, width, 1)
        + norm_and_convolution(width, width, 3)
        + norm_and_convolution(width, after, 1)
    )


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize(
    ("make", "body", "blocks", "afters"),
    [(models.resnet158, basic, 26, (16, 32, 64)), (models.resnet_bottleneck164, bottleneck, 18, (64, 128, 256))],
)
def test_resnets_have_the_parameters_of_their_layers(make, body, blocks, afters, classes):
    expected, before = 3 * 3 * 3 * 16, 16
    for width, after in zip((16, 32, 64), afters, strict=True):
        # and its shortcut
        expected += body(before, width, after) + before * after + (blocks - 1) * body(after, width, after)
        before = after
    network = make(classes=classes).eval()
    assert sum(p.numel() for p in network.parameters()) == expected + 2 * before + (before + 1) * classes
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, classes)


def normalised(x, norm, leak):
    mean, variance = (norm.get_buffer(name).reshape(1, -1, 1, 1) for name in ("running_mean", "running_var"))
    x = (x - mean) / (variance + norm.eps).sqrt() * norm.weight.reshape(1, -1, 1, 1) + norm.bias.reshape(1, -1, 1, 1)
    return torch.where(x > 0, x, leak * x)


@pytest.mark.parametrize(
    ("make", "leak", "strides", "shared"),
    [  # by number of the unit: the first of each width, and one after it
        (models.resnet158, 0.0, {1: 1, 2: None, 27: 2, 53: 2}, {1, 27, 53}),
        (models.resnet_bottleneck164, 0.1, {1: 1, 2: None, 19: 2, 37: 2}, {1}),
    ],
)
def test_resnets_normalise_before_each_convolution_and_not_in_shortcuts(make, leak, strides, shared):
    torch.manual_seed(0)
    network = make().double().eval()
    for norm in (part for part in network.modules() if isinstance(part, nn.BatchNorm2d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
    for number, stride in strides.items():
        unit = network[number]
        x = torch.randn(2, unit.norms[0].num_features, 8, 8).double()
        with torch.no_grad():
            inner = x
            for k, (norm, layer) in enumerate(zip(unit.norms, unit.convolutions, strict=True)):
                own = stride or 1 if k == 0 else 1
                inner = nn.functional.conv2d(
                    normalised(inner, norm, leak), layer.weight, stride=own, padding=layer.padding
                )
            beside = normalised(x, unit.norms[0], leak) if number in shared else x
            beside = beside if stride is None else nn.functional.conv2d(beside, unit.shortcut.weight, stride=stride)
            torch.testing.assert_close(unit(x), inner + beside)


@pytest.mark.parametrize(("make", "depth"), [(models.resnet158, 158), (models.resnet_bottleneck164, 164)])
def test_resnets_are_as_deep_as_their_names_say(make, depth):
    layers = [name for name, part in make().named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert len([name for name in layers if "shortcut" not in name]) == depth


def test_batch_norm_vgg_is_the_plain_one_with_more_layers():
    plain, normed = models.vgg16(), models.vgg16_bn().eval()
    norms = [part for part in normed if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) == 13
    assert [type(part) for part in normed if part not in norms] == [type(part) for part in plain]
    added = 2 * sum(part.num_features for part in norms)
    assert sum(p.numel() for p in normed.parameters()) == sum(p.numel() for p in plain.parameters()) + added
    assert normed(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_fully_connected_network_takes_images():
    network = models.fc(classes=7)
    sizes = [(part.in_features, part.out_features) for part in network if isinstance(part, nn.Linear)]
    assert sizes == [(784, 1000), (1000, 500), (500, 7)]
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize("make", [models.fc, models.conv3fc3])
def test_models_scaled_weights_scale_the_logits(make):
    """What the path through the origin in the supplement rests on."""
    torch.manual_seed(0)
    network, t = make().double(), 0.5
    x = torch.rand(4, *((1, 28, 28) if make is models.fc else (3, 32, 32)), dtype=torch.float64)
    layers = [part for part in network if hasattr(part, "weight")]
    with torch.no_grad():
        for layer in layers:
            layer.bias.uniform_(-0.1, 0.1)  # convolutions start without
        logits = network(x)
        for i, layer in enumerate(layers, start=1):
            layer.weight.mul_(t)
            layer.bias.mul_(t**i)
        torch.testing.assert_close(network(x), logits * t ** len(layers))


@pytest.mark.parametrize("width", [0.3, 0.5, 0.8, 1])
def test_conv3fc3_width(width):
    units = round(1000 * width)
    sizes = [(part.in_features, part.out_features) for part in models.conv3fc3(width) if isinstance(part, nn.Linear)]
    assert sizes == [(1152, units), (units, units), (units, 10)]


def test_conv3fc3_refuses_too_small_a_width():
    with pytest.raises(ValueError, match="at least one of 1000 hidden units; got 0"):
        models.conv3fc3(width=0)


CONVOLUTIONAL = [
    models.conv3fc3,
    models.vgg16,
    models.vgg16_bn,
    models.preresnet,
    models.resnet_bottleneck164,
]


@pytest.mark.parametrize("make", CONVOLUTIONAL)
def test_models_convolutions_start_as_in_the_reference(make):
    torch.manual_seed(0)
    for part in make().modules():
        if isinstance(part, nn.Conv2d):
            expected = sqrt(2 / (part.kernel_size[0] ** 2 * part.out_channels))
            assert float(part.weight.detach().std()) == pytest.approx(expected, rel=6 / sqrt(2 * part.weight.numel()))
            assert part.bias is None or not part.bias.any()


def test_resnet158_starts_scaled_by_its_inputs():
    torch.manual_seed(0)
    for part in models.resnet158().modules():
        if isinstance(part, nn.Conv2d):
            scale = 1 / sqrt(part.kernel_size[0] ** 2 * part.in_channels)
            assert float(part.weight.detach().abs().max()) <= 2 * scale
            expected = 0.8796 * scale  # what is left of the deviation of a normal distribution cut off at twice it
            assert float(part.weight.detach().std()) == pytest.approx(expected, rel=6 / sqrt(2 * part.weight.numel()))


def test_wide_resnets_start_as_torch_starts_them():
    torch.manual_seed(0)
    for part in models.wrn28_10().modules():
        if isinstance(part, nn.Conv2d):
            fan_in = part.kernel_size[0] ** 2 * part.in_channels
            assert float(part.weight.detach().std()) == pytest.approx(
                1 / sqrt(3 * fan_in), rel=6 / sqrt(2 * part.weight.numel())
            )
            assert part.bias.any()


def test_preresnet_refuses_a_depth_that_does_not_fit():
    with pytest.raises(ValueError, match="9 n \\+ 2; got 100"):
        models.preresnet(100)
