"""Data sets, and batches that are made on the device."""

from .batches import DeviceBatches, TokenBatches
from .fetch import find_data
from .images import images_in
from .readers import cifar10, cifar100, digits, held_out, mnist, ptb

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
