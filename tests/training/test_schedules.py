"""The default decay is the one of the paper's public code, epoch by epoch."""

import pytest
import torch

import thalweg as tw
from thalweg.training.sgd import decay


@pytest.mark.parametrize("epochs", [2, 10, 150, 200])
@pytest.mark.parametrize("steps", [1, 7])
def test_decay_schedule(epochs, steps):
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


def test_decay_schedule_of_a_single_epoch_goes_by_iterations():
    rate = decay(0.1, 1, 10)
    expected = [0.1] * 6 + [0.1 * (1 - 0.99 * k / 4) for k in (1, 2, 3)] + [0.001]
    assert [rate(i) for i in range(1, 11)] == pytest.approx(expected, rel=1e-12)
    assert decay(0.1, 1, 1)(1) == 0.1


def test_fit_of_a_single_epoch_trains_at_the_rate_given():
    module = torch.nn.Linear(1, 1, bias=False).double()
    x = torch.ones(1, 1, dtype=torch.float64)
    trained = tw.fit(module, tw.regression(), [(x, 3 * x)], epochs=1, lr=0.1, momentum=0.0)
    start = module.weight.item()
    assert trained.vector.item() == pytest.approx(start - 0.1 * 2 * (start - 3), rel=1e-12)
