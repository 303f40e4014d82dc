"""Residual networks for 32 x 32 images: with batch norm before each convolution, or after it, or ten times as wide."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn
from torch.nn import functional as F

from .initialise import he_by_outputs

EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, each after batch norm and ReLU, added to what came in."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        after = EXPANSION * width
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, width, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, after, 1, bias=False)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        out = self.conv2(F.relu(self.norm2(out)))
        out = self.conv3(F.relu(self.norm3(out)))
        return out + self.shortcut(x)


def preresnet(depth: int = 164, classes: int = 10) -> nn.Sequential:
    """A bottleneck PreResNet; `depth` is 9 n + 2.

    >>> sum(p.numel() for p in preresnet(164, classes=10).parameters())
    1703258
    """
    blocks, rest = divmod(depth - 2, 9)
    if rest or blocks < 1:
        raise ValueError(f"the depth of a bottleneck PreResNet is 9 n + 2; got {depth}")
    first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    return he_by_outputs(nn.Sequential(first, *_stages(Bottleneck, blocks, EXPANSION), *_normalised_head(256, classes)))


def preresnet164(classes: int = 10) -> nn.Sequential:
    """The PreResNet of the paper, "ResNet-164" in its table of ensembles.

    >>> sum(p.numel() for p in preresnet164(classes=100).parameters())
    1726388
    """
    return preresnet(164, classes)


class Wide(nn.Module):
    """Two 3 x 3 convolutions, each after batch norm and ReLU, added to what came in; the second takes the stride."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, width, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, padding=1)
        same = stride == 1 and before == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        return self.conv2(F.relu(self.norm2(out))) + self.shortcut(x)


def wrn28_10(classes: int = 10) -> nn.Sequential:
    """The wide residual network of the paper: 28 layers, ten times as wide as a plain one, with biases.

    >>> sum(p.numel() for p in wrn28_10(classes=10).parameters())
    36489290
    """
    first = nn.Conv2d(3, 16, 3, padding=1)
    return nn.Sequential(first, *_stages(Wide, 4, times=10), *_normalised_head(640, classes))


class Normalised(nn.Module):
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

    def block(before: int, width: int, stride: int) -> nn.Module:
        body = [*_convolution(before, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3)]
        return Normalised(body, before, width, stride)

    return _resnet(block, 26, 1, classes)


def resnet_bottleneck164(classes: int = 10) -> nn.Sequential:
    """The ResNet of the paper with 9 * 18 + 2 layers: blocks of 1 x 1, 3 x 3, 1 x 1, of which the 3 x 3 takes the stride.

    >>> sum(p.numel() for p in resnet_bottleneck164(classes=10).parameters())
    1704154
    """

    def block(before: int, width: int, stride: int) -> nn.Module:
        narrow = [*_convolution(before, width, 1), nn.ReLU(inplace=True)]
        middle = [*_convolution(width, width, 3, stride), nn.ReLU(inplace=True)]
        body = [*narrow, *middle, *_convolution(width, EXPANSION * width, 1)]
        return Normalised(body, before, EXPANSION * width, stride)

    return _resnet(block, 18, EXPANSION, classes)


def _resnet(block: Callable[[int, int, int], nn.Module], blocks: int, expansion: int, classes: int) -> nn.Sequential:
    layers = [*_convolution(3, 16, 3), nn.ReLU(inplace=True), *_stages(block, blocks, expansion)]
    return he_by_outputs(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64 * expansion, classes)))


def _stages(block: Callable[[int, int, int], nn.Module], blocks: int, expansion: int = 1, times: int = 1) -> Iterator[nn.Module]:
    """Blocks of three widths, as many of each; the first of the second and of the third width halves the image."""
    before = 16
    for width, first in ((16, 1), (32, 2), (64, 2)):
        for stride in (first, *[1] * (blocks - 1)):
            yield block(before, times * width, stride)
            before = expansion * times * width


def _convolution(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after)


def _normalised_head(width: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
