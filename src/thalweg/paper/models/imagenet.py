"""ResNet-50 for ImageNet, from whichever library of networks is installed."""

from importlib import import_module
from typing import Any

from torch import nn

from ...errors import ThalwegError


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
