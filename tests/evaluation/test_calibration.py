"""Temperature scaling recovers what is known, and never makes matters worse where it was fitted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thalweg as tw
from thalweg.evaluation import calibration
from thalweg.evaluation.calibration import fit_scale, fit_temperature


def drawn(temperature, count=40_000, seed=0):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, 5, generator=g).double()
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=g)[:, 0]
    return logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_fitted_temperature_recovers_a_known_one(temperature):
    assert fit_temperature(*drawn(temperature)) == pytest.approx(temperature, rel=0.03)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_fitted_temperature_never_raises_nll_on_its_data(seed, size):
    g = torch.Generator().manual_seed(seed)
    logits, labels = size * torch.randn(20, 4, generator=g).double(), torch.randint(4, (20,), generator=g)
    fitted = fit_temperature(logits, labels)
    before, after = (float(F.cross_entropy(logits / t, labels)) for t in (1.0, fitted))
    assert after <= before + 1e-9


def test_fit_scale_of_temperatures_in_proportion():
    (cold, labels), relative = drawn(1.0), [1.0, 2.0]
    assert fit_scale([cold, 2 * cold], labels, relative) == pytest.approx(1.0, rel=0.03)


def test_fitted_temperature_of_logits_that_are_not_finite():
    with pytest.raises(tw.ThalwegError, match="finite logits"):
        fit_temperature(torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]))


def test_fitted_temperature_uses_a_part_of_very_many_probabilities(monkeypatch):
    logits, labels = drawn(2.0)
    whole = calibration.lowest_nll(logits.softmax(1), labels).value
    assert whole == pytest.approx(fit_temperature(logits, labels), rel=1e-6)
    monkeypatch.setattr(calibration, "MANY", logits.numel() // 3)
    part = calibration.lowest_nll(logits.softmax(1), labels).value
    assert part == pytest.approx(fit_temperature(logits[::4], labels[::4]), rel=1e-6)
    assert part != whole


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 270.0, 860.0])
def test_no_temperature_where_all_predictions_are_right(scale):
    """Where probabilities are 1 to the last bit, the slope of the NLL vanishes at many temperatures."""
    for seed in range(30):
        g = torch.Generator().manual_seed(seed)
        logits = scale * torch.randn(1 + seed % 7, 2 + seed % 5, generator=g).double()
        found = calibration.lowest_nll(logits.softmax(1), logits.argmax(1))
        assert found.value != found.value
        assert "predictions are right, so that a lower one is always better" in found.why


def test_temperature_beyond_the_limits_is_said():
    logits = 1e-5 * torch.tensor([[2.0, 0.0]] * 4).double()
    found = calibration.lowest_nll(logits.softmax(1), torch.tensor([0, 0, 0, 1]))
    assert found.why == "the best one is not between 0.001 and 1000; check the predictions"
