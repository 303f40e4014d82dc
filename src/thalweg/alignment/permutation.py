"""Renumbering the units of a network: orders of groups of units, applied to every axis that has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..errors import ThalwegError
from ..store import files
from ..weightspace.checkpoint import PART, Checkpoint
from ..weightspace.layout import Layout
from ..weightspace.weights import Weights, got

# ("fixed", size), ("group", size, name), ("product" or "sum", size, *terms); where the index along one axis chooses
# what another is, ("fixed", size, number) and ("choice", size, number, *terms)
Term = tuple[Any, ...]
Block = tuple[Tensor, tuple[str, ...]]  # a view with one dimension for each factor, and the group of each, or ""
# state of torch's optimizers that has one value for each weight
ELEMENTWISE = {
    "acc_delta", "ax", "eta", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer",
    "mu", "prev", "square_avg", "step_size", "sum",
}  # fmt: skip
Point = TypeVar("Point", Weights, Checkpoint)


def spread(view: Tensor, terms: Sequence[Term], dim: int = 0) -> Iterator[Block]:
    """Views of a tensor in which every dimension belongs to one group, or to none.

    >>> inside = ("product", 6, ("group", 3, "channels"), ("fixed", 2))
    >>> [(tuple(view.shape), labels) for view, labels in spread(torch.zeros(4, 6), [("fixed", 4), inside])]
    [((4, 3, 2), ('', 'channels', ''))]
    """
    if dim == len(terms):
        yield from _chosen(view, terms)
        return
    kind, _, *parts = terms[dim]
    before, after = terms[:dim], terms[dim + 1 :]
    if kind == "product":
        shape = [part[1] for part in parts]
        yield from spread(view.unflatten(dim, shape), [*before, *parts, *after], dim)
    elif kind == "sum":
        start = 0
        for part in parts:
            yield from spread(view.narrow(dim, start, part[1]), [*before, part, *after], dim)
            start += part[1]
    else:
        yield from spread(view, terms, dim + 1)


def _chosen(view: Tensor, terms: Sequence[Term]) -> Iterator[Block]:
    """A view in which the index along one dimension may choose what another is, as where channels are interleaved."""
    key = next((term[2] for term in terms if term[0] == "choice"), None)
    if key is None:
        yield view, tuple(term[2] if term[0] == "group" else "" for term in terms)
        return
    by = [term[2:] if term[0] == "fixed" else None for term in terms].index((key,))
    for k in range(terms[by][1]):
        here = [term[3 + k] if term[0] == "choice" and term[2] == key else term for term in terms]
        yield from spread(view.narrow(by, k, 1), [*here[:by], ("fixed", 1), *here[by + 1 :]])


def renumber(blocks: Iterable[Block], orders: Mapping[str, Tensor], within: Mapping[str, str]) -> None:
    """Reorder views in place: entry i is what was entry order[i]; with an order for each unit of another group, after
    those are reordered.
    """
    for view, labels in blocks:
        for plain in (True, False):
            for dim, label in enumerate(labels):
                if label in orders and (label not in within) == plain:
                    order = orders[label].to(view.device)
                    view.copy_(view.index_select(dim, order) if plain else _inside(view, labels, dim, order, within))


def _inside(view: Tensor, labels: tuple[str, ...], dim: int, order: Tensor, within: Mapping[str, str]) -> Tensor:
    outer = labels.index(within[labels[dim]])
    order = order if outer < dim else order.T
    shape = [size if k in (dim, outer) else 1 for k, size in enumerate(view.shape)]
    return view.take_along_dim(order.reshape(shape), dim)


@dataclass(frozen=True, eq=False)
class Permutation:
    """An order of the units of every group: unit i of the renumbered network is unit `orders[group][i]` of the other.

    Attributes:
        orders: The order of each group; a row for each unit of another group, where each of those has its own.
        axes: Where the groups occur, as in `Symmetries`.
        within: The groups that have such rows, each with the other group, or pinned axis.
        layout: The weights that can be renumbered.
    """

    orders: Mapping[str, Tensor]
    axes: Mapping[str, tuple[Term, ...]]
    within: Mapping[str, str]
    layout: Layout

    def apply(self, point: Point) -> Point:
        """Renumber weights of the network, or a checkpoint with its optimizer state; what is passed in is unchanged."""
        if isinstance(point, Checkpoint):
            weights = self.apply(point.weights)
            _check_single(point.extra)
            return replace(
                point,
                weights=weights,
                optimizer={name: self._state(name, value, point.optimizer) for name, value in point.optimizer.items()},
            )
        if not isinstance(point, Weights):
            raise ThalwegError(
                f"a permutation renumbers Weights or a Checkpoint; got {got(point, 'Weights.of(module)')}"
            )
        self.layout.check(point.layout, "the permutation", "the weights")
        buffers = {name: tensor.clone() if name in self.axes else tensor for name, tensor in point.buffers.items()}
        self._reorder(buffers)
        return Weights(point.layout, self._vector(point.vector), buffers, point.frozen, point.made)

    def _state(self, name: str, value: Tensor, every: Mapping[str, Tensor]) -> Tensor:
        """Optimizer state: a vector like the weights, a tensor like one of them, or a single number."""
        if value.shape == (self.layout.size,):
            return self._vector(value)
        part = name.partition(PART)[2]
        tensor = self.layout.names[int(part)] if part.isdigit() else ""
        alike = tensor in self.axes and value.shape == self.layout.shapes[int(part)]
        if alike and not _may_precondition(name, value, every):
            value = value.clone()
            self._reorder({tensor: value})
        elif value.numel() > 1 and (tensor in self.axes or not part):
            raise ThalwegError(
                f"optimizer state can be renumbered if it has one value for each weight; '{name}' of shape "
                f"{tuple(value.shape)} has not{', as far as can be seen' * alike}: renumber the weights alone"
            )
        return value

    def _vector(self, vector: Tensor) -> Tensor:
        vector = vector.clone()
        self._reorder(self.layout.split(vector))
        return vector

    def _reorder(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name in self.axes:
                renumber(spread(tensor, self.axes[name]), self.orders, self.within)

    def inverse(self) -> "Permutation":
        """The one that undoes this."""
        orders = {name: order.argsort() for name, order in self.orders.items() if name not in self.within}
        for name, outer in self.within.items():
            rows = orders.get(outer, torch.arange(len(self.orders[name]), device="cpu"))
            orders[name] = self.orders[name][rows].argsort(dim=1)
        return replace(self, orders=orders)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file."""
        about = {"axes": dict(self.axes), "within": dict(self.within), "layout": self.layout.to_dict()}
        files.save_tensors(Path(path), "permutation", self.orders, about)

    @classmethod
    def load(cls, path: str | Path) -> "Permutation":
        """Read what `save` wrote, or the permutation in the folder of `thalweg align`."""
        path = files.inside(path, "permutation.safetensors")
        orders, about = files.load_tensors(path, "permutation")
        with files.reading(path):
            layout = Layout.from_dict(about["layout"])
            found = cls(orders, {n: _terms(t) for n, t in about["axes"].items()}, about["within"], layout)
            found._check()
        return found

    def _check(self) -> None:
        """Raise unless the orders are orders, and fit the axes."""
        for name, order in self.orders.items():
            if order.dtype != torch.int64 or order.ndim != 1 + (name in self.within):
                raise ValueError(f"'{name}' is not an order")
            if not torch.equal(order.sort(-1)[0], torch.arange(order.shape[-1], device="cpu").expand(order.shape)):
                raise ValueError(f"'{name}' does not hold every unit once")
        shapes, outer = dict(zip(self.layout.names, self.layout.shapes, strict=True)), {*self.within.values()}
        for tensor, terms in self.axes.items():
            shape = shapes.get(tensor, [term[1] for term in terms])
            for view, labels in spread(torch.empty(shape, device="meta"), terms):
                for size, label in zip(view.shape, labels, strict=True):
                    fits = self.orders[label].shape[-1] == size if label in self.orders else label in outer
                    if label and not fits:
                        raise ValueError(f"'{tensor}' does not fit the order of '{label}'")


