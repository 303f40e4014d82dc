"""Residual networks: for 32 x 32 images, all with batch norm before each convolution, and ResNet-50 for ImageNet."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import groupby
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import ThalwegError
from . import fusable, fused_units
from .fused_units import Layer
from .plain import he_by_outputs

EXPANSION = 4
Norm = Callable[[int], nn.Module]


class ResidualNetwork(nn.Sequential):
    """Layers one after another. On a GPU in bfloat16, kernels of our own compute units that do not change the shape."""

    has_kernels = True

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(x)
        for same_shape, group in groupby(self, _keeps_shape):
            parts = [*group]
            if same_shape and type(x) is Tensor and fusable.applicable(parts, x):
                x = fused_units.computed(parts, x)
            else:
                for part in parts:
                    x = part(x)
        return x


def _keeps_shape(part: nn.Module) -> bool:
    return type(part) in (Bottleneck, Unit) and type(part.shortcut) is nn.Identity


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions, each after batch norm and ReLU, added to the input."""

    leak, shared = 0.0, False

    def __init__(self, before: int, width: int, stride: int, first: bool):
        super().__init__()
        after = EXPANSION * width
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, width, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, after, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if first else nn.Identity()

    @property
    def layers(self) -> list[Layer]:
        return [(self.norm1, self.conv1), (self.norm2, self.conv2), (self.norm3, self.conv3)]

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        out = self.conv2(F.relu(self.norm2(out)))
        out = self.conv3(F.relu(self.norm3(out)))
        return out + self.shortcut(x)


def preresnet(depth: int = 164, classes: int = 10) -> nn.Sequential:
    """A bottleneck PreResNet.

    Examples:
        >>> sum(p.numel() for p in preresnet(164, classes=10).parameters())
        1703258

    Args:
        depth: The number of layers, 9 n + 2.
        classes: The number of classes.
    """
    blocks, rest = divmod(depth - 2, 9)
    if rest or blocks < 1:
        raise ValueError(f"the depth of a bottleneck PreResNet is 9 n + 2; got {depth}")
    layers = _convolution(3, 16, 3), *_stages(Bottleneck, blocks, EXPANSION), *_normalised_head(256, classes)
    return he_by_outputs(ResidualNetwork(*layers))


def preresnet164(classes: int = 10) -> nn.Sequential:
    """The PreResNet of the paper, "ResNet-164" in its table of ensembles.

    Examples:
        >>> sum(p.numel() for p in preresnet164(classes=100).parameters())
        1726388

    Args:
        classes: The number of classes.
    """
    return preresnet(164, classes)


class Wide(nn.Module):
    """Two 3 x 3 convolutions, each after batch norm and ReLU, added to the input; the second has the stride."""

    def __init__(self, before: int, width: int, stride: int, first: bool):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, width, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, padding=1)
        self.shortcut = nn.Conv2d(before, width, 1, stride) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        return self.conv2(F.relu(self.norm2(out))) + self.shortcut(x)


def wrn28_10(classes: int = 10) -> nn.Sequential:
    """The wide residual network of the paper: 28 layers, ten times as wide as a plain one, with biases.

    Examples:
        >>> sum(p.numel() for p in wrn28_10(classes=10).parameters())
        36489290

    Args:
        classes: The number of classes.
    """
    return _wide(4, 10, classes)


def wrn16_4(classes: int = 10) -> nn.Sequential:
    """A smaller wide residual network: 16 layers, four times as wide as a plain one, with biases.

    Examples:
        >>> sum(p.numel() for p in wrn16_4(classes=10).parameters())
        2751146

    Args:
        classes: The number of classes.
    """
    return _wide(2, 4, classes)


def _wide(blocks: int, times: int, classes: int) -> nn.Sequential:
    first, head = nn.Conv2d(3, 16, 3, padding=1), _normalised_head(64 * times, classes)
    return nn.Sequential(first, *_stages(Wide, blocks, times=times), *head)


class Unit(nn.Module):
    """Convolutions, each after batch norm and ReLU, added to the input or to a 1 x 1 convolution of it.

    Args:
        convolutions: The convolutions.
        shortcut: Applied to the input.
        shared: Whether the shortcut too comes after the first batch norm and ReLU.
        leak: The slope of the ReLUs below zero.
        norm: Makes a batch-norm layer.
    """

    def __init__(self, convolutions: list[nn.Conv2d], shortcut: nn.Module, shared: bool, leak: float, norm: Norm):
        super().__init__()
        self.norms: Any = nn.ModuleList(norm(layer.in_channels) for layer in convolutions)
        self.convolutions: Any = nn.ModuleList(convolutions)
        self.shortcut = shortcut
        self.shared, self.leak = shared, leak

    @property
    def layers(self) -> list[Layer]:
        return list(zip(self.norms, self.convolutions, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        active = F.leaky_relu(self.norms[0](x), self.leak)
        shortcut, out = self.shortcut(active if self.shared else x), self.convolutions[0](active)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:], strict=True):
            out = convolution(F.leaky_relu(norm(out), self.leak))
        return out + shortcut


