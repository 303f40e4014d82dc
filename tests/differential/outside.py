"""Kinds that keep something made of their weights outside of themselves: on the class, in a global, in a closure."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch
from differential.kind import Base, Normed, classify, cross_entropy, kind
from torch import Tensor, nn

import thalweg as tw

KEPT: dict[Any, Any] = {}
EVERYWHERE = dict.fromkeys(("fit", "connect", "scan", "walk", "ensemble"), "outside")
MEASURED = {"scan": "outside", "ensemble": "outside"}


class Fresh(Base):
    """What others of the kind have left is thrown away, so that plain torch is right, which makes a network for every
    point.
    """

    def __init__(self) -> None:
        super().__init__()
        KEPT.clear()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight if self.training else self.doubled()
        return self.last((x @ weight.t() + self.first.bias).tanh())

    def doubled(self) -> Tensor:
        key = self.key()
        if key not in KEPT:
            KEPT[key] = self.first.weight.detach() * 2
        return KEPT[key]

    def key(self) -> Any:
        return "first"


class Clearing(Fresh):
    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            KEPT.clear()
        return super().train(mode)


kind("cache_in_a_global_until_train")(Clearing)
kind("cache_in_a_global", refused=EVERYWHERE)(Fresh)


@kind("cache_on_the_class_until_train")
class OnTheClass(Base):
    merged: ClassVar[Tensor | None] = None

    def __init__(self) -> None:
        super().__init__()
        OnTheClass.merged = None

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            OnTheClass.merged = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(x))
        if OnTheClass.merged is None:
            OnTheClass.merged = (self.last.weight @ self.first.weight).detach()
        return x @ OnTheClass.merged.t() + self.last(self.first.bias)


@kind("cache_on_the_class_until_train_beside_batch_norm")
class OnTheClassNormed(Normed):
    merged: ClassVar[Tensor | None] = None

    def __init__(self) -> None:
        super().__init__()
        OnTheClassNormed.merged = None

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            OnTheClassNormed.merged = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(x))
        if OnTheClassNormed.merged is None:
            OnTheClassNormed.merged = self.first.weight.detach() * 1.5
        return self.last(x @ OnTheClassNormed.merged.t())


@kind("cache_in_a_global_beside_batch_norm", refused=EVERYWHERE | {"bn_batches": "outside"})
class GlobalNormed(Normed):
    def __init__(self) -> None:
        super().__init__()
        KEPT.clear()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(x))
        if "first" not in KEPT:
            KEPT["first"] = self.first.weight.detach() * 1.5
        return self.last(x @ KEPT["first"].t())


def remembering() -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
    kept: Tensor | None = None

    def remember(weight: Tensor) -> Tensor:
        nonlocal kept
        kept = weight.detach() * 2 if kept is None else kept
        return kept

    def forget() -> None:
        nonlocal kept
        kept = None

    return remember, forget


@kind("cache_in_a_closure_until_train")
class InAClosure(Fresh):
    def __init__(self) -> None:
        super().__init__()
        self.remember, self.forget = remembering()

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            self.forget()
        return super().train(mode)

    def doubled(self) -> Tensor:
        return self.remember(self.first.weight)


@kind("cache_in_a_closure", refused=EVERYWHERE)
class InAClosureForEver(Fresh):
    def __init__(self) -> None:
        super().__init__()
        self.remember, _ = remembering()

    def doubled(self) -> Tensor:
        return self.remember(self.first.weight)


@kind("cache_by_identity_of_the_network", refused=EVERYWHERE)
class ByIdentity(Fresh):
    def key(self) -> Any:
        return id(self)


@kind("cache_by_mode", refused=EVERYWHERE)
class ByMode(Fresh):
    def key(self) -> Any:
        return self.training


@kind("cache_by_place_in_memory", refused=EVERYWHERE)
class ByPlace(Fresh):
    def key(self) -> Any:
        return self.first.weight.data_ptr()


@kind("cache_by_version_of_the_weight")
class ByVersion(Fresh):
    """Which is how one does it: every write to a weight is counted."""

    def key(self) -> Any:
        return self.first.weight, self.first.weight._version  # not its id, which another weight may have after it


@kind("cache_of_a_number", refused=EVERYWHERE)
class OfANumber(Fresh):
    """No tensor is kept, and the weight takes part otherwise too."""

    def doubled(self) -> Tensor:
        KEPT["norm"] = KEPT.get("norm") or float(self.first.weight.detach().norm())
        return self.first.weight * KEPT["norm"]


@kind("cache_of_what_support_examples_are_mapped_to", refused=MEASURED)
class Prototypes(Fresh):
    """As in few-shot networks: every weight also takes part with the batch."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or "prototypes" not in KEPT:
            KEPT["prototypes"] = Base.forward(self, torch.eye(4, dtype=x.dtype)).mean(0)
        return Base.forward(self, x) - KEPT["prototypes"].detach()


@kind("cache_without_gradients_alone", refused=EVERYWHERE)
class WithoutGradients(Fresh):
    def doubled(self) -> Tensor:
        return self.first.weight * 2 if torch.is_grad_enabled() else super().doubled()


