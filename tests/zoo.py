"""Modules of every kind a user may bring, in float64, each with a task and batches of unequal size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import thalweg as tw

SIZES = (6, 6, 3)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    batches: Callable[[], list[Any]]
    task: tw.Task

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().double()

    def losses(self, net: Callable[..., Any], batch: Any) -> Tensor:
        return self.task.loss(*self.task.predict(net, batch))

    def ends(self) -> tuple[tw.Weights, tw.Weights]:
        return tw.Weights.of(self.module(1)), tw.Weights.of(self.module(2))


class Tied(nn.Module):
    """A language model whose output layer is its embedding, transposed."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.lstm = nn.LSTM(5, 5, num_layers=2, batch_first=True)
        self.output = nn.Linear(5, 7)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(tokens))[0])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(input_ids)).mean(1))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.left(left)) + self.right(right)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def conv_bn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 8), nn.BatchNorm1d(8),
        nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def channels_last() -> nn.Module:
    return conv_bn().to(memory_format=torch.channels_last)


def frozen() -> nn.Module:
    module = mlp()
    with torch.no_grad():
        module[0].weight.copy_(torch.linspace(-1, 1, 32).reshape(8, 4))
    module[0].weight.requires_grad_(False)
    return module


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))


def compiled() -> nn.Module:
    return torch.compile(mlp(), backend="eager")


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def vectors() -> list[Any]:
    g = _generator()
    return [(torch.randn(n, 4, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]


def images() -> list[Any]:
    g = _generator()
    return [(torch.randn(n, 2, 5, 5, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]


def pairs() -> list[Any]:
    g = _generator()
    return [
        (*(torch.randn(n, d, generator=g).double() for d in (4, 2)), torch.randn(n, 3, generator=g).double())
        for n in SIZES
    ]


def tokens() -> list[Any]:
    g = _generator()
    return [(torch.randint(7, (n, 5), generator=g), torch.randint(7, (n, 5), generator=g)) for n in SIZES]


def dicts() -> list[Any]:
    g = _generator()
    return [
        {"input_ids": torch.randint(7, (n, 5), generator=g), "labels": torch.randint(3, (n,), generator=g)}
        for n in SIZES
    ]


ZOO = {
    "mlp": Case(mlp, vectors, tw.classification()),
    "conv_bn": Case(conv_bn, images, tw.classification()),
    "channels_last": Case(channels_last, images, tw.classification()),
    "transformer_dict": Case(Transformer, dicts, tw.classification()),
    "tied_lstm": Case(Tied, tokens, tw.language_modelling(padding=False)),
    "frozen": Case(frozen, vectors, tw.classification()),
    "two_inputs": Case(TwoInputs, pairs, tw.regression()),
    "dropout": Case(dropout, vectors, tw.classification()),
    "weight_norm": Case(normed, vectors, tw.classification()),
    "compiled": Case(compiled, vectors, tw.classification()),
}


def bits(module: nn.Module) -> dict[str, Any]:
    """Everything about a module that a call must leave as it was."""
    inner = getattr(module, "_orig_mod", module)
    state: dict[str, Any] = {}
    for name, tensor in [*inner.named_parameters(remove_duplicate=False), *inner.named_buffers(remove_duplicate=False)]:
        state[name] = (id(tensor), tensor.data_ptr(), tensor.stride(), tensor.requires_grad, tensor.detach().clone())
        state[f"{name}.grad"] = None if tensor.grad is None else tensor.grad.clone()
    for name, part in inner.named_modules():
        hooks = [len(getattr(part, key)) for key in vars(part) if key.endswith("_hooks")]
        state[f"{name}:module"] = (part.training, hooks, getattr(part, "momentum", None))
    return state


def same_bits(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(
            *(x.contiguous().reshape(-1).view(torch.uint8) for x in (one, two))
        )
    if isinstance(one, tuple):
        return len(one) == len(two) and all(_same(a, b) for a, b in zip(one, two, strict=True))
    return one == two
