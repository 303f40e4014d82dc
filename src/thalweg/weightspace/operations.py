"""What each operation of an exported graph does to the axes of its tensors; an unknown one pins all it touches."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from .axes import (
    APART,
    INDEXED,
    Atom,
    Axes,
    choose,
    cut,
    fresh,
    pin,
    product,
    regroup,
    settle_loose,
    total,
    unify,
)  # fmt: skip

POSITION = "its entries are positions, not units"
KEEPING = ("reshape", "permuted", "select", "unbind")  # rules under which a choice stays with its chooser
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass
class Operation:
    """One operation: its arguments by the names of its schema, with axes for tensors, and the shape it gives."""

    name: str
    target: Any
    args: dict[str, Any]
    shape: Any
    node: fx.Node

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def tensors(self) -> list[Axes]:
        return [value for value in tree_leaves(list(self.args.values()), is_leaf=_is_axes) if _is_axes(value)]

    def dim(self, name: str = "dim") -> int:
        return int(self[name] or 0) % max(len(self.tensors[0]), 1)


def _is_axes(value: Any) -> bool:
    return isinstance(value, Axes)


def trace(graph: fx.GraphModule, inputs: Sequence[Any], seen: dict[fx.Node, Any] | None = None) -> list[Any]:
    """Follow the axes of the inputs through a graph to its outputs.

    Args:
        graph: The graph of an exported program, or of a block inside one.
        inputs: Axes for tensors, anything else as it is; one per placeholder.
        seen: Filled with what each node gives.
    """
    values: dict[fx.Node, Any] = {} if seen is None else seen
    waiting = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(waiting)
        elif node.op == "get_attr":
            held = operator.attrgetter(node.target)(graph)
            values[node] = fresh(held.shape, "it is a constant") if isinstance(held, Tensor) else held
        elif node.op == "output":
            return [values.get(each) for each in tree_leaves(node.args[0])]
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _perform(node, args, kwargs)
    return []


def _perform(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.target is operator.getitem:
        return args[0][args[1]]
    inner = next((k for k, value in enumerate(args) if isinstance(value, fx.GraphModule)), None)
    if inner is not None and named(node).startswith("wrap_with"):  # a block under no_grad or autocast
        return trace(args[inner], args[inner + 1 :])
    shape = _shape(node.meta.get("val"))
    schema = getattr(node.target, "_schema", None)
    given = {a.name: a.default_value for a in schema.arguments} if schema else {}
    given |= dict(zip(given, args, strict=False)) | kwargs if schema else dict(enumerate(args))
    name = named(node)
    call = Operation(name, node.target, given, shape, node)
    rule = RULES.get(name, unknown)
    if rule.__name__ not in KEEPING and not (rule is elementwise and len(call.tensors) == 1):
        for axes in call.tensors:
            settle_loose(axes)
    try:
        found = rule(call)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # arguments that a rule is not for
        found = None
    return unknown(call, APART) if found is None and shape is not None else found


def named(node: fx.Node) -> str:
    """The operation of a node, in place or not."""
    return str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "")).rstrip("_")


def _shape(value: Any) -> Any:
    """Sizes of a tensor, a list of them for several, None for anything else."""
    if isinstance(value, list | tuple):
        return [_shape(each) for each in value]
    return tuple(map(int, value.shape)) if isinstance(value, Tensor) else None


def unknown(call: Operation, why: str = "") -> Any:
    if call.shape is None:
        return None  # an assertion
    why = why or f"'{call.name}' is not known to keep units apart"
    for axes in call.tensors:
        for axis in axes:
            pin(axis, why)
    if isinstance(call.shape, list):
        return [None if shape is None else fresh(shape, why) for shape in call.shape]
    return fresh(call.shape, why)


def broadcast(*tensors: Axes) -> Axes:
    """Axes aligned on the right and joined; those of size one follow the others."""
    found = []
    for place in range(-max(map(len, tensors), default=0), 0):
        here = [axes[place] for axes in tensors if len(axes) >= -place and axes[place].size != 1]
        for other in here[1:]:
            unify(here[0], other)
        found.append(here[0] if here else Atom(1))
    return Axes(found)


def elementwise(call: Operation) -> Axes:
    return broadcast(*call.tensors)


def contract(equation: str, *tensors: Axes | None) -> Axes:
    """An einsum: a letter is one atom, and the dots stand for axes that are broadcast."""
    given, _, wanted = equation.partition("->")
    found: dict[str, Atom] = {}
    middles = []
    for spelled, axes in zip(given.split(","), tensors, strict=False):
        if axes is None:
            continue
        head, _, tail = spelled.partition("...")
        last = len(axes) - len(tail)
        middles.append(Axes(axes[len(head) : last]))
        for letter, axis in zip(head + tail, axes[: len(head)] + axes[last:], strict=True):
            if found.setdefault(letter, axis).size == 1:
                found[letter] = axis
            unify(found[letter], axis)
    head, dots, tail = wanted.partition("...")
    middle = broadcast(*middles) if dots else ()
    return Axes([*(found[letter] for letter in head), *middle, *(found[letter] for letter in tail)])


def linear(call: Operation) -> Axes:
    return contract("...i,oi,o->...o" if len(call["weight"]) > 1 else "...i,i,->...", *call.tensors)


def einsum(call: Operation) -> Axes | None:
    equation = call["equation"].replace(" ", "")
    return contract(equation, *call["tensors"]) if "->" in equation else None


def matmul(call: Operation) -> Axes:
    *added, one, two = call.tensors
    left, right = ("...ij" if len(one) > 1 else "j"), ("...jk" if len(two) > 1 else "j")
    dots = "..." if len(left) > 1 or len(right) > 1 else ""
    kept = contract(f"{left},{right}->{dots}{left[3:4]}{right[4:]}", one, two)
    return broadcast(kept, *added)


def attention(call: Operation) -> Axes | None:
    query, key, mask = call["query"], call["key"], call["attn_mask"]
    masked = "" if mask is None else f",{'...' if len(mask) > 2 else ''}{'gls'[-len(mask) :]}"
    found = contract(f"...gld,...hsd,...hse{masked}->...gle", query, key, call["value"], mask)
    heads, several = query[-3], key[-3]
    parts = regroup([heads], (several.size, heads.size // several.size))  # a key may serve several queries
    if parts is None:
        return None
    unify(parts[0], several)
    for axis in [query[-2], key[-2]] if call["is_causal"] else []:
        pin(axis, POSITION)
    return found


def _placed(before: Sequence[Atom], shape: Sequence[int]) -> list[Atom]:
    """Positions, in space or time, that are moved or mixed."""
    for axis, size in zip(before, shape, strict=True):
        if size > 1:
            pin(axis, POSITION)
    return list(fresh(shape, POSITION))


def convolution(call: Operation) -> Axes | None:
    x, weight = call["input"], call["weight"]
    groups, turned = call["groups"], "transpose" in call.name or call["transposed"]
    places = len(weight) - 2
    channels = x[-places - 1]
    theirs = regroup([channels], (groups, channels.size // groups))
    own = regroup([weight[0]], (groups, weight[0].size // groups))
    if theirs is None or own is None:
        return None
    unify(theirs[0], own[0])
    unify(theirs[1], own[1] if turned else weight[1])
    out = product([own[0], weight[1]]) if turned else weight[0]
    if call["bias"] is not None:
        unify(call["bias"][0], out)
    space: list[Atom] = []
    for before, kernel, size in zip(x[-places:], weight[2:], call.shape[-places:], strict=True):
        pin(kernel, POSITION)
        space += [before] if kernel.size == 1 and before.size == size else _placed([before], [size])
    return Axes([*x[: -places - 1], out, *space])


def spatial(call: Operation) -> Any:
    """Pooling and resizing."""
    x, several = call.tensors[0], isinstance(call.shape, list)
    shape = call.shape[0] if several else call.shape
    places = int(re.search(r"(\d)d", call.name).group(1))  # type: ignore[union-attr]
    found = Axes([*x[:-places], *_placed(x[-places:], shape[-places:])])
    return [found] * len(call.shape) if several else found


def channelwise(call: Operation) -> Axes | None:
    """Normalisation with one value per channel."""
    x, *rest = call.tensors
    for axes in rest:
        unify(axes[0], x[1])
    groups = call["num_groups"] or 1
    return x if regroup([x[1]], (groups, x[1].size // groups)) else None


def reduction(call: Operation) -> Axes | None:
    if isinstance(call.shape, list):
        return None  # with indices
    x, *rest = call.tensors
    if rest:
        return elementwise(call)
    dims = call["dim"] if call["dim"] not in (None, []) else range(len(x))
    gone = {d % len(x) for d in (dims if isinstance(dims, list | tuple | range) else [dims])}
    kept = [Atom(1) if k in gone else axis for k, axis in enumerate(x)]
    return Axes(kept if call["keepdim"] else [axis for k, axis in enumerate(kept) if k not in gone])


def reshape(call: Operation) -> Axes | None:
    return regroup(call.tensors[0], call.shape)


def permuted(call: Operation) -> Axes:
    x, *rest = call.args.values()
    sizes = call.target(torch.empty([*range(2, 2 + len(x))], device="meta"), *rest).shape
    return Axes(x[size - 2] for size in sizes)


def expand(call: Operation) -> Axes:
    x = Axes([*fresh([1] * (len(call.shape) - len(call.tensors[0]))), *call.tensors[0]])
    return Axes(axis if axis.size == size else Atom(size) for axis, size in zip(x, call.shape, strict=True))


def repeat(call: Operation) -> Axes:
    x = Axes([*fresh([1] * (len(call.shape) - len(call.tensors[0]))), *call.tensors[0]])
    return Axes(product([Atom(size // axis.size), axis]) for axis, size in zip(x, call.shape, strict=True))


def filled(call: Operation) -> Axes:
    return fresh(call.shape)


def cat(call: Operation) -> Axes:
    tensors = [axes for axes in call.tensors if axes != () and 0 not in [axis.size for axis in axes]]
    dim = int(call["dim"]) % len(tensors[0])  # an empty one may have fewer axes
    others = broadcast(*(Axes([*axes[:dim], Atom(1), *axes[dim + 1 :]]) for axes in tensors))
    return Axes([*others[:dim], total([axes[dim] for axes in tensors]), *others[dim + 1 :]])


def stack(call: Operation) -> Axes:
    dim = int(call["dim"]) % len(call.shape)
    found = list(broadcast(*call.tensors))
    return Axes([*found[:dim], *fresh([len(call.tensors)], INDEXED), *found[dim:]])


def _pieces(axis: Atom, sizes: Sequence[int]) -> list[Atom]:
    found: list[Atom] = []
    for size in sizes[:-1]:
        halves = cut(axis, size) if 0 < size < axis.size else None
        if halves is None:
            pin(axis, APART)
            return list(fresh(sizes, APART))
        found, axis = [*found, halves[0]], halves[1]
    return [*found, axis]


def _replaced(axes: Axes, dim: int, axis: Atom) -> Axes:
    return Axes([*axes[:dim], axis, *axes[dim + 1 :]])


def divided(call: Operation) -> list[Axes]:
    x, dim = call.tensors[0], call.dim()
    return [_replaced(x, dim, piece) for piece in _pieces(x[dim], [shape[dim] for shape in call.shape])]


def sliced(call: Operation) -> Axes:
    x, dim = call.tensors[0], call.dim()
    length, size = x[dim].size, call.shape[dim]
    start, _, step = slice(call["start"], call["end"], call["step"]).indices(length)
    if step > 1:
        pin(x[dim], INDEXED)
        return _replaced(x, dim, fresh([size], INDEXED)[0])
    sizes = [part for part in (start, size, length - start - size) if part or part == size]
    return _replaced(x, dim, _pieces(x[dim], sizes)[1 if start else 0]) if size < length else x


def gated(call: Operation) -> Axes:
    x, dim = call.tensors[0], call.dim()
    one, two = _pieces(x[dim], [x[dim].size // 2] * 2)
    unify(one, two)
    return _replaced(x, dim, one)


def select(call: Operation) -> Axes:
    return _chosen(call.tensors[0], call.dim(), int(call["index"]))


def unbind(call: Operation) -> list[Axes]:
    x, dim = call.tensors[0], call.dim()
    return [_chosen(x, dim, k) for k in range(x[dim].size)]


def _chosen(x: Axes, dim: int, index: int) -> Axes:
    chooser = x[dim]
    pin(chooser, INDEXED)
    rest = [axis for k, axis in enumerate(x) if k != dim]
    return Axes(choose(axis, chooser, index % chooser.size) for axis in rest)


def embedding(call: Operation) -> Axes:
    pin(call["weight"][0], INDEXED)
    return Axes([*call["indices"], call["weight"][1]])


def indexed(call: Operation) -> Axes | None:
    x, indices = call["self"], call["indices"]
    used = [k for k, index in enumerate(indices) if index is not None]
    if used != [*range(used[0], used[-1] + 1)]:
        return None
    for k in used:
        pin(x[k], INDEXED)
    return Axes([*x[: used[0]], *broadcast(*(indices[k] for k in used)), *x[used[-1] + 1 :]])


def moved(call: Operation) -> Axes:
    """Operations that reorder the entries along some axes."""
    x = call.tensors[0]
    for dim in call["dims"] or range(len(x)):
        pin(x[dim], POSITION)
    return x


def padded(call: Operation) -> Axes | None:
    if call["mode"] not in (None, "constant"):
        return None
    found = list(call.tensors[0])
    for k, (before, after) in enumerate(zip(call["pad"][::2], call["pad"][1::2], strict=True), start=1):
        if min(before, after) < 0:
            return None
        found[-k] = total([*fresh([size for size in (before,) if size]), found[-k], *fresh([after] if after else [])])
    return Axes(found)


def recurrent(call: Operation) -> list[Axes] | None:
    """Layers of gates times hidden units, one of whose outputs stacks the last states of all layers."""
    gates, x = GATES[call.name], call["input"]
    layers, ways = call["num_layers"], 2 if call["bidirectional"] else 1
    each = len(call["params"]) // (layers * ways)
    if each != (4 if call["has_biases"] else 2):
        return None  # projected
    states, features = [], x[-1]
    for layer in range(layers):
        for way in range(ways):
            at = (layer * ways + way) * each
            inputs, hidden, *biases = call["params"][at : at + each]
            unify(inputs[1], features)
            state = hidden[1]
            wanted = product([*fresh([gates], "its gates have an order"), state])
            for axis in (inputs[0], hidden[0], *(bias[0] for bias in biases)):
                unify(axis, wanted)
            states.append(state)
        features = total(states[-ways:])
    first = call.node.args[1]
    starts = [first] if isinstance(first, fx.Node) else list(first)  # type: ignore[arg-type]
    given = [start for start in starts if "zeros" not in str(start.target)]
    for axes in call.tensors[1 : 1 + len(starts)] if given else []:
        for state in states:
            unify(axes[-1], state)
    batch = [] if len(x) < 3 else [x[0] if call["batch_first"] else x[1]]
    chooser = Atom(len(states))
    last = Axes([chooser, *batch, Atom(states[0].size, "choice", tuple(states), chooser)])
    return [Axes([*x[:-1], features]), last, last]


RULES: Mapping[str, Callable[[Operation], Any]] = {
    name: rule
    for rule, names in (
        (elementwise, "abs add addcdiv addcmul alias alpha_dropout atan bitwise_and bitwise_not bitwise_or celu clamp "
         "clamp_max clamp_min clone contiguous copy cos detach detach_copy div dropout elu eq erf exp expm1 "
         "feature_dropout fill floor floor_divide ge gelu gt hardshrink hardsigmoid hardswish hardtanh isinf isnan "
         "layer_norm le leaky_relu lerp lift_fresh_copy log log1p log2 log_sigmoid log_softmax logical_and logical_not "
         "logical_or lt masked_fill maximum minimum mish mul nan_to_num ne neg pow reciprocal relu relu6 remainder "
         "rms_norm round rsqrt rsub selu sigmoid sign silu sin softmax softplus softshrink softsign sqrt square sub "
         "tanh tanhshrink threshold to where xlogy _softmax _log_softmax _safe_softmax _to_copy _weight_norm"),
        (linear, "linear"), (einsum, "einsum"), (matmul, "matmul mm bmm addmm baddbmm"),
        (attention, "scaled_dot_product_attention"),
        (convolution, "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d"),
        (spatial, "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
         "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d upsample_nearest1d "
         "upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d "
         "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"),
        (channelwise, "batch_norm instance_norm group_norm prelu _native_batch_norm_legit_no_training"),
        (reduction, "mean sum amax amin var std logsumexp linalg_vector_norm norm prod any all max min"),
        (reshape, "view reshape flatten unflatten squeeze unsqueeze _unsafe_view view_as reshape_as ravel"),
        (permuted, "permute transpose t movedim swapaxes swapdims mT numpy_T"),
        (expand, "expand expand_as broadcast_to"), (repeat, "repeat"), (cat, "cat concat"), (stack, "stack"),
        (filled, "zeros ones full empty new_zeros new_ones new_full new_empty zeros_like ones_like full_like "
         "empty_like scalar_tensor"),
        (divided, "split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk"), (sliced, "slice"),
        (gated, "glu"), (select, "select"), (unbind, "unbind"), (embedding, "embedding"), (indexed, "index"),
        (moved, "roll flip"), (padded, "pad constant_pad_nd"), (recurrent, " ".join(GATES)),
    )
    for name in names.split()
}  # fmt: skip
