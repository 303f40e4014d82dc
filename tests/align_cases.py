"""Networks with a batch, and the batches that small networks take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import thalweg as tw


@dataclass(frozen=True)
class AlignmentCase:
    """A network with a batch.

    Attributes:
        groups: How many groups of units can be renumbered.
        share: The share of the parameters in tensors that can be renumbered.
        task: By default a classification.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    groups: int
    share: float
    task: tw.Task = tw.classification()  # noqa: RUF009

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make()


class Of(nn.Module):
    """A network of named parts and a function of them."""

    def __init__(self, forward: Callable[..., Any], **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def images() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, 8, 8, generator=g), torch.randint(4, (3,), generator=g)


def vectors() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(5, 6, generator=g), torch.randint(4, (5,), generator=g)


def pairs() -> Any:
    return vectors()[0], vectors()[0].flip(0), vectors()[1]


def sequences() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, 7, 6, generator=g), torch.randint(4, (3,), generator=g)


def tokens() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randint(9, (3, 7), generator=g), torch.randint(4, (3,), generator=g)


def text() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randint(9, (3, 7), generator=g), torch.randint(9, (3, 7), generator=g)


def signals() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 16, generator=g), torch.randint(4, (3,), generator=g)


def volumes() -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, 1, 6, 6, 6, generator=g), torch.randint(4, (2,), generator=g)
