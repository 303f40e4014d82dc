"""The default decay is the one of the paper's public code, epoch by epoch."""

import pytest

from thalweg.training.schedules import decay


@pytest.mark.parametrize("epochs", [1, 2, 10, 150, 200])
@pytest.mark.parametrize("steps", [1, 7])
def test_decay(epochs, steps):
    rate = decay(0.05, epochs, steps)
    for i in range(1, epochs * steps + 1):
        share = ((i - 1) // steps + 1) / epochs
        if share <= 0.5:
            factor = 1.0
        elif share <= 0.9:
            factor = 1.0 - (share - 0.5) / 0.4 * 0.99
        else:
            factor = 0.01
        assert rate(i) == pytest.approx(0.05 * factor, rel=1e-12)
