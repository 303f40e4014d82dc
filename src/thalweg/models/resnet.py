"""Residual networks with batch norm after each convolution, for 32 x 32 images."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from .initialise import he_by_outputs

EXPANSION = 4


class Block(nn.Module):
    """What came in is added to what `body` makes of it, then ReLU; where the shape changes, the shortcut is a 1 x 1 convolution
    with batch norm."""

    def __init__(self, body: list[nn.Module], before: int, after: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(*body)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet158(classes: int = 10) -> nn.Sequential:
    """The ResNet of the paper with 6 * 26 + 2 layers: blocks of two 3 x 3 convolutions, of which the first takes the stride.

    >>> sum(p.numel() for p in resnet158(classes=10).parameters())
    2508442
    """
    return _resnet(26, _basic, 1, classes)


def resnet_bottleneck164(classes: int = 10) -> nn.Sequential:
    """The ResNet of the paper with 9 * 18 + 2 layers: blocks of 1 x 1, 3 x 3, 1 x 1, of which the 3 x 3 takes the stride.

    >>> sum(p.numel() for p in resnet_bottleneck164(classes=10).parameters())
    1704154
    """
    return _resnet(18, _bottleneck, EXPANSION, classes)


def _resnet(blocks: int, body: Callable[[int, int, int], list[nn.Module]], expansion: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [*_convolution(3, 16, 3), nn.ReLU(inplace=True)]
    before = 16
    for width, first in ((16, 1), (32, 2), (64, 2)):
        after = expansion * width
        for stride in (first, *[1] * (blocks - 1)):
            layers.append(Block(body(before, width, stride), before, after, stride))
            before = after
    return he_by_outputs(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)))


def _basic(before: int, width: int, stride: int) -> list[nn.Module]:
    return [*_convolution(before, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3)]


def _bottleneck(before: int, width: int, stride: int) -> list[nn.Module]:
    narrow = [*_convolution(before, width, 1), nn.ReLU(inplace=True)]
    middle = [*_convolution(width, width, 3, stride), nn.ReLU(inplace=True)]
    return [*narrow, *middle, *_convolution(width, EXPANSION * width, 1)]


def _convolution(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after)
