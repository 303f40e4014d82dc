"""VGG-16 for 32 x 32 images: thirteen convolutions, then three linear layers with dropout."""

from torch import nn

from .initialise import he_by_outputs

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(classes: int = 10) -> nn.Sequential:
    """The CIFAR variant of the paper, without batch norm.

    >>> sum(p.numel() for p in vgg16(classes=10).parameters())
    15245130
    """
    return _vgg16(classes, normalised=False)


def vgg16_bn(classes: int = 10) -> nn.Sequential:
    """The same with batch norm after each convolution, whose biases stay.

    >>> sum(p.numel() for p in vgg16_bn(classes=10).parameters())
    15253578
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
    head = [nn.Dropout(), nn.Linear(512, 512), nn.ReLU(inplace=True)]
    again = [nn.Dropout(), nn.Linear(512, 512), nn.ReLU(inplace=True)]
    return he_by_outputs(nn.Sequential(*layers, nn.Flatten(), *head, *again, nn.Linear(512, classes)))
