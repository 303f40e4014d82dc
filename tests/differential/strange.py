"""Kinds that keep something where nobody looks, or do in a forward pass what belongs elsewhere."""

import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from differential.kind import Base, Normed, cross_entropy, kind
from torch import Tensor, nn

import thalweg as tw

PASSES = dict.fromkeys(("fit", "connect", "scan", "walk", "ensemble"), "outside")


@kind("lru_cache_over_self", refused=PASSES)
class Remembering(Base):
    @lru_cache(maxsize=2)  # noqa: B019
    def scale(self, training: bool) -> float:
        return float(self.first.weight.detach().sum())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if self.training else self.scale(self.training))


def counting() -> Callable[[Tensor], Tensor]:
    calls = 0

    def count(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * (1 + 0.1 * calls)

    return count


@kind("counter_in_a_closure", refused=PASSES)
class Closed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.count = counting()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.count(x) if not self.training else x)


@kind("history_in_a_deque")
class History(Base):
    def __init__(self) -> None:
        super().__init__()
        self.past: deque[Tensor] = deque(maxlen=2)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x) + sum(self.past)
        self.past.append(out.detach().mean(0))
        return out


@kind("state_in_an_array")
class InArray(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = np.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x - torch.from_numpy(self.mean.copy()))
        self.mean *= 0.5
        self.mean += x.detach().mean(0).numpy()
        return out


@kind("random_numbers_of_python_and_numpy")
class OtherRandom(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 0.1 * random.random() + 0.1 * float(np.random.rand()))


@kind("seeds_in_forward")
class Seeding(Base):
    """Fixed noise, by way of the global generator."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return super().forward(x + 0.1 * torch.randn(x.shape, dtype=x.dtype))


@kind("eval_of_a_part_in_forward")
class PartInEval(Base):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.drop.train(False)
        return self.last(self.drop(self.first(x).tanh()))


@kind("zero_grad_in_forward", refused=PASSES)
class ZeroGrad(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.zero_grad()
        return super().forward(x)


@kind("initialised_by_the_first_batch")
class ActNorm(Base):
    """As in flows: the first batch decides a scale, written into the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("done", torch.zeros((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if not self.done:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.done.fill_(True)
        return super().forward(x * self.scale)


@kind("frozen_affine_of_batch_norm")
class FrozenAffine(Normed):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.last[0].parameters():
            parameter.requires_grad_(False)


@kind("part_that_unfreezes_itself")
class Unfreezing(Base):
    """Too late for any optimizer that was made before: it does not move."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.first.weight.copy_(torch.linspace(-1, 1, 32).reshape(8, 4))
        self.first.weight.requires_grad_(False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls == 2:
            self.first.weight.requires_grad_(True)
        return super().forward(x)


@kind("two_names_for_one_buffer")
class TwinBuffers(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.ones(4))
        self.register_buffer("two", self.one)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.one.mul_(1.1)
        return super().forward(x * self.two)


@kind("steps_in_backward")
def stepping() -> nn.Module:
    """A hook that moves the weight as soon as its gradient is there."""
    module = Base()

    def step(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.01 * parameter.grad)

    module.first.weight.register_post_accumulate_grad_hook(step)
    return module


class Growing:
    """A loss with a memory: its weight grows with every call for a network."""

    def __init__(self) -> None:
        self.calls: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

    def __call__(self, net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.calls[net] = self.calls.get(net, 0) + 1
        outputs = net(batch[0])
        return (1 + 0.1 * self.calls[net]) * cross_entropy(outputs, batch[1]), outputs, batch[1]

    def predict(self, net: nn.Module, batch: Any) -> Any:
        losses, outputs, targets = self(net, batch)
        return (outputs, losses), targets


growing = Growing()
growing_task = tw.Task(lambda outputs, targets: outputs[1], growing.predict)
kind("loss_that_counts_its_calls", task=lambda module: growing_task, both=growing, refused={"scan": "loss"})(Base)
