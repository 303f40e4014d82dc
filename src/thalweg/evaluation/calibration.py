"""Temperature scaling: one number that calibrates a network's confidence."""

from torch import Tensor

from ..errors import ThalwegError

COLDEST, HOTTEST = 1e-3, 1e3


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

    The NLL is convex in 1 / s, so its derivative changes sign once; the root is found by bisection in log s.
    """
    scaled = [values.double() / factor for values, factor in zip(logits, relative, strict=True)]
    if not all(bool(values.isfinite().all()) for values in scaled):
        raise ThalwegError(
            "temperatures are fitted to finite logits; these hold NaN or infinity: leave that network out"
        )

    def slope(inverse: float) -> float:
        total = 0.0
        for values in scaled:
            expected = ((inverse * values).softmax(1) * values).sum(1)
            total += float((expected - values.gather(1, labels.long()[:, None])[:, 0]).mean())
        return total

    low, high = COLDEST, HOTTEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(1 / middle) < 0 else (middle, high)
    return (low * high) ** 0.5
