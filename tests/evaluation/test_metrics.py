"""Scores against cases worked out by hand; against torchmetrics in `make test-ecosystem`."""

import math

import pytest
import torch

from thalweg.evaluation import metrics

PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.05, 0.9, 0.05]]).double()
LABELS = torch.tensor([0, 2, 2, 1])


def test_metrics_by_hand():
    assert metrics.error(PROBABILITIES, LABELS) == 0.25
    logs = [math.log(p) for p in (0.7, 0.3, 0.4, 0.9)]
    assert metrics.nll(PROBABILITIES, LABELS) == pytest.approx(-sum(logs) / 4)
    squares = [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.6**2 + 0.7**2, 0.3**2 + 0.3**2 + 0.6**2, 0.05**2 + 0.1**2 + 0.05**2]
    assert metrics.brier(PROBABILITIES, LABELS) == pytest.approx(sum(squares) / 4)
    gaps = [abs(1 - 0.7), abs(0 - 0.6), abs(1 - 0.4), abs(1 - 0.9)]  # each alone in its bin of 15
    assert metrics.ece(PROBABILITIES, LABELS) == pytest.approx(sum(gaps) / 4)
    together = [abs(1 - 0.4) / 4, 3 / 4 * abs(2 / 3 - (0.7 + 0.6 + 0.9) / 3)]
    assert metrics.ece(PROBABILITIES, LABELS, bins=2) == pytest.approx(sum(together))


def test_disagreement_is_pairwise():
    pairs = metrics.disagreement(torch.tensor([[0, 1, 2, 0], [0, 1, 2, 0], [1, 1, 2, 2]]))
    assert pairs.tolist() == [[0, 0, 0.5], [0, 0, 0.5], [0.5, 0.5, 0]]


def test_nll_of_probability_zero_is_not_infinite():
    assert math.isfinite(metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


def test_ece_puts_certainty_into_the_last_bin():
    assert metrics.ece(torch.tensor([[1.0, 0.0]]), torch.tensor([0])) == 0
    assert metrics.ece(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == 1
