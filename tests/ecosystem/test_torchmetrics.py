"""Our scores against torchmetrics."""

import pytest
import torch

from thalweg.evaluation import metrics

classification = pytest.importorskip("torchmetrics.functional.classification")


@pytest.mark.parametrize("classes", [2, 5, 100])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 10.0])
def test_metrics_are_those_of_torchmetrics(classes, sharpness):
    g = torch.Generator().manual_seed(classes)
    probabilities = (sharpness * torch.randn(2000, classes, generator=g).double()).softmax(1)
    labels = torch.randint(classes, (2000,), generator=g)
    theirs = classification.multiclass_calibration_error(probabilities, labels, classes, n_bins=15, norm="l1")
    assert metrics.ece(probabilities, labels) == pytest.approx(float(theirs), abs=1e-6)
    accuracy = classification.multiclass_accuracy(probabilities, labels, classes, average="micro")
    assert metrics.error(probabilities, labels) == pytest.approx(1 - float(accuracy), abs=1e-6)


def test_nll_is_that_of_torch():
    logits, labels = torch.randn(50, 7).double(), torch.randint(7, (50,))
    expected = float(torch.nn.functional.cross_entropy(logits, labels))
    assert metrics.nll(logits.softmax(1), labels) == pytest.approx(expected, rel=1e-12)
