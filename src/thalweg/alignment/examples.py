"""Examples of a batch with which a proof computes."""

from typing import Any

import torch
from torch import Tensor

from ..batches import mapped, tensors_in
from .outputs import moved


def first(batch: Any, count: int) -> Any:
    """The first examples of a batch; what does not have as many entries as its first tensor, or is sparse, is kept."""
    size = next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.ndim), 0)
    several = [id(t) for t in tensors_in(batch) if t.ndim and t.shape[0] == size and t.layout is torch.strided]
    return mapped(batch, lambda t: t[:count] if id(t) in several else t)


def half_moved(batch: Any) -> Any:
    """A batch with the second half of its examples, and what all of them share, moved from their values."""
    size = next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.ndim), 0)
    draw = torch.Generator().manual_seed(0)

    def moved_half(item: Any) -> Any:
        if not isinstance(item, Tensor) or item.dtype != torch.float64 or item.layout is not torch.strided:
            return item
        found = moved(item, 1.0, draw)
        near = torch.rand(item.shape, generator=draw, dtype=torch.float64).to(item.device) / 5
        found = torch.where(item == item.round(), torch.where(item == 0, near, item), found)  # it may be an index
        kept = -(-size // 2) if item.ndim and item.shape[0] == size else 0
        return torch.cat([item[:kept], found[kept:]]) if item.ndim else found

    return mapped(batch, moved_half)


def kind_of(batch: Any) -> str:
    """What a graph may depend on: shapes, and whatever is not a tensor."""
    return repr(mapped(batch, lambda item: tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__))
