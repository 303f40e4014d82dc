"""What the layers of networks do to the axes of their tensors: convolutions, norms, attention, recurrent layers."""

import re
from collections.abc import Sequence
from math import inf
from typing import Any

from torch.utils._pytree import tree_leaves

from .axes import INDEXED, Atom, Axes, choose, chosen, fresh, parted, pin, pin_all, product, settle_loose, total, unify
from .contractions import contract
from .tensors import POSITION, Operation, broadcast, uses_places

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def linear(call: Operation) -> Axes:
    return contract(call, "...i,oi,o->...o" if len(call["weight"]) > 1 else "...i,i,->...", *call.tensors)


def bilinear(call: Operation) -> Axes:
    return contract(call, "...i,...j,oij,o->...o", *call.tensors)


def attention(call: Operation) -> Axes:
    """Heads of queries, of which several may share one of keys and values."""
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    pin_all([query[-2], key[-2]] if call["is_causal"] else [], POSITION)
    if len(query) < 3:
        return contract(call, "ld,sd,se,ls->le", query, key, value, mask)
    heads, places = query[-3], None if mask is None else Axes([*mask[:-3], *mask[-2:]])
    if mask is not None and len(mask) > 2:
        unify(mask[-3], heads)
    if 1 in (heads.size, key[-3].size) or heads.size == key[-3].size:
        return contract(call, "...hld,...hsd,...hse,...ls->...hle", query, key, value, places)
    queries = Axes([*query[:-3], *parted(heads, key[-3].size), *query[-2:]])
    found = contract(call, "...hrld,...hsd,...hse,...ls->...hrle", queries, key, value, places)
    return Axes([*found[:-4], heads, *found[-2:]])


def _placed(call: Operation, before: Atom, size: int) -> Atom:
    """Positions, in space or time, that are moved or mixed."""
    why = f"'{call.name}' mixes neighbours along it"
    pin(before, why)
    return Atom(size, pinned=why)


def convolution(call: Operation) -> Axes:
    x, weight = call["input"], call["weight"]
    groups, turned = call["groups"], "transpose" in call.name or call["transposed"]
    places = len(weight) - 2
    theirs, own = parted(x[-places - 1], groups), parted(weight[0], groups)
    unify(theirs[0], own[0])
    unify(theirs[1], own[1] if turned else weight[1])
    out = product([own[0], weight[1]]) if turned else weight[0]
    if call["bias"] is not None:
        unify(call["bias"][0], out)
    _mix_features(call, [*x[: -places - 1], *x[-places:]], [theirs[1], out])
    space: list[Atom] = []
    moves = zip(_each(call["stride"], places, 1), _each(call["padding"], places, 0), strict=True)
    for before, kernel, size, move in zip(x[-places:], weight[2:], call.shape[-places:], moves, strict=True):
        pin(kernel, POSITION)
        alone = kernel.size == 1 and before.size == size and move == (1, 0)
        space.append(before if alone else _placed(call, before, size))
    return Axes([*x[: -places - 1], out, *space])


def spatial(call: Operation) -> Any:
    """Pooling and resizing."""
    x, several = call.tensors[0], isinstance(call.shape, list)
    shape = call.shape[0] if several else call.shape
    places = int(re.search(r"(\d)d", call.name).group(1))  # type: ignore[union-attr]
    sizes = zip(x[-places:], shape[-places:], _covered(call, places), strict=True)
    for indices in call.tensors[1:]:  # of the entries that were the largest
        broadcast(Axes(x[:-places]), Axes(indices[:-places]))
    ordered = several and uses_places(call)
    space = [Atom(1) if size == 1 and before.size <= reach and not ordered else _placed(call, before, size)
             for before, size, reach in sizes]  # fmt: skip
    call.mix_dims(x, range(len(x) - places, len(x)))
    found = Axes([*x[:-places], *space])
    return [found] * len(call.shape) if several else found


def _covered(call: Operation, places: int) -> list[float]:
    """How many entries from the first on are in the first window of a pooling, all alike."""
    if call.name.startswith("adaptive"):
        return [inf] * places
    each = [_each(call[name], places, other) for name, other in (("kernel_size", 0), ("padding", 0), ("dilation", 1))]
    return [kernel - padding if dilation == 1 else 0 for kernel, padding, dilation in zip(*each, strict=True)]


def _each(given: Any, places: int, other: int) -> list[int]:
    """An argument for every place; some operations have one that is called the same for something else."""
    given = [given] if isinstance(given, int) else list(given or [other])
    return given * places if len(given) == 1 else given[:places]