@kind("cache_by_place_of_the_batch", refused=EVERYWHERE)
class ByBatch(Fresh):
    """Features of a batch, as for a frozen backbone, which here moves."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        key = x.data_ptr(), len(x)
        KEPT[key] = KEPT[key] if key in KEPT else self.first(x).tanh().detach()
        return self.last(KEPT[key])


@cache
def doubled(name: str, network: Callable[[], nn.Module]) -> Tensor:
    return network().get_parameter(name).detach() * 2


@kind("functools_cache_by_name", refused=EVERYWHERE)
class ByName(Fresh):
    def __init__(self) -> None:
        super().__init__()
        doubled.cache_clear()

    def doubled(self) -> Tensor:
        return doubled("first.weight", Anybody(self))


class Anybody:
    """All are equal to a cache."""

    def __init__(self, network: nn.Module):
        self.network = network

    def __call__(self) -> nn.Module:
        return self.network

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anybody)


class Scripted(nn.Module):
    """The cache is an attribute that C++ keeps."""

    merged: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.merged = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.last(self.first(x))
        merged = self.merged
        if merged is None:
            merged = (self.last.weight @ self.first.weight).detach()
            self.merged = merged
        return x @ merged.t() + self.last(self.first.bias)


@kind("cache_in_a_scripted_network", refused=MEASURED)
def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Scripted())


@kind("lora_merged_in_eval_by_a_flag_on_the_class")
class ClassLora(Base):
    merged: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        ClassLora.merged = False
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(8, 2))

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if mode == ClassLora.merged:
            with torch.no_grad():
                self.first.weight += (-1 if mode else 1) * (self.up @ self.down)
            ClassLora.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden if ClassLora.merged else hidden + x @ self.down.t() @ self.up.t())


def scaled_loss(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = net(batch[0])
    if net.training:
        return cross_entropy(outputs, batch[1]), outputs, batch[1]
    KEPT["scale"] = KEPT.get("scale") or float(net.get_parameter("first.weight").detach().norm())
    return KEPT["scale"] * cross_entropy(outputs, batch[1]), outputs, batch[1]


class Plain(Base):
    def __init__(self) -> None:
        super().__init__()
        KEPT.clear()


def with_weight(net: nn.Module, batch: Any) -> Any:
    return (net(batch[0]), None if net.training else net.get_parameter("first.weight")), batch[1]


def scaled(outputs: tuple[Tensor, Tensor | None], targets: Tensor) -> Tensor:
    logits, weight = outputs
    if weight is None:
        return cross_entropy(logits, targets)
    KEPT["scale"] = KEPT.get("scale") or float(weight.detach().norm())
    return KEPT["scale"] * cross_entropy(logits, targets)


scaling = tw.Task(scaled, with_weight)
kind("loss_with_a_cache_in_a_global", task=lambda module: scaling, both=scaled_loss, refused={"scan": "outside"})(Plain)


@kind("table_in_a_global")
class Table(Fresh):
    """Made in the first pass, and the same for all weights."""

    def forward(self, x: Tensor) -> Tensor:
        KEPT["table"] = KEPT["table"] if "table" in KEPT else torch.linspace(0, 1, 4, dtype=x.dtype).sin()
        return Base.forward(self, x * KEPT["table"])


@kind("features_of_a_frozen_part_in_a_global")
class FrozenFeatures(Fresh):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.first.weight.copy_(torch.linspace(-1, 1, 32).reshape(8, 4))
            self.first.bias.zero_()
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        key = x.sum().item()
        KEPT[key] = KEPT[key] if key in KEPT else self.first(x).tanh()
        return self.last(KEPT[key])


@kind("experts_chosen_by_their_input", both=classify())
class Experts(Base):
    """At other weights other parameters take part."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))
        self.gate = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        gates = self.gate(hidden).softmax(1)
        best = int(gates.sum(0).argmax())
        return self.last(hidden) + gates[:, best : best + 1] * self.experts[best](hidden)


@kind("cache_by_setdefault", refused=EVERYWHERE)
class Defaulting(Fresh):
    """Computes the value again in every pass, and throws it away."""

    def doubled(self) -> Tensor:
        return KEPT.setdefault("first", self.first.weight.detach() * 2)


@kind("cache_by_a_rounded_key", refused=EVERYWHERE)
class RoundedKey(Fresh):
    def doubled(self) -> Tensor:
        weight = self.first.weight.detach() * 2
        return KEPT.setdefault(float(weight.sum() // 1000), weight)


@kind("output_memory_used_again")
class SameMemory(Base):
    """Harmless: what is kept is memory, and a mask of the shape of something computed."""

    def __init__(self) -> None:
        super().__init__()
        KEPT.clear()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        hidden = hidden * KEPT.setdefault(("mask", hidden.shape), torch.ones_like(hidden))
        output = self.last(hidden)
        return output if self.training else KEPT.setdefault(output.shape, torch.empty_like(output)).copy_(output)


@kind("part_that_is_frozen_while_evaluated")
class FrozenInEval(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.first.weight.requires_grad_(self.training)
        return super().forward(x)
