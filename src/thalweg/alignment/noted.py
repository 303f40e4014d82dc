"""What a call of a network computes, noted operation by operation, to compare two calls without their graphs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..batches import mapped, tensors_in
from ..generators import global_randomness
from ..runtime.recompiled import interpreted
from ..store.content import digest_of
from ..tasks import Task
from ..weightspace.watch import copied
from .alike import equal
from .calls import predicted
from .modes import DROPOUT, computing


class Operations(TorchFunctionMode):
    """Notes what is computed from what, to compare two calls without their graphs: faster than an export."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Any] = []
        self.known: dict[int, Any] = {}
        self.held: list[Tensor] = []  # since ids of tensors that are gone are used again

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        given = [self._noted(item, name) for item in tree_leaves((args, kwargs))]
        found = function(*args, **(kwargs or {}))
        self.done.append((name, given, [self.number(item) for item in tree_leaves(found)]))
        return found

    def _noted(self, item: Any, name: str) -> Any:
        """A constant by its values; of dropout not whether it is on, or how strong."""
        if isinstance(item, Tensor):
            return self.number(item, constant=id(item) not in self.known)
        simple = isinstance(item, int | float | complex | str | slice | torch.dtype) and not DROPOUT.match(name)
        return repr(item) if simple else None

    def number(self, item: Any, constant: bool = False) -> Any:
        """A tensor by the order in which they appear."""
        if not isinstance(item, Tensor):
            return None
        self.held.append(item)
        new = len(self.known), digest_of([item.detach()]) if constant else ""
        return *self.known.setdefault(id(item), new), tuple(item.shape)


def operations(net: nn.Module, task: Task, batch: Any, seed: int = 0) -> list[Any]:
    """What a task computes, in order, as (name, given, found), and last its outputs; two calls are alike if these are
    equal.
    """
    given = mapped(batch, copied)
    with computing(seed), torch.enable_grad(), Operations() as noted:
        with torch._C.DisableTorchFunction():
            for tensor in (*net.parameters(), *net.buffers(), *tensors_in(given)):  # the same numbers in every call
                noted.number(tensor)
        outputs = predicted(net, task, given)
        with torch._C.DisableTorchFunction():
            return [*noted.done, ("outputs", [], [*map(noted.number, outputs)])]


def draws(net: nn.Module, task: Task, batch: Any) -> bool:
    """Whether a call draws random numbers."""
    with computing(), torch.no_grad():
        before = global_randomness()
        predicted(net, task, mapped(batch, copied))
        return not equal(before, global_randomness())


class _Steps(TorchFunctionMode):
    """Notes the names of operations, each with the parameters that it is given."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.numbers = {id(parameter): number for number, parameter in enumerate(net.parameters())}
        self.done: set[Any] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tuple(self.numbers[id(item)] for item in tree_leaves((args, kwargs)) if id(item) in self.numbers)
        self.done.add((getattr(function, "__name__", ""), given))
        return function(*args, **(kwargs or {}))


def steps(net: nn.Module, task: Task, batch: Any) -> set[Any]:
    """Which operations a task computes."""
    with interpreted(), _Steps(net) as noted:
        predicted(net, task, batch)
    return noted.done


def tensors_of(items: Sequence[Any]) -> list[Any]:
    """Those of noted items that are tensors, each with its number first and its shape last."""
    return [item for item in items if isinstance(item, tuple)]


def parameters_in(noted: Sequence[Any]) -> set[int]:
    """The numbers of the tensors in operations, of which the first are those of the parameters; reading a shape is no
    operation.
    """
    found = [tensors_of([*given, *made]) for _, given, made in noted[:-1]]
    return {each[0] for tensors in found if len(tensors) > 1 for each in tensors}


def path_of(noted: Sequence[Any], held: int) -> set[Any]:
    """What a call computes whatever the sizes of its tensors: operations with their flags and names, each with the
    first tensors by number, which the network holds, and with the constants that it is given.
    """
    return {
        (
            name,
            *(each[0] if each[0] < held else each[1] for each in tensors_of(given)),
            *(each for each in given if isinstance(each, str) and each[0] in "TF'\""),
        )
        for name, given, _ in noted
    }


def only_skips(noted: Sequence[Any], usual: Sequence[Any], parameters: int) -> bool:
    """Whether a call computes nothing from parameters that the usual one does not compute as well, as where layers are
    skipped at random.
    """

    def steps(noted: Sequence[Any]) -> set[Any]:
        reached, found = {*range(parameters)}, set()
        for name, given, made in noted:
            tensors = tensors_of(given)
            if any(each[0] in reached for each in tensors):
                found.add((name, *((each[0] if each[0] < parameters else "", each[-1]) for each in tensors)))
                reached |= {each[0] for each in tensors_of(made)}
        return found

    return steps(noted) <= steps(usual)
