"""The loss and metrics of a network over a data set."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, moved
from ..tasks import Task

Call = tuple[tuple[Any, ...], Any, list[int]]


def measure(module: nn.Module, task: Task, batches: Batches, device: torch.device) -> dict[str, float]:
    """Means over all examples, however they are batched: `data_loss` and the task's metrics."""
    totals: dict[str, Tensor | float] = {}
    counts: dict[str, int] = {}

    def add(name: str, values: Tensor, size: int) -> None:
        totals[name] = totals.get(name, 0.0) + values.double().sum()
        counts[name] = counts.get(name, 0) + size

    with torch.no_grad():
        for batch in moved(batches, device):
            with _recorded(module) as calls:
                values, size = task.losses(module, batch)
            add("data_loss", values * size if values.ndim == 0 else values, size)
            if task.predict is not None:
                with _recalled(module, calls):
                    outputs, targets = task.predictions(module, batch)
                for name, metric in task.measure(outputs, targets).items():
                    add(name, metric, metric.numel())
    return {name: float(total) / counts[name] for name, total in totals.items()}


@contextmanager
def _recorded(module: nn.Module) -> Iterator[list[Call]]:
    """Note what the network is asked and what it answers while the loss is computed."""
    calls: list[Call] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        asked = (*args, *kwargs.keys(), *kwargs.values())
        calls.append((asked, answer, _versions(asked, answer)))

    hook = module.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


@contextmanager
def _recalled(module: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Let the predictions have the same answer to the same question, asked once, if nobody wrote to either since."""
    known = "forward" in module.__dict__
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        asked = (*args, *kwargs.keys(), *kwargs.values())
        if len(calls) == 1:
            before, answer, versions = calls[0]
            same = len(asked) == len(before) and all(a is b for a, b in zip(asked, before, strict=True))
            if same and _versions(asked, answer) == versions:
                return answer
        return original(*args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        if known:
            module.forward = original
        else:
            del module.forward


def _versions(asked: tuple[Any, ...], answer: Any) -> list[int]:
    """How often each tensor in sight has been written to."""
    parts = answer if isinstance(answer, tuple | list) else answer.values() if isinstance(answer, Mapping) else [answer]
    return [item._version for item in (*asked, *parts) if isinstance(item, Tensor)]
