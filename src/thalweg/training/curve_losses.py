"""The losses that train a curve. A new one is a subclass of `Bends` in a file of its own, listed here and in
`CurveLoss` of `connect.py`.
"""

from .arclength import ArclengthBends
from .step import Bends, UniformBends

CURVE_LOSSES: dict[str, type[Bends]] = {"uniform": UniformBends, "arclength": ArclengthBends}
