"""Networks, usable on their own."""

from .plain import conv3fc3, digits_net, fc, vgg16, vgg16_bn
from .recurrent import Lstm, lstm
from .residual import (
    preresnet,
    preresnet20,
    preresnet164,
    resnet50,
    resnet158,
    resnet_bottleneck164,
    wrn16_4,
    wrn28_10,
)

__all__ = [
    "Lstm", "conv3fc3", "digits_net", "fc", "lstm", "preresnet", "preresnet164", "preresnet20", "resnet158",
    "resnet50", "resnet_bottleneck164", "vgg16", "vgg16_bn", "wrn16_4", "wrn28_10",
]  # fmt: skip
