"""Networks, usable on their own."""

from .small import digits_net

__all__ = ["digits_net"]
