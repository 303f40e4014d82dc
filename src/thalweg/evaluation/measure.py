"""The loss and metrics of a network over a data set."""

from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, moved
from ..tasks import Task


class Once:
    """A network that is run once per batch though both the loss and the predictions ask for it."""

    def __init__(self, module: nn.Module):
        self._module, self._answer = module, None
        self._asked: tuple[Any, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asked = (*args, *kwargs.keys(), *kwargs.values())
        if self._asked is None or not _same(asked, self._asked):
            self._answer, self._asked = self._module(*args, **kwargs), asked
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def measure(module: nn.Module, task: Task, batches: Batches, device: torch.device) -> dict[str, float]:
    """Means over all examples, however they are batched: `data_loss` and the task's metrics."""
    totals: dict[str, Tensor | float] = {"data_loss": 0.0}
    counts: dict[str, int] = {"data_loss": 0}
    with torch.no_grad():
        for batch in moved(batches, device):
            net = Once(module)
            values, size = task.losses(net, batch)
            _add(totals, counts, "data_loss", values.double() * (size if values.ndim == 0 else 1), size)
            if task.predict is not None:
                for name, metric in task.measure(*task.predict(net, batch)).items():
                    _add(totals, counts, name, metric.double(), metric.numel())
    return {name: float(total) / counts[name] for name, total in totals.items()}


def _add(totals: dict[str, Tensor | float], counts: dict[str, int], name: str, values: Tensor, size: int) -> None:
    totals[name] = totals.get(name, 0.0) + values.sum()
    counts[name] = counts.get(name, 0) + size


def _same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    return len(one) == len(two) and all(a is b for a, b in zip(one, two, strict=True))
