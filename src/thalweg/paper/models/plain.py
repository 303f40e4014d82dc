"""Networks of layers one after another: for digits, fully connected, convolutional, and VGG-16."""

from math import sqrt

from torch import nn

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # of VGG-16, between which it pools


def fc(classes: int = 10, width: float = 1.0) -> nn.Sequential:
    """A fully connected network for 28 x 28 images: 784, 1000, 500, classes, with ReLU and torch's default
    initialisation.

    Examples:
        >>> sum(p.numel() for p in fc(classes=10).parameters())
        1290510
        >>> fc(width=0.3)[-1]
        Linear(in_features=150, out_features=10, bias=True)

    The paper does not say which one it used; this one is our choice.

    Args:
        classes: The number of classes.
        width: The hidden layers have 1000 * width and 500 * width units.
    """
    one, two = _units(1000, width), _units(500, width)
    hidden = [nn.Linear(784, one), nn.ReLU(inplace=True), nn.Linear(one, two), nn.ReLU(inplace=True)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(two, classes))


def conv3fc3(width: float = 1.0, classes: int = 10) -> nn.Sequential:
    """Three convolutions and three linear layers, for 32 x 32 images.

    Examples:
        >>> sum(p.numel() for p in conv3fc3(classes=10).parameters())
        2422634
        >>> conv3fc3(width=0.3)[-1]
        Linear(in_features=300, out_features=10, bias=True)

    Args:
        width: The two hidden linear layers have 1000 * width units.
        classes: The number of classes.
    """
    units = _units(1000, width)
    convolutions = [
        layer
        for before, after in ((3, 32), (32, 64), (64, 128))
        for layer in (nn.Conv2d(before, after, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2))
    ]
    hidden = [nn.Linear(1152, units), nn.ReLU(inplace=True), nn.Linear(units, units), nn.ReLU(inplace=True)]
    return he_by_outputs(nn.Sequential(*convolutions, nn.Flatten(), *hidden, nn.Linear(units, classes)))


def _units(usual: int, width: float) -> int:
    units = round(usual * width)
    if units < 1:
        raise ValueError(
            f"the width must leave at least one of {usual} hidden units; got {width}: give {1 / usual:g} or more"
        )
    return units


def vgg16(classes: int = 10) -> nn.Sequential:
    """VGG-16 for 32 x 32 images, as in the paper: thirteen convolutions, three linear layers with dropout, no batch
    norm.

    Examples:
        >>> sum(p.numel() for p in vgg16(classes=10).parameters())
        15245130

    Args:
        classes: The number of classes.
    """
    return _vgg16(classes, normalised=False)


def vgg16_bn(classes: int = 10) -> nn.Sequential:
    """VGG-16 with batch norm after each convolution; the convolutions keep their biases.

    Examples:
        >>> sum(p.numel() for p in vgg16_bn(classes=10).parameters())
        15253578

    Args:
        classes: The number of classes.
    """
    return _vgg16(classes, normalised=True)


def _vgg16(classes: int, normalised: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for stage in WIDTHS:
        for width in stage:
            norm = [nn.BatchNorm2d(width)] if normalised else []
            layers += [nn.Conv2d(before, width, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            before = width
        layers.append(nn.MaxPool2d(2))
    hidden = [layer for _ in range(2) for layer in (nn.Dropout(), nn.Linear(512, 512), nn.ReLU(inplace=True))]
    return he_by_outputs(nn.Sequential(*layers, nn.Flatten(), *hidden, nn.Linear(512, classes)))


def digits_net(width: int = 8, classes: int = 10) -> nn.Sequential:
    """A small convolutional network with batch norm for 8 x 8 images.

    Examples:
        >>> sum(p.numel() for p in digits_net().parameters())
        9570

    Args:
        width: Channels of the first convolution.
        classes: The number of classes.
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


def he_by_outputs(network: nn.Sequential) -> nn.Sequential:
    """Initialise convolutions as N(0, 2 / (k k out)) with zero biases, batch norm as 1 and 0; returns the network."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, 0.0, sqrt(2 / (part.kernel_size[0] * part.kernel_size[1] * part.out_channels)))
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return network
