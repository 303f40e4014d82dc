"""Kinds that keep something besides their weights: hidden states, caches, merged weights, counters, generators."""

from typing import Any

import torch
from differential.kind import Base, kind, shaped
from torch import Tensor, nn


class Carrying(nn.Module):
    """A recurrent network whose state is carried from batch to batch, truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(4, 5), nn.Linear(5, 3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.cell(x, state.expand(len(x), -1))
        return self.head(hidden), hidden.detach().mean(0, keepdim=True)


@kind("hidden_state_as_attribute")
class StateAttribute(Carrying):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(1, 5)

    def forward(self, x: Tensor) -> Tensor:
        output, self.state = self.step(x, self.state)
        return output


@kind("hidden_state_as_buffer")
class StateBuffer(Carrying):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.step(x, self.state.clone())
        self.state.copy_(state)
        return output


@kind("hidden_state_as_passing_buffer")
class StatePassing(Carrying):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        output, self.state = self.step(x, self.state)
        return output


@kind("hidden_state_in_a_dict")
class StateDict(Carrying):
    def __init__(self) -> None:
        super().__init__()
        self.memory = {"state": torch.zeros(1, 5)}

    def forward(self, x: Tensor) -> Tensor:
        output, self.memory["state"] = self.step(x, self.memory["state"])
        return output


@kind("cache_made_in_eval")
class EvalCache(Base):
    """Keeps a product of weights in evaluation mode, thrown away by train(True)."""

    cache: Tensor | None = None

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            self.cache = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(x))
        if self.cache is None:
            self.cache = (self.last.weight @ self.first.weight).detach()
        return x @ self.cache.t() + self.last(self.first.bias)


@kind("cache_made_in_the_first_call")
class FirstCallCache(Base):
    """Keeps a product of weights for ever: in plain training, too, its gradient is that of the first step alone."""

    cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = self.first.weight * 2
        return self.last((x @ self.cache.detach().t()).tanh())


@kind("cache_of_the_inputs_shape")
class HarmlessCache(Base):
    """A table of positions, which does not depend on weights: harmless."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.linspace(0, 1, len(x), dtype=x.dtype)[:, None]
        return super().forward(x + self.tables[len(x)])


@kind("lora_merged_in_eval")
class Lora(Base):
    """As loralib: eval() adds the product to the weight, train() takes it out again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.merged = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(8, 2)), False

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if mode == self.merged:
            with torch.no_grad():
                self.first.weight += (-1 if mode else 1) * (self.up @ self.down)
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden if self.merged else hidden + x @ self.down.t() @ self.up.t())


@kind("lora_merged_in_eval_beside_batch_norm")
class LoraNorm(Lora):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))


@kind("merged_in_train")
class MergedInTrain(Base):
    """The reverse: train() writes to the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = False

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if mode and not self.scaled:
            with torch.no_grad():
                self.first.weight *= 2
            self.scaled = True
        return self


@kind("teacher_of_moving_averages_as_buffers")
class TeacherBuffers(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("teacher", torch.zeros(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.lerp_(self.last.weight, 0.1)
        hidden = self.first(x).tanh()
        return self.last(hidden) + 0.5 * hidden @ self.teacher.t()


@kind("teacher_of_moving_averages_as_frozen_parameters")
class TeacherFrozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(torch.zeros(3, 8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.lerp_(self.last.weight, 0.1)
        hidden = self.first(x).tanh()
        return self.last(hidden) + 0.5 * hidden @ self.teacher.t()


@kind("counter_as_attribute")
class Counter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


@kind("counter_as_attribute_that_is_not_used")
class IdleCounter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@kind("counter_as_buffer")
class CounterBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


@kind("counter_as_buffer_beside_batch_norm")
class CounterNorm(CounterBuffer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


@kind("branches_by_a_counter")
class Turns(Base):
    """The second branch is reached in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) if self.calls <= 3 else self.other(x)


@kind("generator_inside")
class OwnGenerator(Base):
    """Monte Carlo dropout in evaluation mode, too, from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        keep = torch.rand(hidden.shape, generator=self.generator, dtype=hidden.dtype) > 0.3
        return self.last(hidden * keep)


@kind("random_in_eval")
class AlwaysDropout(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.dropout(self.first(x).tanh(), 0.3, training=True))


@kind("statistics_of_its_own", batches=shaped(4))
class OwnNorm(Base):
    """A running mean that is no batch-norm layer: a buffer like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(hidden.mean(0), 0.1)
        return self.last((hidden - self.mean).tanh())


@kind("graph_left_behind")
class LeavesGraph(Base):
    """Keeps its last activations, graph and all, as people do for a penalty."""

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x).tanh()
        return self.last(self.hidden)


@kind("cache_made_in_eval_deep_inside")
class DeepCache(Base):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = [[[[[[{}]]]]]]

    def forward(self, x: Tensor) -> Tensor:
        held = self.kept[0][0][0][0][0][0]
        weight = self.first.weight if self.training else held.setdefault("weight", self.first.weight.detach() * 1)
        return self.last((x @ weight.t() + self.first.bias).tanh())
