"""A kind of module: how to make one, what it is trained on, and what is expected of each call."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

import thalweg as tw

CALLS = ("fit", "connect", "scan", "walk", "ensemble", "bn_batches")
SIZES = (6, 6, 3)
Both = Callable[[nn.Module, Any], tuple[Tensor, Tensor, Tensor]]  # net, batch -> losses, outputs, targets


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def vectors() -> list[Any]:
    g = generator()
    return [(torch.randn(n, 4, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]


def shaped(*shape: int) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        g = generator()
        return [(torch.randn(n, *shape, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]

    return make


def tokens() -> list[Any]:
    g = generator()
    return [(torch.randint(7, (n, 5), generator=g), torch.randint(3, (n,), generator=g)) for n in SIZES]


def classify(read: Callable[[Any], Tensor] = lambda result: result) -> Both:
    """Cross-entropy by hand; `read` takes the logits out of what the network returns."""

    def both(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits = read(net(*batch[:-1]))
        return -logits.log_softmax(1).gather(1, batch[-1][:, None])[:, 0], logits, batch[-1]

    return both


def softmax(logits: Tensor) -> Tensor:
    return logits.softmax(1)


@dataclass(frozen=True)
class Kind:
    """One kind of module.

    make: builds a module from torch's own generator.
    batches, given: what plain torch is trained on, and what the library is given, if that is not the same.
    refused: in a word why a call is refused, for every call or by the name of the call; everything else must be equal.
    task: made for the caller's own module, since a user's loss may refer to it.
    both: what the task computes, in plain torch.
    probabilities: what an ensemble averages.
    around: a context in which the user makes the call.
    """

    make: Callable[[], nn.Module]
    batches: Callable[[], Any] = vectors
    given: Callable[[], Any] | None = None
    refused: str | dict[str, str] = field(default_factory=dict)
    task: Callable[[nn.Module], tw.Task] = lambda module: tw.classification()
    both: Both = field(default_factory=classify)
    probabilities: Callable[[Tensor], Tensor] = softmax
    around: Callable[[nn.Module], AbstractContextManager[Any]] = lambda module: nullcontext()
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-9

    def module(self, seed: int) -> nn.Module:
        """Always the same for a seed; batch norm has seen something."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                made = self.make()
                for layer in made.modules():
                    if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
                        layer.running_mean.normal_()
                        layer.running_var.uniform_(0.5, 2.0)
                return made
        finally:
            torch.set_default_dtype(before)

    def data(self) -> Any:
        return (self.given or self.batches)()

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        return self.both(net, batch)[0]

    def expected(self, call: str) -> str:
        """'equal' or 'refused'."""
        return "refused" if self.refused and (isinstance(self.refused, str) or call in self.refused) else "equal"


KINDS: dict[str, Kind] = {}
BATCHES: dict[str, Kind] = {}  # the same for kinds of batches


def kind(
    name: str, table: dict[str, Kind] = KINDS, **fields: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Put the factory or class below it into the table."""

    def take(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        known = table.get(name)  # the same file may be imported twice, as tests and as a module
        assert known is None or known.make.__qualname__ == make.__qualname__, name
        table[name] = Kind(make, **fields)
        return make

    return take


def head(features: int = 8) -> nn.Module:
    return nn.Linear(features, 3)


class Base(nn.Module):
    """Two layers on vectors of four; the kinds below change one thing each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.first(x)))


class Normed(Base):
    """The same with batch norm, so that recomputing its statistics has something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))


def tanh_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")
