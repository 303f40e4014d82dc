"""Temperature scaling: one number that calibrates the confidence of a network or an ensemble."""

from dataclasses import dataclass
from math import nan

from torch import Tensor

from ..errors import ThalwegError
from .metrics import TINY

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
MANY = 10**8  # with more probabilities, as language models give, only every n-th example is used


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T for which softmax(logits / T) has the lowest NLL on these data.

    >>> import torch
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
    low, high, inverse = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE, 1.0
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


@dataclass(frozen=True)
class Temperature:
    """A temperature with the lowest NLL.

    Attributes:
        value: The temperature; NaN if a lower or a higher one would always be better.
        why: Why that is so, and what to do.
    """

    value: float
    why: str = ""


def lowest_nll(probabilities: Tensor, truth: Tensor, part: str = "") -> Temperature:
    """The temperature with the lowest NLL, where there is one.

    >>> import torch
    >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    >>> lowest_nll(sure, torch.tensor([0, 0, 0])).why
    'all 3 predictions are right, so that a lower one is always better; use more or harder data'
    >>> lowest_nll(sure, torch.tensor([0, 0, 1])).value  # log 9 / log 2
    3.169...

    Args:
        probabilities: (count, classes).
        truth: Labels (count,), or soft ones (count, classes).
        part: The part of the data that these are, for the message.
    """
    step = 1 + probabilities.numel() // MANY
    logits, truth = _logarithms(probabilities[::step]), truth[::step]
    of_truth, right = _of_truth(logits, truth), logits.argmax(1) == (truth.argmax(1) if truth.ndim == 2 else truth)
    if not len(truth):
        return Temperature(nan, f"there are no labels{part}; use more data")
    if not float((of_truth - logits.mean(1)).mean()) > 0:  # the NLL does not fall from an infinite temperature on
        return Temperature(
            nan,
            f"{int(right.sum())} of {len(right)} predictions{part} are right, and on average the truth is predicted no "
            "better than other classes, so that a higher one is always better; check the labels, or train the network",
        )
    if not float((logits.amax(1) - of_truth).mean()) > 0:  # nor does it rise towards a temperature of zero
        return Temperature(
            nan,
            f"all {len(right)} predictions{part} are right, so that a lower one is always better; use more or harder "
            "data",
        )
    found = fit_temperature(logits, truth)
    if MIN_TEMPERATURE * 1.001 < found < MAX_TEMPERATURE / 1.001:
        return Temperature(found)
    return Temperature(
        nan, f"the best one{part} is not between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}; check the predictions"
    )


def tempered(probabilities: Tensor, temperature: float | Tensor) -> Tensor:
    """The same as dividing the logits of a softmax by a temperature.

    >>> import torch
    >>> tempered(torch.tensor([[0.8, 0.2]]), 0.5)  # 16 to 1
    tensor([[0.9412, 0.0588]], dtype=torch.float64)
    """
    return (_logarithms(probabilities) / temperature).softmax(1)


def _logarithms(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(TINY).log()