def _may_precondition(name: str, value: Tensor, every: Mapping[str, Tensor]) -> bool:
    """Whether this may be a matrix that preconditions a square weight, with an order of its own: the state of its name
    is square in all weights that have one, or it is symmetric.
    """
    if not _is_square(value) or not value.any():
        return False
    kind = name.partition(PART)[0]
    same = [other for key, other in every.items() if key.partition(PART)[0] == kind and other.ndim > 1]
    return torch.equal(value, value.T) or (kind not in ELEMENTWISE and all(map(_is_square, same)))


def _is_square(value: Tensor) -> bool:
    return value.ndim == 2 and value.shape[0] == value.shape[1]


def _check_single(extra: Mapping[str, Any]) -> None:
    """Raise if an optimizer keeps tensors outside of its state: nobody knows to which weights their values belong."""
    for name, value in extra.items():
        for item in tree_leaves(value):
            if isinstance(item, Tensor | np.ndarray) and max(item.shape, default=1) > 1:
                raise ThalwegError(
                    f"optimizer state can be renumbered if it is in the optimizer's state; '{name}' of shape "
                    f"{tuple(item.shape)} is not: renumber the weights alone"
                )


def _terms(found: Any) -> tuple[Term, ...]:
    """Lists from JSON as tuples."""
    return tuple(_terms(item) if isinstance(item, list) else item for item in found)
