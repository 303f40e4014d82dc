"""Data sets, and batches that live on the device."""

from .device import DeviceBatches
from .digits import digits
from .idx import mnist

__all__ = ["DeviceBatches", "digits", "mnist"]