OFFICIAL: Norm = partial(nn.BatchNorm2d, momentum=0.003)
RESEARCH: Norm = partial(nn.BatchNorm2d, eps=1e-3)
LEAK = 0.1


def resnet158(classes: int = 10) -> nn.Sequential:
    """The ResNet of the paper with 6 * 26 + 2 layers, that of TensorFlow's official models.

    Examples:
        >>> sum(p.numel() for p in resnet158(classes=10).parameters())
        2508506

    Batch norm comes before each convolution; at the start of each of the three widths, the shortcut is a 1 x 1
    convolution after the first batch norm.

    Args:
        classes: The number of classes.
    """
    return scaled_by_inputs(_basic(26, classes, OFFICIAL))


def preresnet20(classes: int = 10) -> nn.Sequential:
    """A small PreResNet of 6 * 3 + 2 layers, with two 3 x 3 convolutions in each block.

    Examples:
        >>> sum(p.numel() for p in preresnet20(classes=10).parameters())
        272538

    Args:
        classes: The number of classes.
    """
    return he_by_outputs(_basic(3, classes, nn.BatchNorm2d))


def _basic(blocks: int, classes: int, norm: Norm) -> nn.Sequential:
    def unit(before: int, width: int, stride: int, first: bool) -> nn.Module:
        convolutions = [_convolution(before, width, 3, stride), _convolution(width, width, 3)]
        shortcut = _convolution(before, width, 1, stride) if first else nn.Identity()
        return Unit(convolutions, shortcut, first, 0.0, norm)

    return ResidualNetwork(_convolution(3, 16, 3), *_stages(unit, blocks), *_normalised_head(64, classes, norm))


def resnet_bottleneck164(classes: int = 10) -> nn.Sequential:
    """The ResNet of the paper with 9 * 18 + 2 layers, that of TensorFlow's research models.

    Examples:
        >>> sum(p.numel() for p in resnet_bottleneck164(classes=10).parameters())
        1703258

    Leaky ReLU; batch norm before each convolution, the first of which has the stride; shortcuts without batch norm,
    except that the very first shares one.

    Args:
        classes: The number of classes.
    """

    def unit(before: int, width: int, stride: int, first: bool) -> nn.Module:
        after = EXPANSION * width
        convolutions = [
            _convolution(before, width, 1, stride),
            _convolution(width, width, 3),
            _convolution(width, after, 1),
        ]
        shortcut = _convolution(before, after, 1, stride) if first else nn.Identity()
        return Unit(convolutions, shortcut, before == 16 and first, LEAK, RESEARCH)

    head = _normalised_head(64 * EXPANSION, classes, RESEARCH, LEAK)
    return he_by_outputs(ResidualNetwork(_convolution(3, 16, 3), *_stages(unit, 18, EXPANSION), *head))


def scaled_by_inputs(network: nn.Sequential) -> nn.Sequential:
    """Initialise convolutions as N(0, 1 / (k k in)), truncated at two standard deviations; returns the network."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            deviation = 1 / sqrt(part.kernel_size[0] * part.kernel_size[1] * part.in_channels)
            nn.init.trunc_normal_(part.weight, 0.0, deviation, -2 * deviation, 2 * deviation)
    return network


def _stages(
    block: Callable[[int, int, int, bool], nn.Module], blocks: int, expansion: int = 1, times: int = 1
) -> Iterator[nn.Module]:
    """Blocks of three widths, equally many of each; the first of each is marked, and that of the second and third
    width halves the image.
    """
    before = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for k in range(blocks):
            yield block(before, times * width, stride if k == 0 else 1, k == 0)
            before = expansion * times * width


def _convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


def _normalised_head(width: int, classes: int, norm: Norm = nn.BatchNorm2d, leak: float = 0.0) -> tuple[nn.Module, ...]:
    active = nn.LeakyReLU(leak, inplace=True) if leak else nn.ReLU(inplace=True)
    return norm(width), active, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)


def resnet50(classes: int = 1000, pretrained: bool = False) -> nn.Module:
    """The ResNet-50 of torchvision, or of timm if only that is installed.

        net = resnet50(pretrained=True)

    Args:
        classes: The number of classes; if it is not 1000, the last layer of a pretrained network is newly initialised.
        pretrained: Download the weights of 2018 that the paper started from (top-1 error 23.87 %).
    """
    if vision := _installed("torchvision"):
        network = vision.models.resnet50(weights="IMAGENET1K_V1" if pretrained else None)
        if classes != 1000:
            network.fc = nn.Linear(network.fc.in_features, classes)
        return network
    if timm := _installed("timm"):
        return timm.create_model("resnet50.tv_in1k", pretrained=pretrained, num_classes=classes)
    raise ThalwegError("resnet50 comes from torchvision or timm; neither can be imported here: pip install torchvision")


def _installed(name: str) -> Any:
    """The library, or None. A torchvision built for another torch raises RuntimeError."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError):
        return None
