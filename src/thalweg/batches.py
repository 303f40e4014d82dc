"""Any iterable of batches with a length; a batch is any nest of tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch

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
    try:
        length = len(batches)
    except TypeError:
        message = f"{name} must have a length and be iterable again and again, as a list or a DataLoader; got {batches!r}"
        raise ThalwegError(message) from None
    if isinstance(batches, Iterator):
        raise ThalwegError(f"{name} must be iterable again and again; got the iterator {batches!r}: give a list instead")
    if length == 0:
        raise ThalwegError(f"{name} are empty: there is nothing to train on or to measure")
    return length


def to_device(batch: Any, device: torch.device) -> Any:
    """The same batch with every tensor in it on `device`.

    >>> to_device({"x": torch.zeros(2), "ids": ["a", "b"]}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'ids': ['a', 'b']}
    """
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True) if isinstance(batch, torch.Tensor) else batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(item, device) for item in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: to_device(getattr(batch, f.name), device) for f in fields(batch) if f.init})
    return batch


def moved(batches: Batches, device: torch.device) -> Iterator[Any]:
    """Every batch of one pass, on `device`; no batch at all is an error."""
    empty = True
    for batch in batches:
        empty = False
        yield to_device(batch, device)
    if empty:
        raise ThalwegError("the batches are empty: there is nothing to train on or to measure")
