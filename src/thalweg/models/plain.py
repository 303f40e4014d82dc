"""Networks of plain layers, one after another: no normalisation, no dropout."""

from torch import nn

from .initialise import he_by_outputs


def fc(classes: int = 10) -> nn.Sequential:
    """A fully connected network for 28 x 28 images.

    >>> sum(p.numel() for p in fc(classes=10).parameters())
    1290510

    The paper does not say which one it used. Chosen here: 784, 1000, 500, classes, with ReLU between, as torch starts them.
    """
    hidden = [nn.Linear(784, 1000), nn.ReLU(inplace=True), nn.Linear(1000, 500), nn.ReLU(inplace=True)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(500, classes))


def conv3fc3(width: float = 1.0, classes: int = 10) -> nn.Sequential:
    """Three convolutions and three linear layers, for 32 x 32 images.

    >>> sum(p.numel() for p in conv3fc3(classes=10).parameters())
    2422634
    >>> conv3fc3(width=0.3)[-1]
    Linear(in_features=300, out_features=10, bias=True)

    width: the two hidden linear layers have 1000 times as many units.
    """
    units = round(1000 * width)
    if units < 1:
        raise ValueError(f"the width must leave at least one of 1000 hidden units; got {width}: give 0.001 or more")
    convolutions: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        convolutions += [nn.Conv2d(before, after, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    hidden = [nn.Linear(1152, units), nn.ReLU(inplace=True), nn.Linear(units, units), nn.ReLU(inplace=True)]
    return he_by_outputs(nn.Sequential(*convolutions, nn.Flatten(), *hidden, nn.Linear(units, classes)))
