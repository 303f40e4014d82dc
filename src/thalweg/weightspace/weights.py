"""Points of weight space: a module's weights as one vector."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError, warn
from ..runtime.compute import present
from ..store import checkpoints, files
from .layout import Layout, named_buffers, named_parameters

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

BLOCK = 1 << 22  # entries converted to float64 at a time
LARGE = 1 << 30  # bytes; vectors beyond it are not copied on their device where that can be avoided
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Weights:
    """A point of weight space: the trainable weights as one vector, and everything else the network needs.

    Examples:
        >>> import thalweg as tw
        >>> weights = tw.Weights.of(nn.Linear(3, 2))
        >>> weights.vector.shape, sorted(weights.state_dict())
        (torch.Size([8]), ['bias', 'weight'])

    Attributes:
        layout: Which parameter lies where in the vector.
        vector: The trainable weights, in the layout's order, each tensor in row-major order whatever its memory format.
        buffers: Persistent buffers by name. Points that were never trained have no batch-norm statistics.
        frozen: Parameters with `requires_grad=False`, by name. Points in which they are equal share the same tensors.
        made: Provenance, saved with the file.
        kept: The checkpoints requested by `fit(keep=)`, by epoch; `save` leaves them out.

    The four mappings are read-only: `dataclasses.replace(weights, made=...)` makes a copy with another.
    """

    layout: Layout
    vector: Tensor
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    kept: "Mapping[int, Checkpoint]" = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("buffers", "frozen", "made", "kept"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        more = {each.name: getattr(self, each.name) for each in fields(self) if each.kw_only}  # of a subclass
        return partial(type(self), **more), (
            self.layout,
            self.vector,
            dict(self.buffers),
            dict(self.frozen),
            dict(self.made),
            dict(self.kept),
        )

    @classmethod
    def of(cls, module: nn.Module) -> "Weights":
        """Copy the weights of a module.

        Args:
            module: Any network; it is not changed, and later changes to it do not affect the copy.
        """
        if not isinstance(module, nn.Module):
            raise ThalwegError(
                f"Weights.of takes a module; got {type(module).__name__}: a state dict goes through "
                "Weights.from_state(state, module)"
            )
        layout = Layout.of(module)
        parameters = named_parameters(module)
        return cls(
            layout=layout,
            vector=layout.join([parameters[name].detach() for name in layout.names]),
            buffers={name: buffer.detach().clone() for name, buffer in named_buffers(module).items()},
            frozen={name: shared_frozen(name, parameters[name].detach()) for name in layout.frozen},
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], module: nn.Module) -> "Weights":
        """The weights in a state dict.

        Args:
            state: Tensors by name; what a module adds by `get_extra_state` is left out.
            module: A network of the same architecture; it is not changed.
        """
        own = cls.of(module)
        ties = {(one, two) for alias, name in own.layout.aliases for one, two in ((alias, name), (name, alias))}
        state = {
            name: value
            for name, value in {**{one: state[two] for one, two in ties if two in state}, **state}.items()
            if str(name).rpartition(".")[2] != "_extra_state"  # torch's name for what is no tensor of the network
        }
        if nested := [key for key, value in state.items() if isinstance(value, Mapping)]:
            raise ThalwegError(
                f"a state dict holds tensors by name, and this one holds other dicts: give the one under {nested[0]!r}"
            )
        check_state(state, own.state_dict(), "the state dict", "the network")
        for alias, name in own.layout.aliases:
            if not torch.equal(state[alias], state[name]):
                raise ThalwegError(
                    f"'{alias}' and '{name}' are tied in the network, but differ in the state dict: correct one of them"
                )
        buffers = {name: state[name].to(value).clone() for name, value in own.buffers.items()}
        frozen = {
            name: shared_frozen(name, own.layout.placed(name, state[name].to(value)))
            for name, value in own.frozen.items()
        }
        return cls(
            own.layout, own.layout.join([state[name].to(own.vector) for name in own.layout.names]), buffers, frozen
        )

    def __repr__(self) -> str:
        extras = f", {len(self.buffers)} buffers" if self.buffers else ""
        return f"Weights({self.layout.size:,} moving in {len(self.layout.names)} tensors{extras}, {self.vector.device})"

    @property
    def has_statistics(self) -> bool:
        """Whether this point has its batch-norm statistics; true for networks without batch norm."""
        return all(name in self.buffers for name in self.layout.statistics)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name, as `load_state_dict` takes them.

        Returns:
            Views, not copies, tied parameters under each of their names. Do not write to them: frozen tensors are
            shared with other points.
        """
        state = {**self.layout.split(self.vector), **self.frozen}
        return {**state, **{alias: state[name] for alias, name in self.layout.aliases}, **self.buffers}

    def load_into(self, module: nn.Module) -> None:
        """Write these weights into `module`.

        Args:
            module: A network of the same architecture, on any device.

        Raises:
            ThalwegError: If the batch-norm statistics are missing, as for points of curves and averages; call
                `update_bn`.
        """
        if not self.has_statistics:
            missing = next(name for name in self.layout.statistics if name not in self.buffers)
            raise ThalwegError(
                "weights of a network with batch norm can be used only with its statistics, and these have no "
                f"'{missing}', like all points of curves and averages: write update_bn(module, weights, "
                "batches).load_into(module)"
            )
        mine = self.state_dict()
        theirs: dict[str, Tensor] = {**named_parameters(module), **named_buffers(module)}
        aliases = dict(self.layout.aliases)
        check_state({name: t for name, t in mine.items() if name not in aliases}, theirs, "the weights", "the module")
        with torch.no_grad():
            for name, tensor in theirs.items():
                tensor.copy_(mine[name])

    def distance(self, other: "Weights") -> float:
        """The Euclidean distance between the trainable weights of two points.

        Args:
            other: A point with the same layout.
        """
        check_weights(other, "the other point")
        self.layout.check(other.layout, "these weights", "the others")
        return float(inner_products([self.vector, other.vector], self.layout)[0, 0].sqrt())

    def to(self, device: torch.device | str) -> "Weights":
        """The same point on another device.

        Args:
            device: As in `torch.Tensor.to`; a point that is already there is returned itself, not a copy.
        """
        if all(
            tensor.device == torch.device(device)
            for tensor in (self.vector, *self.buffers.values(), *self.frozen.values())
        ):
            return self
        return replace(
            self,
            vector=self.vector.to(device),
            buffers={name: buffer.to(device) for name, buffer in self.buffers.items()},
            frozen={name: shared_frozen(name, value.to(device), copy=False) for name, value in self.frozen.items()},
        )

    def bare(self) -> "Weights":
        """The same point without batch-norm statistics."""
        return replace(
            self, buffers={name: b for name, b in self.buffers.items() if name not in self.layout.statistics}
        )

    def save(self, path: str | Path, apart: bool = False) -> None:
        """Write one safetensors file with one tensor per parameter, which other tools can read too.

        Args:
            path: The file to write.
            apart: Put the frozen parameters in a separate file next to it, which all such files in the folder share.
        """
        if self.kept:
            warn(
                f"{path} holds the weights alone, without the kept epochs {', '.join(map(str, self.kept))}: fit with "
                "run=, whose folder holds them too, or save each with weights.kept[epoch].save(path)",
            )
        self.layout.save(files.place(path), "weights", *self._parts(Path(path), apart))

    @classmethod
    def load(cls, path: str | Path, module: nn.Module | None = None, key: str | None = None) -> "Weights":
        """Read weights from a file, from the folder of a finished `fit`, or from any checkpoint.

        Args:
            path: A file written by `save`, the folder of a run, or with `module` any checkpoint (`.pt`,
                `.safetensors`).
            module: A network of the same architecture; it is not changed. The weights go to its device.
            key: Which weights to take if a checkpoint holds several, such as "ema" or "callbacks.average". Prefixes of
                wrappers (`module.`, `_orig_mod.`, `model.`, ...) are removed.
        """
        path = files.inside(path, "weights.safetensors")
        if module is None:
            return cls._of_parts(path, *files.load_tensors(path, "weights"))
        if not (files.is_safetensors(path) and files.kind_of(path) is not None):
            own = cls.of(module)
            wanted = {name: tensor.shape for name, tensor in own.state_dict().items()}
            with files.reading(path):
                return cls.from_state(checkpoints.find_state(path, wanted, dict(own.layout.aliases), key), module)
        layout = Layout.of(module)
        return cls._of_parts(path, *layout.load(path, "weights"), layout).to(next(module.parameters()).device)

    def digest(self) -> str:
        """A hash of everything but the provenance."""
        return files.digest("weights", self.tensors(), json.dumps(self.layout.to_dict()))

    def tensors(self) -> dict[str, Tensor]:
        """The contents of a file: each tensor once."""
        return {**self.layout.split(self.vector), **self.frozen, **self.buffers}

    @classmethod
    def from_tensors(
        cls, layout: Layout, tensors: Mapping[str, Tensor], made: Mapping[str, Any] | None = None
    ) -> "Weights":
        """The inverse of `tensors`.

        Args:
            layout: The order of the trainable weights.
            tensors: Every parameter and buffer once, by name.
            made: Provenance.
        """
        frozen = {name: shared_frozen(name, tensors[name], copy=False) for name in layout.frozen}
        buffers = {name: value for name, value in tensors.items() if name not in {*layout.names, *layout.frozen}}
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            if (tensors[name].shape, tensors[name].dtype) != (shape, layout.dtype):
                raise ValueError(
                    f"'{name}' must be {shape} of {layout.dtype}; it is {tensors[name].shape}, {tensors[name].dtype}"
                )
        return cls(layout, layout.join([tensors[name] for name in layout.names]), buffers, frozen, made or {})

    def _parts(self, path: Path, apart: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The contents of the file at `path`: tensors and JSON."""
        about: dict[str, Any] = {"layout": self.layout.to_dict(), "made": dict(self.made)}
        if self.layout.shards or not (apart and self.frozen):
            return self.tensors(), about
        about["base"] = store_once(path.parent, self.frozen)
        return {name: tensor for name, tensor in self.tensors().items() if name not in self.frozen}, about

    @classmethod
    def _of_parts(
        cls, path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], own: Layout | None = None
    ) -> "Weights":
        with files.reading(path):
            return cls.from_tensors(
                Layout.stored(about["layout"], path, own),
                {**tensors, **(read_stored(path, about["base"]) if "base" in about else {})},
                about["made"],
            )


def average(weights: Sequence[Weights], coefficients: Sequence[float] | None = None) -> Weights:
    """The mean of several points, or their sum with `coefficients` that add up to one.

    Examples:
        >>> import thalweg as tw
        >>> first, second = (tw.Weights.of(nn.Linear(1, 1)) for _ in range(2))
        >>> middle = tw.average([first, second])
        >>> abs(middle.distance(first) - middle.distance(second)) < 1e-6
        True

    Args:
        weights: The points to average.
        coefficients: One per point, adding up to one; all equal by default.

    Returns:
        A point without batch-norm statistics; `update_bn` adds them.
    """
    check_points(weights, "an average")
    coefficients = [1 / len(weights)] * len(weights) if coefficients is None else [float(c) for c in coefficients]
    if len(coefficients) != len(weights) or not abs(sum(coefficients) - 1) <= 1e-6:
        raise ThalwegError(f"an average needs one coefficient per point, adding up to one; got {coefficients}")
    return combine(weights, coefficients)


def combine(points: Sequence[Weights], coefficients: Sequence[float], dtype: torch.dtype | None = None) -> Weights:
    """sum_i c_i w_i, in the layout's dtype if none is given; a single coefficient of one returns that point bit for
    bit, including -0.0.
    """
    alone = [point for point, c in zip(points, coefficients, strict=True) if c != 0]
    if len(alone) == 1 and sum(coefficients) == 1:
        vector = alone[0].vector.to(dtype or points[0].layout.dtype, copy=True)
    else:
        total = torch.zeros_like(points[0].vector, dtype=torch.promote_types(points[0].layout.dtype, torch.float32))
        for point, c in zip(points, coefficients, strict=True):
            total.add_(point.vector, alpha=c)
        vector = total.to(dtype or points[0].layout.dtype)
    return at(points[0], vector)


def at(like: Weights, vector: Tensor) -> Weights:
    """Another point of the same space, without batch-norm statistics and provenance."""
    return Weights(like.layout, vector, like.bare().buffers, like.frozen)


def check_agreement(start: Weights, end: Weights, here: str = "start", there: str = "end") -> None:
    """Raise unless both are points of one space: same layout and device, equal frozen weights and other buffers."""
    for name, weights in ((here, start), (there, end)):
        check_weights(weights, name)
    start.layout.check(end.layout, here, there)
    if start.vector.device != end.vector.device:
        raise ThalwegError(
            f"{here} and {there} must be on one device; they are on {start.vector.device} and {end.vector.device}: use "
            "weights.to(device)"
        )
    ours, theirs = ({**point.frozen, **point.bare().buffers} for point in (start, end))
    if odd := sorted(set(ours) ^ set(theirs)):
        raise ThalwegError(
            f"{here} and {there} do not describe the same network: the buffer '{odd[0]}' is in only one of them"
        )
    for name in ours:
        if not _equal(ours[name], theirs[name]):
            kind, advice = (
                ("frozen parameter", ", or make it trainable with requires_grad_()")
                if name in start.frozen
                else ("buffer", "")
            )
            raise ThalwegError(
                f"{here} and {there} must agree in everything that is not trained, but the {kind} '{name}' differs: "
                f"start both from the same value{advice}"
            )


def check_weights(weights: object, name: str) -> None:
    if not isinstance(weights, Weights):
        raise ThalwegError(f"{name} must be Weights; got {got(weights, 'Weights.of(module)')}")


def check_list(points: object, what: str, least: int = 1) -> None:
    if isinstance(points, str) or not isinstance(points, Sequence) or len(points) < least:
        raise ThalwegError(
            f"{what} needs at least {least} {'network' if least == 1 else 'networks'}, in a list of Weights such as "
            "walk(...).members; got "
            + (str(len(points)) if isinstance(points, Sequence) and not isinstance(points, str) else got(points))
        )


def got(given: object, otherwise: str = "") -> str:
    """What came in place of Weights, and how to make Weights of it."""
    use = (
        "Weights.of(module)" if isinstance(given, nn.Module)
        else f"Weights.load({str(given)!r}, module)" if isinstance(given, str | Path)
        else "Weights.from_state(state, module)"
        if isinstance(given, Mapping) and isinstance(next(iter(given.values()), None), Tensor)
        else "a list of its values, or one of them"
        if isinstance(given, Mapping) and isinstance(next(iter(given.values()), None), Weights)
        else "its .weights" if hasattr(given, "weights")  # as a kept epoch has
        else otherwise
    )  # fmt: skip
    return type(given).__name__ + (f": use {use}" if use else "")


def check_points(points: Sequence[Weights], what: str, least: int = 1) -> None:
    """Raise unless these are points of one space, and enough."""
    check_list(points, what, least)
    for number, other in enumerate(points, start=1):
        check_agreement(points[0], other, "point 1", f"point {number}")


def inner_products(vectors: Sequence[Tensor], layout: Layout) -> Tensor:
    """Inner products of the differences to the first vector, in float64, on the vectors' device; raw weights would
    cancel.
    """
    total = torch.zeros(len(vectors) - 1, len(vectors) - 1, dtype=torch.float64, device=vectors[0].device)
    for block in zip(*(vector.split(BLOCK // (1 + len(vectors) // 8)) for vector in vectors), strict=True):
        origin = block[0].double()
        differences = torch.stack([part.double() - origin for part in block[1:]])
        total += differences @ differences.T
    return layout.total(total)


def check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], here: str, there: str) -> None:
    start = f"{here} and {there} do not describe the same network"
    for name, tensor in expected.items():
        if name not in state:
            raise ThalwegError(
                f"{start}: '{name}' is in {there} but not in {here}"
                + next(
                    (
                        f", where it is '{key}': remove '{key.removesuffix(name)}' from the names"
                        for key in state
                        if key.endswith(f".{name}")
                        and all(f"{key.removesuffix(name)}{each}" in state for each in expected)
                    ),
                    "",
                )
            )
        if state[name].is_floating_point() != tensor.is_floating_point():
            raise ThalwegError(f"{start}: '{name}' is {state[name].dtype} in {here} and {tensor.dtype} in {there}")
        if state[name].shape != tensor.shape:
            raise ThalwegError(
                f"{start}: '{name}' is {tuple(state[name].shape)} in {here} and {tuple(tensor.shape)} in {there}"
            )
    if odd := sorted(set(state) - set(expected)):
        raise ThalwegError(f"{start}: '{odd[0]}' is in {here} but not in {there}")


def _equal(one: Tensor, two: Tensor) -> bool:
    return one is two or (
        (one.shape, one.dtype) == (two.shape, two.dtype)
        and (
            torch.equal(_shard(one), _shard(two))
            or (one.is_floating_point() and torch.allclose(_shard(one), _shard(two), rtol=0, atol=0, equal_nan=True))
        )
    )


def shared_frozen(name: str, tensor: Tensor, copy: bool = True) -> Tensor:
    """The tensor that points hold for a frozen parameter: one that another point already holds, if it is the same bit
    for bit.

    Args:
        name: The name of the parameter.
        tensor: Its value.
        copy: Whether `tensor` may be written to later, so that a copy must be held instead.
    """
    key = (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, hasattr(tensor, "to_local"))
    held = present.get().frozen
    other = held.get(key)
    if other is None or not same_bits(other, tensor):
        other = held[key] = tensor.detach().clone() if copy else tensor
    return other


def base_name(frozen: Mapping[str, Tensor]) -> str:
    """The name of the file that holds these frozen parameters, by its content."""
    return f"base-{files.digest('base', frozen, '')[:16]}.safetensors"


def store_once(folder: Path, frozen: Mapping[str, Tensor]) -> str:
    """Write frozen parameters to a separate file, unless it exists already; returns its name."""
    name = base_name(frozen)
    if (folder / name).is_symlink() or not (folder / name).is_file():
        files.save_tensors(folder / name, "base", frozen, {})
    return name


def read_stored(path: Path, name: object) -> dict[str, Tensor]:
    """The frozen parameters that belong to the file at `path`."""
    stored = files.next_to(path, name, "base")
    if not stored.is_file():
        raise ThalwegError(
            f"{path} holds only trainable parameters, and the frozen ones are not next to it, in {name}: keep the two "
            "files in one folder"
        )
    return files.load_tensors(stored, "base")[0]


def same_bits(one: Tensor, two: Tensor) -> bool:
    return one is two or (not one.is_meta and torch.equal(_bits(one), _bits(two)))


def bit_sum(tensor: Tensor) -> int:
    """A number that changes with the values of a tensor."""
    return sum(int(piece.sum()) for piece in _bits(tensor).split(BLOCK))  # in int64, a piece at a time


def _bits(tensor: Tensor) -> Tensor:
    """As integers, in which -0.0 is not 0.0 and NaN is NaN."""
    return _shard(tensor.detach()).reshape(-1).view(INTEGERS.get(tensor.element_size(), torch.uint8))


def _shard(tensor: Tensor) -> Tensor:
    """The shard of this process, if a tensor is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
