"""Scores of predicted probabilities (count, classes) against labels (count,)."""

import torch
from torch import Tensor

BINS = 15
TINY = 1e-300  # a probability of zero costs this much of a logarithm, not an infinite one


def error(probabilities: Tensor, labels: Tensor) -> float:
    """The share of wrong labels.

    >>> error(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    return float((probabilities.argmax(1) != labels).double().mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The mean negative logarithm of the probability of the right label.

    >>> round(nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1])), 6)
    0.693147
    """
    right = probabilities.double().gather(1, labels[:, None])
    return float(-right.clamp_min(TINY).log().mean())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The mean squared distance between the probabilities and the truth.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return float((probabilities.double() - truth).square().sum(1).mean())


def ece(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: how far confidence lies from accuracy, over equally wide bins of confidence.

    >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])), 6)
    0.3
    """
    return sum(share * abs(accuracy - confidence) for share, accuracy, confidence in reliability(probabilities, labels, bins))


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> list[list[float]]:
    """For each bin of confidence that is not empty: its share of the data, its accuracy, its mean confidence."""
    confidence, chosen = probabilities.double().max(1)
    right = (chosen == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].to(confidence.device)
    place = torch.bucketize(confidence, edges)
    counts = torch.bincount(place, minlength=bins)
    sums = [torch.bincount(place, weights=values, minlength=bins) for values in (right, confidence)]
    filled = counts > 0
    columns = (counts[filled].double() / len(labels), *(total[filled] / counts[filled] for total in sums))
    return torch.stack(columns, 1).tolist()


def disagreement(choices: Tensor) -> Tensor:
    """From the labels each member chose (members, count): for each pair of members, the share on which they differ.

    >>> disagreement(torch.tensor([[0, 1, 2, 3], [0, 1, 1, 1]]))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    return torch.stack([(choices != row).double().mean(1) for row in choices])


SCORES = {"error": error, "nll": nll, "brier": brier, "ece": ece}
