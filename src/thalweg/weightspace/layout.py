"""The order of a network's weights in one vector, and whether two networks have the same architecture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ThalwegError
from ..runtime.compute import shards_of
from ..store import files, records
from .state import plain

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside the wrappers of the compiler and of data parallelism."""
    return [*wrappers(module)][-1]


def wrappers(module: nn.Module) -> Iterator[nn.Module]:
    """The module, then the modules inside wrappers of the compiler or of data parallelism, down to the user's own."""
    yield module
    if compiled(module):
        yield from wrappers(module._orig_mod)  # type: ignore[arg-type]
    elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        yield from wrappers(module.module)


def compiled(module: nn.Module) -> bool:
    """Whether it is the wrapper of the compiler, and not a user's network with a submodule of that name."""
    return "_orig_mod" in module._modules and type(module).__module__.startswith("torch.")


def user_compiled(module: nn.Module) -> bool:
    """Whether the user compiled it, as a wrapper or in place."""
    return compiled(module) or getattr(module, "_compiled_call_impl", None) is not None


def overrides_train(module: nn.Module) -> bool:
    """Whether `train` and `eval` may do more than set modes."""
    return any(getattr(part.train, "__func__", None) is not nn.Module.train for part in module.modules())


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters under their first name."""
    network = unwrapped(module)
    return {_plain(name, network): parameter for name, parameter in network.named_parameters()}


def tied_names(module: nn.Module) -> dict[str, str]:
    """The further names of tied parameters, each with its first."""
    network, first = unwrapped(module), {id(parameter): name for name, parameter in named_parameters(module).items()}
    every = [(_plain(name, network), first[id(p)]) for name, p in network.named_parameters(remove_duplicate=False)]
    return {name: known for name, known in every if name != known}


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong in a file; non-persistent buffers are not part of the weights."""
    network = unwrapped(module)
    return {
        _plain(f"{prefix}.{name}" if prefix else name, network): buffer
        for prefix, part in network.named_modules(remove_duplicate=False)
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    }


