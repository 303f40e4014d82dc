"""Residual networks with batch norm before each convolution, for 32 x 32 images."""

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
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    before = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(before, width, stride if block == 0 else 1))
            before = EXPANSION * width
    tail = [nn.BatchNorm2d(before), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return he_by_outputs(nn.Sequential(*layers, *tail))


def preresnet164(classes: int = 10) -> nn.Sequential:
    """The PreResNet of the paper, "ResNet-164" in its table of ensembles.

    >>> sum(p.numel() for p in preresnet164(classes=100).parameters())
    1726388
    """
    return preresnet(164, classes)
