"""Networks small enough for a CPU."""

from torch import nn


def digits_net(width: int = 8, classes: int = 10) -> nn.Sequential:
    """A convolutional network with batch norm for 8 x 8 images.

    >>> sum(p.numel() for p in digits_net().parameters())
    9570
    """
    return nn.Sequential(
        *_block(1, width, stride=1),
        *_block(width, 2 * width, stride=1),
        *_block(2 * width, 2 * width, stride=2),
        *_block(2 * width, 4 * width, stride=2),
        nn.Flatten(),
        nn.Linear(4 * width * 4, classes),
    )


def _block(before: int, after: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
