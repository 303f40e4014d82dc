"""What operations on tensors do to their axes: arithmetic, contractions, reshapes, slices and indices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .axes import (
    APART,
    INDEXED,
    Atom,
    Axes,
    choose,
    fresh,
    parted,
    pieces,
    pin,
    pin_all,
    product,
    regroup,
    total,
    unify,
)

POSITION = "its entries are positions, not units"
MASKS = (torch.bool, torch.uint8)  # which choose entries one by one
CONSTANT = "it meets a constant, which has an order"


@dataclass
class Operation:
    """One operation: its arguments by the names of its schema, with axes for tensors, and the shape it gives.

    Attributes:
        mixing: Axes along which operations compute across units, each with those that they keep.
    """

    name: str
    target: Any
    args: dict[str, Any]
    shape: Any
    node: fx.Node
    mixing: list[tuple[Atom, list[Atom]]]

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def tensors(self) -> list[Axes]:
        return axes_in([*self.args.values()])

    def dim(self) -> int:
        return int(self["dim"] or 0) % max(len(self.tensors[0]), 1)

    def dims(self, *names: str, of: Axes | None = None) -> list[int]:
        """The first of these arguments that is given, as a list; by default all axes of a tensor, the first."""
        axes = self.tensors[0] if of is None else of
        size = max(len(axes), 1)
        given = next((self[name] for name in names if self[name] not in (None, [])), range(len(axes)))
        return [d % size for d in ([given] if isinstance(given, int) else given)]

    def mix(self, outer: Atom, kept: Iterable[Atom]) -> None:
        """Note that units along the kept axes must have one order, not one for each unit of the outer axis."""
        self.mixing.append((outer, [axis for axis in kept if axis is not outer]))

    def mix_dims(self, x: Axes, dims: Iterable[int]) -> None:
        """The same for some axes of a tensor and all others."""
        dims = [*dims]
        for k in dims:
            self.mix(x[k], [axis for other, axis in enumerate(x) if other not in dims])

    @property
    def unknown(self) -> str:
        return f"'{self.name}' is not known to keep units apart"


def axes_in(values: Any) -> list[Axes]:
    """The axes of all tensors in nested values, which are themselves tuples."""
    return [
        value for value in tree_leaves(values, is_leaf=lambda value: isinstance(value, Axes)) if isinstance(value, Axes)
    ]


def unknown(call: Operation, why: str = "") -> Any:
    """Whatever it touches keeps its order."""
    if call.shape is None and not getattr(getattr(call.target, "_schema", None), "is_mutable", False):
        return None  # an assertion
    why = why or (call.unknown if call.tensors else CONSTANT)
    pin_all(chain(*call.tensors), why)
    if isinstance(call.shape, list):
        return [None if shape is None else fresh(shape, why) for shape in call.shape]
    return None if call.shape is None else fresh(call.shape, why)


def broadcast(*tensors: Axes) -> Axes:
    """Axes aligned on the right and joined; those of size one follow the others."""
    found = []
    for place in range(-max(map(len, tensors), default=0), 0):
        here = [axes[place] for axes in tensors if len(axes) >= -place and axes[place].size != 1]
        for other in here[1:]:
            unify(here[0], other)
        found.append(here[0] if here else Atom(1))
    return Axes(found)


def elementwise(call: Operation) -> Any:
    """Each entry alone, or, as a softmax, along an axis that stays."""
    if not call.tensors:  # random numbers of a shape
        return filled(call)
    found = broadcast(*call.tensors)
    if isinstance(call["dim"], int):
        call.mix_dims(found, [call["dim"] % max(len(found), 1)])
    return [found] * len(call.shape) if isinstance(call.shape, list) else found


def reduction(call: Operation) -> Any:
    """One value for many. If places are returned too, and used, they have an order."""
    x, several = broadcast(*call.tensors), isinstance(call.shape, list)
    if len(call.tensors) > 1 and call.shape == tuple(axis.size for axis in x):
        return x  # the larger of two
    gone = call.dims("dim", of=x)
    if "norm" in call.name and len(gone) == 2:  # as of a matrix, of which both axes are renumbered as a whole
        for one, two in (gone, gone[::-1]):
            call.mix(x[one], [x[two]])
    if call.name in ("argmax", "argmin") or (several and uses_places(call)):
        pin_all([x[k] for k in gone], INDEXED)
    kept = [Atom(1) if k in gone else axis for k, axis in enumerate(x)]
    found = Axes(kept if call["keepdim"] else [axis for k, axis in enumerate(kept) if k not in gone])
    return [found] * len(call.shape) if several else found


def uses_places(call: Operation) -> bool:
    """Whether the second result, the places of the values, is used."""
    values = ("var_mean", "std_mean", "aminmax")
    return call.name not in values and any(user.args[1] == 1 and user.users for user in call.node.users)


def along(call: Operation) -> Any:
    """Operations that follow the order of entries along some axes, and leave the other axes alone; sorted values do
    not depend on the order that they had.
    """
    (x, *others), several = call.tensors, isinstance(call.shape, list)
    dims = call.dims("dim", "dims", "dimension")
    call.mix_dims(x, dims)
    for axes in others if call.name == "diff" else ():  # what is put before and after
        broadcast(*(Axes(Atom(1) if k in dims else axis for k, axis in enumerate(each)) for each in (x, axes)))
    if call.name not in ("sort", "topk") or uses_places(call):
        pin_all([x[k] for k in dims], call.unknown)
    found = [
        Axes(x[k] if k < len(x) and k not in dims else Atom(size, pinned=call.unknown) for k, size in enumerate(shape))
        for shape in (call.shape if several else [call.shape])
    ]
    return found if several else found[0]


def reshape(call: Operation) -> Axes:
    """Runs of axes that hold the same entries before and after; one that cannot be taken apart is pinned."""
    found: list[Atom] = []
    before, after = [*call.tensors[0]], [*call.shape]
    while before or after:
        taken, sizes = [before.pop(0)] if before else [], [after.pop(0)] if after else []
        while (here := prod(axis.size for axis in taken)) != (there := prod(sizes)):
            if here < there:
                taken.append(before.pop(0))
            else:
                sizes.append(after.pop(0))
        run = regroup(taken, sizes)
        if run is None:
            pin_all(taken, APART)
        found += run or fresh(sizes, APART)
    return Axes(found)


def permuted(call: Operation) -> Axes:
    x, *rest = call.args.values()
    sizes = call.target(torch.empty([*range(2, 2 + len(x))], device="meta"), *rest).shape
    return Axes(x[size - 2] for size in sizes)


def expand(call: Operation) -> Axes:
    x = Axes([*fresh([1] * (len(call.shape) - len(call.tensors[0]))), *call.tensors[0]])
    return Axes(axis if axis.size == size else Atom(size) for axis, size in zip(x, call.shape, strict=True))


def repeat(call: Operation) -> Axes:
    x = Axes([*fresh([1] * (len(call.shape) - len(call.tensors[0]))), *call.tensors[0]])
    call.mix_dims(x, [k for k, size in enumerate(call.shape) if x[k].size != size])
    return Axes(product([Atom(size // axis.size), axis]) for axis, size in zip(x, call.shape, strict=True))


def filled(call: Operation) -> Axes:
    """The same everywhere, or random numbers."""
    return fresh(call.shape)


def identity(call: Operation) -> Axes | None:
    """Whose rows are numbered as its columns."""
    return Axes([Atom(call.shape[0])] * 2) if len({*call.shape}) == 1 else None


def cat(call: Operation) -> Axes:
    tensors = [axes for axes in call.tensors if axes != () and 0 not in [axis.size for axis in axes]]
    dim = int(call["dim"]) % len(tensors[0])  # an empty one may have fewer
    return _replaced(
        broadcast(*(_replaced(axes, dim, Atom(1)) for axes in tensors)), dim, total([axes[dim] for axes in tensors])
    )


def _pieces(axis: Atom, sizes: Sequence[int]) -> Sequence[Atom]:
    found = pieces(axis, sizes)
    if found is None:
        pin(axis, APART)
    return found or fresh(sizes, APART)


def _replaced(axes: Axes, dim: int, axis: Atom) -> Axes:
    return Axes([*axes[:dim], axis, *axes[dim + 1 :]])


def divided(call: Operation) -> list[Axes]:
    x, dim = call.tensors[0], call.dim()
    return [_replaced(x, dim, piece) for piece in _pieces(x[dim], [shape[dim] for shape in call.shape])]


def sliced(call: Operation) -> Axes:
    x, dim = call.tensors[0], call.dim()
    length, size = x[dim].size, call.shape[dim]
    if size < length:
        call.mix_dims(x, [dim])
    start, _, step = slice(call["start"], call["end"], call["step"]).indices(length)  # of narrow, too
    if step > 1 and start < step and size * step == length:  # every second unit, say, of pairs
        units, inside = parted(x[dim], size)
        pin(inside, INDEXED)
        return _replaced(x, dim, units)
    if step > 1:
        pin(x[dim], INDEXED)
        return _replaced(x, dim, fresh([size], INDEXED)[0])
    sizes = [part for part in (start, size, length - start - size) if part or part == size]
    return _replaced(x, dim, _pieces(x[dim], sizes)[1 if start else 0]) if size < length else x


def select(call: Operation) -> Axes:
    return _chosen(call.tensors[0], call.dim(), int(call["index"]))


def unbind(call: Operation) -> list[Axes]:
    return [_chosen(call.tensors[0], call.dim(), k) for k in range(len(call.shape))]


def _chosen(x: Axes, dim: int, index: int) -> Axes:
    chooser, rest = x[dim], [*x[:dim], *x[dim + 1 :]]
    pin(chooser, INDEXED)
    return Axes(choose(axis, chooser, index % chooser.size) for axis in rest)


def diagonal(call: Operation) -> Axes | None:
    """Entries of two axes that are numbered alike."""
    x = call.tensors[0]
    one, two = (call[name] % len(x) for name in ("dim1", "dim2"))
    if call["offset"] or x[one].size != x[two].size:
        return None
    unify(x[one], x[two])
    return Axes([*(axis for k, axis in enumerate(x) if k not in (one, two)), x[one]])


def diagonals(call: Operation) -> Axes | None:
    """The last axis along two of them, as in `diag`."""
    *rest, last = call.tensors[0]
    if call["offset"]:
        return None
    for k in sorted(call[name] % len(call.shape) for name in ("dim1", "dim2")):
        rest.insert(k, last)
    return Axes(rest)


def sorted_into(call: Operation) -> Axes | None:
    """The place of each entry among given values."""
    values = call["sorted_sequence"]
    pin_all(values, POSITION)
    return call["self"] if len(values) == 1 else None


def indexed(call: Operation) -> Axes:
    x, indices = call["self"], call["indices"]
    used = [k for k, index in enumerate(indices) if index is not None]
    pin_all([x[k] for k in used], INDEXED)
    call.mix_dims(x, used)
    before = used[0] if used == [*range(used[0], used[-1] + 1)] else 0  # others come first
    kept = [axis for k, axis in enumerate(x) if k not in used]
    return Axes([*kept[:before], *broadcast(*(indices[k] for k in used)), *kept[before:]])


def written(call: Operation) -> Axes | None:
    """Values written to places that indices, or a mask, give."""
    nodes = [node for node in tree_leaves(call.node.args[1]) if isinstance(node, fx.Node)]
    if not any(node.meta["val"].dtype in MASKS for node in nodes):
        if not call["accumulate"]:  # of several values for one place, the last stays
            pin_all(chain(*axes_in(call["indices"])), INDEXED)
        broadcast(indexed(call), call["values"])
        return call["self"]
    x, (mask, *rest) = call["self"], call["indices"]
    if rest or any(axis.size > 1 for axis in call["values"]):
        return None
    broadcast(Axes(x[: len(mask)]), mask)
    return x


def gathered(call: Operation) -> Axes:
    """Entries taken from places along one axis that an index gives, or added there."""
    x, dim, index, source = call["self"], call.dim(), call["index"], call["src"] or call["source"]
    call.mix_dims(x, [dim])
    if call.name.startswith("index"):
        index = _replaced(source or x, dim, index[0] if index else Atom(1))
    overwrites = source and call.name in ("scatter", "index_copy") and not call["reduce"]  # then the last one stays
    pin_all([x[dim], index[dim]] if overwrites else [x[dim]], INDEXED)
    for other in (index, source) if source else (index,):
        for k, axis in enumerate(other):
            alike = index[k] if k == dim else x[k]
            unify(alike, axis)
            pin_all([alike, axis] if alike.size != axis.size else [], INDEXED)
    return x if source or "scatter" in call.name else index


def padded(call: Operation) -> Axes:
    found, constant = list(call.tensors[0]), call["mode"] in (None, "constant")
    call.mix_dims(call.tensors[0], [len(found) - 1 - k // 2 for k, size in enumerate(call["pad"]) if size])
    for k, (before, after) in enumerate(zip(call["pad"][::2], call["pad"][1::2], strict=True), start=1):
        if constant and min(before, after) >= 0:
            found[-k] = total([*fresh([before] if before else []), found[-k], *fresh([after] if after else [])])
        elif before or after:
            pin(found[-k], POSITION)
            found[-k] = Atom(call.shape[-k], pinned=POSITION)
    return Axes(found)


def vmapped(call: Operation) -> Axes:
    """What `vmap` maps over: its entries have no order of their own inside."""
    x, *_, dim = call.args.values() if "remove" in call.name else [*call.args.values()][:2]
    if "remove" in call.name:
        return Axes([*x[:dim], *fresh([call.shape[dim]], INDEXED), *x[dim:]])
    pin(x[dim], INDEXED)
    return Axes([*x[:dim], *x[dim + 1 :]])


def paired(call: Operation) -> Axes:
    """Complex numbers as pairs of real ones, and back."""
    x = call.tensors[0]
    if call.name == "view_as_real":
        return Axes([*x, *fresh([2], INDEXED)])
    pin(x[-1], INDEXED)
    return Axes(x[:-1])