def sampled(call: Operation) -> Axes:
    """Channels at places that a grid gives."""
    x, grid = call["input"], call["grid"]
    pin_all([*x[2:], grid[-1]], POSITION)
    return Axes([*broadcast(Axes(x[:1]), Axes(grid[:1])), x[1], *grid[1:-1]])


def channelwise(call: Operation) -> Axes:
    """Normalisation with one value per channel."""
    x, *rest = call.tensors
    for axes in rest:
        unify(axes[0], x[1])
    call.mix_dims(x, [k for k in range(len(x)) if k != 1])
    return x


def renormed(call: Operation) -> Axes:
    """Rows of an embedding that are made no longer than its `max_norm`."""
    pin(call["self"][0], INDEXED)
    return call["self"]


def embedding_bag(call: Operation) -> list[Axes]:
    pin_all([call["weight"][0], *(call["per_sample_weights"] or ())], INDEXED)
    call.mix_dims(call["weight"], [0])
    first, *rest = [fresh(shape, INDEXED) for shape in call.shape]
    return [Axes([*first[:-1], call["weight"][1]]), *rest]


def _mix_features(call: Operation, beside: Sequence[Atom], features: Sequence[Atom]) -> None:
    """A layer that is applied everywhere beside its features."""
    for feature in features:
        call.mix(feature, beside)
    for axis in beside:
        call.mix(axis, features)


def _gates(name: str, features: Atom, inputs: Axes, hidden: Axes, biases: Sequence[Axes], state: Atom) -> None:
    """Weights of gates times hidden units."""
    unify(inputs[1], features)
    wanted = product([*fresh([GATES[name]], "its gates have an order"), state])
    for axes in (inputs, hidden, *biases):
        unify(axes[0], wanted)


def cell(call: Operation) -> Any:
    x, several = call["input"], isinstance(call.shape, list)
    biases = [axes for axes in (call["b_ih"], call["b_hh"]) if axes is not None]
    state = call["w_hh"][1]
    _gates(call.name.removesuffix("_cell"), x[-1], call["w_ih"], call["w_hh"], biases, state)
    found = Axes([*x[:-1], state])
    _mix_features(call, x[:-1], [x[-1], state])
    for axes in call["hx"] if several else [call["hx"]]:
        broadcast(found, axes)
    return [found, found] if several else found


def recurrent(call: Operation) -> list[Axes]:
    """Layers of gates times hidden units, whose last states are stacked; if projected, their outputs are others."""
    x = call["input"]
    settle_loose(x)
    layers, ways = call["num_layers"], 2 if call["bidirectional"] else 1
    each = len(call["params"]) // (layers * ways)
    outputs: list[Atom] = []
    cells: list[Atom] = []
    features = x[-1]
    for at in range(0, len(call["params"]), each):
        inputs, hidden, *rest = call["params"][at : at + each]
        outputs.append(hidden[1])
        cells.append(rest[-1][1] if each % 2 else hidden[1])
        if each % 2:
            unify(rest.pop()[0], hidden[1])
        _gates(call.name, features, inputs, hidden, rest, cells[-1])
        if len(outputs) % ways == 0:
            features = total(outputs[-ways:])
    batch = [] if len(x) < 3 else [x[0] if call["batch_first"] else x[1]]
    pin(x[1] if batch and call["batch_first"] else x[0], POSITION)
    _mix_features(call, x[:-1], [x[-1], *outputs, *cells])
    starts = tree_leaves(call.node.args[1])  # one node, or one for each of two states
    for axes, node, units in zip(call.tensors[1:], starts, (outputs, cells), strict=False):
        for mine, yours in zip(batch, axes[1:-1], strict=True):
            unify(mine, yours)
        if not _stays_zero(node):
            pin(axes[0], INDEXED)
            for k, unit in enumerate(units):
                unify(choose(axes[-1], axes[0], k), unit)
    chooser = Atom(len(outputs), pinned=INDEXED)
    last = [Axes([chooser, *batch, chosen(units, chooser)]) for units in (outputs, cells)]
    return [Axes([*x[:-1], features]), *last]


def _stays_zero(node: Any) -> bool:
    """Whether zeros are made for recurrent layers alone, and nothing is written there."""
    alone = all(str(getattr(user.target, "__name__", "")).split(".")[0] in GATES for user in node.users)
    return "zeros" in str(node.target) and alone
