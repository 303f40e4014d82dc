"""Wide residual networks for 32 x 32 images."""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
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
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    before = 16
    for width, stride in ((160, 1), (320, 2), (640, 2)):
        for block in range(4):
            layers.append(Block(before, width, stride if block == 0 else 1))
            before = width
    tail = [nn.BatchNorm2d(before), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers, *tail)
