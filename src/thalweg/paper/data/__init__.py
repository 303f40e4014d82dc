"""Data sets, and batches that are made on the device."""

from .cifar import cifar10, cifar100
from .device import DeviceBatches
from .digits import digits
from .fetch import find_data
from .idx import mnist
from .images import images_in
from .splits import held_out
from .tokens import TokenBatches, ptb

__all__ = [
    "DeviceBatches",
    "TokenBatches",
    "cifar10",
    "cifar100",
    "digits",
    "find_data",
    "held_out",
    "images_in",
    "mnist",
    "ptb",
]
