"""Follows the axes of tensors through an exported graph; an operation without a rule pins all it touches."""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..errors import ThalwegError
from . import contractions, layers, tensors
from .axes import APART, INDEXED, Atom, Axes, fresh, pin, settle_loose
from .tensors import Operation, unknown

HAND = "give groups= by hand, such as {'hidden': {'0.weight': 0, '0.bias': 0, '2.weight': 1}}"
TAKING = ("slice", "narrow", "select", "unbind", "getitem")  # operations that use only a part of what they are given
DECOMPOSED = "thalweg_decomposed"  # in what a node knows: its parts, which are followed instead
KEEPING = ("reshape", "permuted", "select", "unbind", "recurrent")  # rules under which a choice stays with its chooser


@dataclass(frozen=True)
class Seen:
    """What was followed: the axes of what each node gives, and those along which operations mix units."""

    values: dict[fx.Node, Any] = field(default_factory=dict)
    mixing: list[tuple[Atom, list[Atom]]] = field(default_factory=list)


def trace(graph: fx.GraphModule, inputs: Sequence[Any], seen: Seen) -> list[Any]:
    """Follow the axes of the inputs through a graph to its outputs.

    Args:
        graph: The graph of an exported program, or of a block inside one.
        inputs: Axes for tensors, anything else as it is; one per placeholder.
        seen: To be filled.
    """
    graph.graph.eliminate_dead_code(writes)  # which may take apart what is never used so
    values = seen.values
    waiting = iter(inputs)
    *nodes, output = graph.graph.nodes
    for node in nodes:
        if node.op == "placeholder":
            values[node] = next(waiting)
        elif node.op == "get_attr":
            held = operator.attrgetter(node.target)(graph)
            values[node] = fresh(held.shape, tensors.CONSTANT) if isinstance(held, Tensor) else held
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _perform(node, args, kwargs, seen)
    return [values.get(each) for each in tree_leaves(output.args[0])]


def each_its_own(node: fx.Node, axes: Axes) -> None:
    """Let the parts of a parameter that is used as `weight[0]`, `weight[1]` and so on have orders of their own."""
    dims = [user.args[1] if len(user.args) > 1 else 0 for user in node.users if named(user) in ("select", "unbind")]
    if dims and len(dims) == len(node.users) and {*dims} <= {0, -len(axes)}:
        pin(axes[0], INDEXED)
        for axis in axes[1:]:
            axis.kind, axis.parts, axis.chooser = "choice", fresh([axis.size] * axes[0].size), axes[0]


def writes(node: fx.Node) -> bool:
    """Whether a node, or a block that it runs, does something although nobody uses it."""
    kept = node.op in ("placeholder", "output") or named(node).startswith("_vmap")
    if kept or getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return True
    held = [each for each in node.all_input_nodes if each.op == "get_attr"]
    blocks = [getattr(each.graph.owning_module, str(each.target), None) for each in held]
    inner = [each for block in blocks if isinstance(block, fx.GraphModule) for each in block.graph.nodes]
    return any(writes(each) for each in inner if each.op == "call_function")


def _perform(node: fx.Node, args: Any, kwargs: Any, seen: Seen) -> Any:
    if node.target is operator.getitem:
        return args[0][args[1]]
    inner = next((k for k, value in enumerate(args) if isinstance(value, fx.GraphModule)), None)
    if inner is not None and named(node).startswith("wrap_with"):  # a block under no_grad or autocast
        return trace(args[inner], args[inner + 1 :], seen)
    name = named(node)
    shape = _shape(node.meta.get("val"), name)
    torchs = getattr(node.target, "namespace", "aten") in ("aten", "prims")  # not one of the same name that was added
    known = torchs and node.kwargs.get("generator") is None  # whose numbers may be the same in every call
    rule = (RULES.get(name) or (tensors.elementwise if _pointwise(name) else unknown)) if known else unknown
    if rule is unknown and (found := _decomposed(node, args, kwargs, shape, seen)) is not None:
        return found
    schema = getattr(node.target, "_schema", None)
    given = {a.name: a.default_value for a in schema.arguments} if schema else {}
    given |= dict(zip(given, args, strict=False)) | kwargs if schema else dict(enumerate(args))
    call = Operation(name, node.target, given, shape, node, seen.mixing)
    alone = rule is tensors.elementwise and len(call.tensors) == 1 and call["dim"] is None  # as a softmax is not
    if rule.__name__ not in KEEPING and not alone:
        for axes in call.tensors:
            settle_loose(axes)
    try:
        found = rule(call)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # arguments that a rule is not for
        found = None
    if isinstance(found, Axes) and tuple(axis.size for axis in found) != shape:
        found = None
    return unknown(call, APART) if found is None and shape is not None else found


