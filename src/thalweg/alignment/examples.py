"""Examples of a batch with which a proof computes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..batches import mapped, tensors_in
from .outputs import moved

DEPTH = 3  # levels of objects inside one another in a batch that are looked into


def first(batch: Any, count: int) -> Any:
    """The first examples of a batch; what does not have as many entries as its first tensor, or is sparse or nested, is
    kept.
    """
    size = next((tensor.size(0) for tensor in tensors_in(batch) if tensor.ndim), 0)
    several = [id(t) for t in tensors_in(batch) if t.ndim and t.size(0) == size and _is_dense(t)]
    return mapped(batch, lambda t: t[:count] if id(t) in several else t)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def half_moved(batch: Any) -> Any:
    """A batch with the second half of its examples, and what all of them share, moved from their values."""
    size = next((tensor.size(0) for tensor in tensors_in(batch) if tensor.ndim), 0)
    draw = torch.Generator().manual_seed(0)

    def moved_half(item: Any) -> Any:
        if not isinstance(item, Tensor) or item.dtype != torch.float64 or not _is_dense(item):
            return item
        found = moved(item, 1.0, draw)
        near = torch.rand(item.shape, generator=draw, dtype=torch.float64, device="cpu").to(item.device) / 5
        found = torch.where(item == item.round(), torch.where(item == 0, near, item), found)  # it may be an index
        kept = -(-size // 2) if item.ndim and item.shape[0] == size else 0
        return torch.cat([item[:kept], found[kept:]]) if item.ndim else found

    return mapped(batch, moved_half)


def kind_of(batch: Any) -> str:
    """What a graph may depend on: shapes and dtypes, and whatever is not a tensor."""
    return repr(mapped(batch, _kind))


def _kind(item: Any, depth: int = DEPTH) -> Any:
    """Of an object that can be moved to a device, as a tensor can, with what it holds."""
    if isinstance(item, Tensor):
        shape = [tuple(part.shape) for part in item.unbind()] if item.is_nested else tuple(item.shape)
        return shape, item.dtype, item.layout
    held = getattr(item, "__dict__", {}) if depth else {}
    return type(item).__name__, {name: mapped(value, partial(_kind, depth=depth - 1)) for name, value in held.items()}
