"""Networks, usable on their own."""

from .preresnet import preresnet
from .small import digits_net
from .vgg import vgg16

__all__ = ["digits_net", "preresnet", "vgg16"]
