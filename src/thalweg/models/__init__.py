"""Networks, usable on their own."""

from .preresnet import preresnet
from .small import digits_net
from .vgg import vgg16
from .wideresnet import wrn28_10

__all__ = ["digits_net", "preresnet", "vgg16", "wrn28_10"]
