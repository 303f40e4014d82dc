"""Batches: any iterable with a length; a batch is any nested structure of tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import ThalwegError


class Batches(Protocol):
    """What `fit`, `connect` and `scan` take as data; a `DataLoader` is one."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


def count(batches: Batches, name: str = "the batches") -> int:
    """
    >>> count([1, 2, 3])
    3
    """
    if isinstance(batches, torch.utils.data.Dataset):
        raise ThalwegError(
            f"{name} must come in batches; got the data set {type(batches).__name__}: wrap it in a DataLoader"
        )
    if isinstance(batches, Mapping):
        raise ThalwegError(
            f"{name} are of one data set; got a dict of {', '.join(map(repr, batches))}: give one, or a list of "
            "batches, such as [batch], if this is a batch"
        )
    try:
        length = len(batches)
    except TypeError:
        raise ThalwegError(
            f"{name} must have a length and be iterable repeatedly; got {type(batches).__name__}, which has no length: "
            "give a list of batches"
        ) from None
    if isinstance(batches, Iterator):
        raise ThalwegError(f"{name} must be iterable repeatedly; got the iterator {batches!r}: pass a list instead")
    if length == 0:
        raise ThalwegError(f"{name} are empty: there is nothing to train on or to measure")
    return length


def mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to every tensor in a nested batch, and to everything else with a `.to`; the rest is kept.

    >>> mapped({"x": torch.zeros(2), "ids": ["a", "b"]}, lambda tensor: tensor + 1)
    {'x': tensor([1., 1.]), 'ids': ['a', 'b']}
    """
    if isinstance(batch, torch.Tensor) or (hasattr(type(batch), "to") and not isinstance(batch, Mapping)):
        return function(batch)
    if isinstance(batch, list | tuple):
        parts = [mapped(item, function) for item in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, MutableMapping):
        items = copy(batch)
        for key, value in batch.items():
            items[key] = mapped(value, function)
        return items
    if is_dataclass(batch) and not isinstance(batch, type):
        twin = copy(batch)  # not dataclasses.replace, which would run __post_init__ again
        for f in fields(batch):
            object.__setattr__(twin, f.name, mapped(getattr(batch, f.name), function))
        return twin
    return batch


def to_device(batch: Any, device: torch.device, copy: bool = False) -> Any:
    """The same batch with every tensor in it on `device`; with `copy` in memory of its own."""

    def there(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item.to(device)
        if item.is_meta and device.type != "meta":
            raise ThalwegError(
                "a batch holds a tensor on the meta device, which has no values: make it on another device"
            )
        return item.to(device, non_blocking=True, copy=copy)

    return mapped(batch, there)


def not_finite(batches: Iterable[Any], also: Callable[[Tensor], Tensor] = torch.isnan) -> str | None:
    """Describe where the first NaN is, or with `also=torch.isinf` the first infinity; None if there is none.

    >>> not_finite([(torch.ones(2), torch.ones(2)), {"x": torch.tensor([1.0, torch.nan])}])
    "'x' of batch 2 holds NaN"
    """
    for number, batch in enumerate(batches, start=1):
        numbered = {f"item {k}": item for k, item in enumerate(batch if isinstance(batch, list | tuple) else [batch])}
        parts = {f"'{key}'": part for key, part in batch.items()} if isinstance(batch, Mapping) else numbered
        for name, part in parts.items():
            if any(tensor.is_floating_point() and bool(also(tensor).any()) for tensor in tensors_in(part)):
                return f"{name} of batch {number} holds {'infinity' if also is torch.isinf else 'NaN'}"
    return None


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """Every tensor in a nested batch, in order."""
    found: list[Any] = []
    mapped(batch, found.append)
    return [item for item in found if isinstance(item, torch.Tensor)]
