"""Any iterable of batches with a length; a batch is any nest of tensors."""

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset

from .errors import ThalwegError
from .randomness import seeded


class Batches(Protocol):
    """What `fit`, `connect` and `scan` take as data; a `DataLoader` is one."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


def count(batches: Batches, name: str = "the batches") -> int:
    """
    >>> count([1, 2, 3])
    3
    """
    if isinstance(batches, Dataset):
        raise ThalwegError(f"{name} must come in batches; got the data set {type(batches).__name__}: wrap it in a DataLoader")
    try:
        length = len(batches)
    except TypeError:
        message = f"{name} must have a length and be iterable again and again, as a list; got {type(batches).__name__}, without"
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
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(type(batch), "to"):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(item, device) for item in batch)
    if isinstance(batch, MutableMapping):
        moved_batch = copy(batch)
        for key, value in batch.items():
            moved_batch[key] = to_device(value, device)
        return moved_batch
    if is_dataclass(batch) and not isinstance(batch, type):
        twin = copy(batch)  # not dataclasses.replace, which would run __post_init__ again
        for f in fields(batch):
            object.__setattr__(twin, f.name, to_device(getattr(batch, f.name), device))
        return twin
    return batch


def moved(batches: Batches, device: torch.device) -> Iterator[Any]:
    """Every batch of one pass, on `device`; no batch at all is an error."""
    empty = True
    for batch in batches:
        empty = False
        yield to_device(batch, device)
    if empty:
        raise ThalwegError("the batches are empty: there is nothing to train on or to measure")


def fingerprint(batches: Batches) -> str:
    """A short hash of the number of batches and of the tensors in the first one."""
    sha = hashlib.sha256(str(count(batches)).encode())
    with seeded(0, batches):
        for tensor in _tensors(next(iter(batches), None)):
            sha.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for key in batch:
            yield from _tensors(batch[key])
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _tensors(item)
    elif is_dataclass(batch) and not isinstance(batch, type):
        for f in fields(batch):
            yield from _tensors(getattr(batch, f.name))
