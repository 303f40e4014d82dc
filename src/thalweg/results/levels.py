"""The levels of a plane's contours: logarithmic above the lowest value, so that valley and barrier are both visible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ThalwegError
from .scan import Scan

NEAR, WALL = 0.4, 4.0  # a bowl is drawn whole: two fifths of a square lie below a quarter of what its corners reach
DEPTH = 5.0  # how many factors of e lie between the first level above the lowest point and the highest
LEVELS = 14  # contours


@dataclass(frozen=True)
class Scale:
    """Logarithmic above the lowest value, and no higher than needed, so that both the valley and the barrier are
    visible.
    """

    low: float
    high: float

    @classmethod
    def of(cls, planes: Sequence[tuple[Scan, np.ndarray]]) -> "Scale":
        """Up to the values between the first two networks and around them, but not to losses of millions farther away.

        Args:
            planes: Scans, each with the values to draw.
        """
        return cls.over([values for _, values in planes], max(_barrier(scan, values) for scan, values in planes))

    @classmethod
    def over(cls, planes: Sequence[np.ndarray], barrier: float = -np.inf) -> "Scale":
        """The same for values alone, and at least up to a barrier."""
        finite = np.concatenate([values[np.isfinite(values)] for values in planes])
        if finite.size == 0:
            raise ThalwegError(
                "there is no finite value to draw: the networks of this plane have diverged, or the data hold NaN"
            )
        low, near, high = np.quantile(finite, (0, NEAR, 1))
        flat = max(1e-6, 1e-6 * abs(low))
        return cls(float(low), float(low + max(min(high - low, max(WALL * (near - low), barrier - low)), flat)))

    def share(self, values: np.ndarray) -> np.ndarray:
        """The position of values between the lowest level, 0, and the highest, 1; a little outside for values beyond
        them.
        """
        above = (np.where(np.isneginf(values), np.nan, values) - self.low) / (self.high - self.low)
        return 1 + np.log(np.clip(above, np.exp(-1.1 * DEPTH), np.exp(0.1 * DEPTH))) / DEPTH

    def text(self, share: float, _: Any = None) -> str:
        """The value at a level, with enough digits to tell the lowest levels apart, up to six."""
        above, finest = (np.exp(DEPTH * (part - 1)) * (self.high - self.low) for part in (share, 0))
        digits = 1 + np.floor(np.log10(abs(self.low) + finest)) + np.ceil(-np.log10(finest))
        return f"{self.low + above:.{int(np.clip(digits, 3, 6))}g}"


def _barrier(scan: Scan, values: np.ndarray) -> float:
    """The highest value in the grid row of the straight line between the first two networks."""
    if scan.x is None or scan.y is None or len(scan.corners) < 2:
        return -np.inf
    (start, height), (end, _) = scan.corners[:2]
    between = values[np.abs(scan.y - height).argmin(), (scan.x >= start) & (scan.x <= end)]
    return max(between[np.isfinite(between)], default=-np.inf)
