"""What a step changes in addition to the vectors it trains: attributes, counters, generators, frozen parameters."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import warn
from ..object_state import (
    ABSENT,
    ITEMS,
    SCALARS,
    Found,
    changed,
    copied,
    dotted,
    modules_in,
    numbered,
    put_back,
    same,
    traverse,
    values,
)
from ..tasks import Task
from ..weightspace.weights import bit_sum


class NotExact(UserWarning):
    """A run that is killed could not be resumed exactly, because something that changes in training cannot be saved."""


class HiddenState:
    """Values that objects hold in attributes, lists and closures, as far as they change."""

    def __init__(self, **sources: Any):
        self.sources, self.changed = sources, set[str]()
        self.first = self._values(traverse(sources, whole=True))

    def state(self) -> dict[str, Any]:
        """What has changed since this was made."""
        found = traverse(self.sources, whole=True)
        now = self._values(found)
        self.changed |= changed(self.first, now)
        return {name: now.get(name, ABSENT) for name in sorted(self.changed - found.others)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.changed = set(state)
        put_back(state, traverse(self.sources, whole=True))

    def _values(self, found: Found) -> dict[str, Any]:
        """Those of an optimizer for each vector are saved with the vectors."""
        places = {name: place for name, place in found.places.items() if not _is_of_vector(name, place.value)}
        return values(found._replace(places=places))


class SideState:
    """Attributes of the network, counters of its loss, and frozen parameters, as far as they change.

    What cannot be inspected is watched for changes over one step, and named in a warning.
    """

    after_first: dict[str, Any] | None = None
    warned = False

    def __init__(self, module: nn.Module, task: Task, batches: Batches, optimizer: torch.optim.Optimizer):
        self.module, self.batches, self.optimizer = module, batches, optimizer
        self.hidden = HiddenState(network=module, loss=task.loss, predict=task.predict)
        inside = set(module.modules())
        self.outside = {path: part for path, part in modules_in(task.loss, task.predict).items() if part not in inside}
        self.moves = self._moving()
        self.sums: dict[str, int | None] = {name: bit_sum(tensor) for name, tensor in self._frozen()}
        self.at_start = self._traversed()

    def state(self) -> dict[str, Any]:
        """What has changed since training began; writes through `.data` change the bits, and leave no other trace."""
        return {
            "values": self.hidden.state(),
            "frozen": {name: tensor for name, tensor in self._frozen() if bit_sum(tensor) != self.sums[name]},
            "moves": dict(self._moving().items() - self.moves.items()),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        frozen = [(name, tensor) for name, tensor in self._frozen() if name in state["frozen"]]
        self.hidden.set_state(state["values"])
        with torch.no_grad():
            for name, tensor in frozen:
                tensor.copy_(state["frozen"][name])
                self.sums[name] = None
        moves = state.get("moves", {})  # older files do not have it
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(moves.get(name, parameter.requires_grad))

    def warn_if_unsaved(self) -> None:
        """After each of the first two steps: warn about what has changed between them and cannot be saved."""
        if self.warned:
            return
        now = self._unsaved()
        if self.after_first is None:
            self.after_first = now
            return
        self.warned, self.at_start = True, []
        changed = [name for name, mark in now.items() if not same(self.after_first.get(name, ABSENT), mark)]
        if lost := sorted({dotted(name) for name in changed} | set(_iterators(self.batches))):
            some = "', '".join(lost[:5])
            warn(
                f"'{some}' may change in training and cannot be saved, so a run that is stopped and resumed may differ "
                "from one that was not: keep numbers, strings, tensors or random generators there instead",
                NotExact,
            )

    def _traversed(self) -> list[Found]:
        return [
            traverse({**self.hidden.sources, "optimizer": self.optimizer}, whole=True),
            traverse({"data": self.batches}),
        ]

    def _unsaved(self) -> dict[str, Any]:
        """What cannot be restored: objects that are no values, and values in objects that did not exist when training
        began.
        """
        ours, data = self._traversed()
        paths = {path for found in self.at_start for path in found.owners}
        known = {id(place.owner) for found in self.at_start for place in found.places.values()}
        late = {
            name: copied(place.value)
            for name, place in {**ours.places, **data.places}.items()
            if name.rpartition("/")[0] not in paths and id(place.owner) not in known
        }
        return {name: _mark(value) for name, value in ours.closed.items()} | late

    def _moving(self) -> dict[str, bool]:
        """Whether each parameter of the network gets a gradient, which the network may change."""
        return {name: parameter.requires_grad for name, parameter in self.module.named_parameters()}

    def _frozen(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters of the network that were frozen when training began, and all tensors of other modules that a loss
        uses, such as a teacher.
        """
        yield from ((name, each) for name, each in self.module.named_parameters() if self.moves.get(name) is False)
        for path, part in self.outside.items():
            named = {**part._parameters, **part._buffers}
            yield from ((f"{path}/{key}", tensor.detach()) for key, tensor in named.items() if tensor is not None)


def _is_of_vector(name: str, value: Any) -> bool:
    """Whether it is a tensor or a number in `optimizer/state/<vector>/<key>`."""
    return name.startswith("optimizer/state/") and name.count("/") == 3 and isinstance(value, Tensor | int | float)


def _mark(value: Any) -> Any:
    """Differs once an object is replaced, or changes its size or content as far as that is cheap to check."""
    if isinstance(value, list | tuple):
        return len(value), [item for item in value[:ITEMS] if isinstance(item, SCALARS)] if isinstance(
            value, tuple
        ) else None
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return id(value), zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data)
    return (
        id(value),
        len(value) if hasattr(type(value), "__len__") else None,
        repr(value) if _is_iterator(value) else None,
    )


def _is_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def _iterators(batches: Batches) -> Iterator[str]:
    """Where data hold a position that cannot be read: Python's own iterators, and persistent workers."""
    found = traverse(numbered([batches]))
    yield from (dotted(path) for path, value in found.closed.items() if _is_iterator(value))
    for path, owner in found.owners.items():
        if isinstance(owner, torch.utils.data.DataLoader) and owner.persistent_workers and owner.num_workers:
            yield dotted(f"{path}/persistent_workers")
