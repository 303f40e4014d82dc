"""Temperature scaling: one number that calibrates the confidence of a network or an ensemble."""

from math import nan

import torch
from torch import Tensor

from ..errors import ThalwegError
from .metrics import TINY

COLDEST, HOTTEST = 1e-3, 1e3
MANY = 10**8  # of more probabilities than these, as language models give, every n-th example is fitted


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T for which softmax(logits / T) has the lowest NLL on these data.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 3)  # 3 in 4 are right: 2 / T = log 3
    1.82
    """
    return fit_scale([logits], labels, [1.0])


def fit_scale(logits: list[Tensor], labels: Tensor, relative: list[float]) -> float:
    """The factor s for which the temperatures `s * relative` have the lowest mean NLL over several networks.

    The NLL is convex in 1 / s, so its derivative changes sign once; the root is found by Newton's method, and by
    bisection in log s where that leaves the interval in which the root is known to be.

    Args:
        logits: Of each network, (count, classes).
        labels: (count,), or soft ones (count, classes).
        relative: A temperature for each network.
    """
    scaled = [values.double() / factor for values, factor in zip(logits, relative, strict=True)]
    if not all(bool(values.isfinite().all()) for values in scaled):
        raise ThalwegError(
            "temperatures are fitted to finite logits; these hold NaN or infinity: leave that network out"
        )
    of_truth = sum(float(_of_truth(values, labels).mean()) for values in scaled)
    low, high, inverse = 1 / HOTTEST, 1 / COLDEST, 1.0
    for _ in range(100):
        slope, curvature = -of_truth, 0.0
        for values in scaled:
            weights = (inverse * values).softmax(1)
            mean = (weights * values).sum(1, keepdim=True)
            slope += float(mean.mean())
            curvature += float((weights * (values - mean).square()).sum(1).mean())
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        newton = inverse - slope / curvature if curvature > 0 else nan
        before, inverse = inverse, newton if low < newton < high else (low * high) ** 0.5
        if abs(inverse - before) <= 1e-13 * before:
            break
    return 1 / inverse


def _of_truth(values: Tensor, labels: Tensor) -> Tensor:
    """The logit of each label, or the mean logit under each soft one."""
    return (labels * values).sum(1) if labels.ndim == 2 else values.gather(1, labels.long()[:, None])[:, 0]


def existing_temperature(probabilities: Tensor, truth: Tensor) -> float:
    """The temperature with the lowest NLL; NaN where a lower or a higher one would always be better.

    >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    >>> existing_temperature(sure, torch.tensor([0, 0])), existing_temperature(sure, torch.tensor([1, 1]))
    (nan, nan)
    """
    step = 1 + probabilities.numel() // MANY
    found = fit_temperature(_logarithms(probabilities[::step]), truth[::step]) if len(truth) else nan
    return found if COLDEST * 1.001 < found < HOTTEST / 1.001 else nan


def tempered(probabilities: Tensor, temperature: float | Tensor) -> Tensor:
    """The same as dividing the logits of a softmax by a temperature.

    >>> tempered(torch.tensor([[0.8, 0.2]]), 0.5)  # 16 to 1
    tensor([[0.9412, 0.0588]], dtype=torch.float64)
    """
    return (_logarithms(probabilities) / temperature).softmax(1)


def cross_fitted(probabilities: Tensor, truth: Tensor) -> Tensor:
    """For each example the temperature fitted on the other half of the data, (count, 1): every other one."""
    heat = torch.full((len(truth), 1), nan, dtype=torch.float64)
    for half, other in ((0, 1), (1, 0)):
        heat[half::2] = existing_temperature(probabilities[other::2], truth[other::2])
    return heat


def _logarithms(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(TINY).log()