def batch_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The batch-norm layers that track statistics."""
    network = unwrapped(module)
    for name, layer in network.named_modules(remove_duplicate=False):
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None:
            yield _plain(name, network), layer


def named_statistics(module: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}" if name else key: getattr(layer, key)
        for name, layer in batch_norms(module)
        for key in STATISTICS
        if layer._buffers.get(key) is not None
    }


def _plain(name: str, network: nn.Module) -> str:
    """A name without the wrappers of the compiler."""
    if "_orig_mod" not in name:
        return name
    part, steps = network, []
    for step in name.split("."):
        if step != "_orig_mod" or not compiled(part):
            steps.append(step)
        part = part._modules.get(step, part)  # type: ignore[assignment]
    return ".".join(steps)


@dataclass(frozen=True)
class Layout:
    """The names and shapes of a network's weights, and their order in one vector.

    Examples:
        >>> layout = Layout.of(nn.Linear(3, 2))
        >>> layout.names, layout.shapes, layout.size
        (('weight', 'bias'), ((2, 3), (2,)), 8)

    Attributes:
        names: The trainable parameters (`requires_grad`), tied ones once, in the module's order.
        shapes: Their shapes.
        dtype: Their dtype.
        frozen: The other parameters.
        aliases: The further names of tied parameters, each with the name it is stored under.
        statistics: The batch-norm buffers, which belong to one point and cannot be interpolated.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    frozen: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    statistics: tuple[str, ...] = ()
    shards: ClassVar[tuple[str, ...]] = ()  # how vectors are divided among processes, if they are

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        if (shards := shards_of(module)) is not None:
            return shards.layout(module)
        parameters = named_parameters(module)
        _check_complete(unwrapped(module))
        moving = {name: p for name, p in parameters.items() if p.requires_grad}
        _check_one_kind(moving)
        _check_apart(parameters, dict(unwrapped(module).named_buffers()))
        return cls(
            names=tuple(moving),
            shapes=tuple(tuple(p.shape) for p in moving.values()),
            dtype=next(iter(moving.values())).dtype,
            frozen=tuple(name for name in parameters if name not in moving),
            aliases=tuple(tied_names(module).items()),
            statistics=tuple(named_statistics(module)),
        )

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes))

    @property
    def varying(self) -> set[str]:
        """The tensors that differ from point to point; all others are equal along a curve."""
        return {*self.names, *self.statistics}

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `vector`, one per parameter, by name."""
        pieces = vector.split([prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`: one tensor per parameter, copied into one vector."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """A parameter of a whole network as points hold it: all of it, or its shard."""
        return tensor

    def total(self, values: Tensor) -> Tensor:
        """Sums over a vector, added up over its shards."""
        return values

    def save(self, path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write tensors of networks with this layout to a file."""
        files.save_tensors(path, kind, tensors, about)

    def load(self, path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read what `save` wrote."""
        return files.load_tensors(path, kind)

    def check(self, other: "Layout", here: str = "start", there: str = "end") -> None:
        """Raise, naming the first tensor that differs, unless both describe the same network."""
        for problem in _differences(self, other, here, there):
            raise ThalwegError(f"{here} and {there} do not describe the same network: {problem}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def stored(cls, entry: Mapping[str, Any], path: Path, own: "Layout | None") -> "Layout":
        """The layout in the file at `path`, or that of the network it is read for, which must be the same."""
        found = cls.from_dict(entry)
        cls.from_dict((own or found).to_dict()).check(found, "the network", str(path))
        return own or found

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Layout":
        found = records.decoded(cls, {**entry, "dtype": getattr(torch, entry["dtype"])})
        if (
            not found.names
            or len(found.names) != len(found.shapes)
            or len({*found.names, *found.frozen}) != len(found.names + found.frozen)
        ):
            raise ValueError("a layout names every parameter once, with its shape")
        return found


def _check_complete(network: nn.Module) -> None:
    """A network may override `parameters` and leave some out."""
    known = set(map(id, network.parameters())) & {id(parameter) for _, parameter in network.named_parameters()}
    for name, parameter in nn.Module.named_parameters(network):
        if id(parameter) not in known:
            raise ThalwegError(
                f"the network's own parameters() leaves out '{name}', so it is unclear whether that is to be trained: "
                "freeze it with requires_grad_(False) if not, and do not override parameters() and named_parameters()"
            )


def _check_one_kind(moving: Mapping[str, nn.Parameter]) -> None:
    if not moving:
        raise ThalwegError(
            "no parameter of the network requires grad, so there is nothing to train: call requires_grad_() on some, "
            "or load adapters with is_trainable=True"
        )
    first = next(iter(moving))
    for name, parameter in moving.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ThalwegError(
                f"'{name}' has no shape yet: run the network on a batch once, to initialise its lazy layers"
            )
        if hasattr(parameter, "placements"):
            raise ThalwegError(
                f"'{name}' is sharded over processes, and such a network cannot be copied: give thalweg a function "
                "that makes it, network = thalweg.sharded(make)"
            )
        if (parameter.dtype, parameter.device) != (moving[first].dtype, moving[first].device):
            here, there = (f"{moving[n].dtype} on {moving[n].device}" for n in (first, name))
            raise ThalwegError(
                f"all trainable weights must have one dtype and device, but '{first}' is {here} and '{name}' is "
                f"{there}: convert the network, or freeze one with requires_grad_(False)"
            )
        if not parameter.is_floating_point():
            raise ThalwegError(f"trainable weights must be real floating point, but '{name}' is {parameter.dtype}")


def _check_apart(parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor]) -> None:
    """Two parameters that share memory, or a parameter and a buffer, would be updated separately here, and together in
    the network.
    """
    placed = {
        name: t
        for name, t in {**buffers, **parameters}.items()
        if (name in parameters or plain(t)) and t.numel() and not t.is_meta
    }
    for name, parameter in parameters.items():
        if not parameter.is_meta and torch._debug_has_internal_overlap(parameter) == 1:
            raise ThalwegError(
                f"several elements of '{name}' share memory, as after expand(), and cannot be trained: clone() it"
            )
    furthest = last_parameter = (0, 0, "")
    for here in sorted((*span(tensor), name) for name, tensor in placed.items()):
        moves = here[2] in parameters
        other = furthest if moves else last_parameter
        if here[0] < other[1]:
            one, two = (f"{'parameter' if name in parameters else 'buffer'} '{name}'" for name in (other[2], here[2]))
            raise ThalwegError(
                f"the {one} and the {two} share memory, and would come apart when they are trained: tie parameters by "
                "using one parameter in both places, and give a buffer memory of its own with clone()"
            )
        furthest = max(furthest, here, key=itemgetter(1))
        last_parameter = max(last_parameter, here, key=itemgetter(1)) if moves else last_parameter


def span(tensor: Tensor) -> tuple[int, int]:
    """Where its memory starts and ends."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()


def _differences(one: Layout, two: Layout, here: str, there: str) -> Iterator[str]:
    """The most obvious first; each check assumes that the earlier ones found nothing."""
    for mine, yours, ours, theirs in ((one, two, here, there), (two, one, there, here)):
        for name in mine.names:
            if name in yours.frozen:
                yield f"'{name}' is trainable in {ours} and frozen in {theirs}; give both the same requires_grad"
            elif name not in yours.names:
                yield f"'{name}' is in {ours} but not in {theirs}"
    shapes = dict(zip(two.names, two.shapes, strict=True))
    for name, shape in zip(one.names, one.shapes, strict=True):
        if shape != shapes[name]:
            yield f"'{name}' is {shape} in {here} and {shapes[name]} in {there}"
    if one.dtype != two.dtype:
        yield f"'{one.names[0]}' is {one.dtype} in {here} and {two.dtype} in {there}: convert one with module.to(...)"
    for what, first, second in (
        ("the frozen parameter", one.frozen, two.frozen),
        ("the batch-norm buffer", one.statistics, two.statistics),
        ("the tie", tuple(" = ".join(pair) for pair in one.aliases), tuple(" = ".join(pair) for pair in two.aliases)),
        ("the division", one.shards, two.shards),
    ):
        for odd in sorted(set(first) ^ set(second)):
            yield f"{what} '{odd}' is in {here if odd in first else there} only"
    if one.names != two.names:
        yield "the parameters are the same but in another order"
