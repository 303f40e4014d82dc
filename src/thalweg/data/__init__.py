"""Data sets, and batches that live on the device."""

from .device import DeviceBatches
from .digits import digits

__all__ = ["DeviceBatches", "digits"]