def _decomposed(node: fx.Node, args: Any, kwargs: Any, shape: Any, seen: Seen) -> Any:
    """The axes after an operation without a rule, by those of which torch makes it; None where it makes it of none."""
    target: Any = node.target
    composite = isinstance(target, torch._ops.OpOverload) and target._can_decompose()
    how = target.decompose if composite else decomposition_table.get(target)
    if how is None or shape is None:
        return None
    given, spec = tree_flatten((node.args, node.kwargs))
    axes = tree_leaves((args, kwargs), is_leaf=lambda value: isinstance(value, Axes))
    places = [k for k, value in enumerate(axes) if isinstance(value, Axes)]

    def compute(*tensors: Tensor) -> Any:
        filled = {**dict(enumerate(given)), **dict(zip(places, tensors, strict=True))}
        own, keywords = tree_unflatten([filled[k] for k in range(len(given))], spec)
        found = how(*own, **keywords)
        return [*found] if isinstance(found, tuple) else found  # a named one would be a node of its own

    with suppress(Exception):  # whatever torch cannot decompose without values
        metas = [torch.empty_like(given[k].meta["val"], device="meta") for k in places]
        parts = make_fx(compute)(*metas)
        found = trace(parts, [axes[k] for k in places], seen)
        shapes = [None if each is None else tuple(axis.size for axis in each) for each in found]
        if shapes == (shape if isinstance(shape, list) else [shape]):
            node.meta[DECOMPOSED] = parts.graph.nodes
            return found if isinstance(shape, list) else found[0]
    return None


def takes_part(node: fx.Node) -> bool:
    """Whether an operation may use only a part of what it is given, so that being given says nothing."""
    return named(node) in TAKING or DECOMPOSED in node.meta


@cache
def _pointwise(name: str) -> bool:
    """Whether torch itself says that an operation works on each entry alone."""
    packets = [getattr(torch.ops.aten, each, None) for each in (name, name.removeprefix("special_"))]
    return any(
        torch.Tag.pointwise in getattr(packet, o).tags for packet in packets if packet for o in packet.overloads()
    )


def named(node: fx.Node) -> str:
    """The operation of a node, in place or not."""
    name = str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", ""))
    return name if name.endswith("__") else name.removesuffix("_")


def _shape(value: Any, name: str) -> Any:
    """Sizes of a tensor, a list of them for several, None for anything else."""
    if isinstance(value, list | tuple):
        return [_shape(each, name) for each in value]
    if not isinstance(value, Tensor):
        return None
    if any(isinstance(size, torch.SymInt) for size in value.shape):
        raise ThalwegError(
            f"the network cannot be traced, since the shape of what '{name}' returns depends on the values of "
            f"tensors, as with a mask: {HAND}"
        )
    return tuple(value.shape)


RULES: Mapping[str, Callable[[Operation], Any]] = {
    name: rule
    for rule, names in (
        # in addition to those that torch calls pointwise
        (tensors.elementwise, "alias contiguous copy detach detach_copy dropout fill lift_fresh_copy log_softmax "
         "native_dropout resolve_conj softmax to _softmax _log_softmax _safe_softmax _to_copy _weight_norm complex "
         "polar real imag bernoulli exponential normal rand_like randn_like uniform _conj _conj_physical "
         "log_sigmoid_forward __iand__ __ior__ __ixor__"),
        (layers.linear, "linear"), (layers.bilinear, "bilinear"), (contractions.einsum, "einsum"),
        (contractions.matmul, "matmul linalg_matmul mm _sparse_mm bmm addmm baddbmm mv dot vdot addmv"),
        (contractions.distances, "cdist"), (layers.attention, "scaled_dot_product_attention"),
        (layers.convolution, "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d"),
        (layers.spatial, "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
         "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
         "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d "
         "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
         "upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d "
         "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d "
         "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"),
        (layers.sampled, "grid_sampler grid_sampler_2d grid_sampler_3d"),
        (layers.channelwise, "batch_norm _native_batch_norm_legit_no_training"),
        (tensors.reduction, "mean sum amax amin aminmax var std var_mean std_mean logsumexp linalg_vector_norm norm "
         "linalg_norm linalg_matrix_norm frobenius_norm quantile nanquantile prod any all max min median nanmedian "
         "kthvalue mode argmax argmin nansum nanmean"),
        (tensors.along, "cumsum cumprod cummax cummin logcumsumexp sort argsort topk roll flip diff unfold fft_fft "
         "fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn _fft_c2c _fft_r2c "
         "_fft_c2r"),
        (tensors.reshape, "view reshape flatten unflatten squeeze unsqueeze _unsafe_view"),
        (tensors.permuted, "permute transpose t mT numpy_T"), (tensors.expand, "expand"), (tensors.repeat, "repeat"),
        (tensors.cat, "cat"),
        (tensors.filled, "zeros ones full empty new_zeros new_ones new_full new_empty zeros_like ones_like full_like "
         "empty_like scalar_tensor rand randn randint"),
        (tensors.identity, "eye"), (tensors.divided, "split split_with_sizes chunk"), (tensors.sliced, "slice narrow"),
        (tensors.select, "select"), (tensors.unbind, "unbind"), (tensors.diagonal, "diagonal"),
        (tensors.diagonals, "diag_embed"), (tensors.sorted_into, "searchsorted"), (tensors.indexed, "index"),
        (tensors.written, "index_put"),
        (tensors.gathered, "gather index_select index_add index_copy index_reduce scatter scatter_add scatter_reduce"),
        (tensors.padded, "pad constant_pad_nd"), (tensors.paired, "view_as_real view_as_complex"),
        (tensors.vmapped, "_add_batch_dim _remove_batch_dim"), (layers.embedding_bag, "embedding_bag"),
        (layers.renormed, "embedding_renorm"),
        (layers.recurrent, " ".join(layers.GATES)), (layers.cell, " ".join(f"{name}_cell" for name in layers.GATES)),
    )
    for name in names.split()
}  # fmt: skip
