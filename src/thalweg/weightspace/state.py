"""The state of a module other than the values of its parameters, found and restored."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..generators import generator_state, is_generator, set_generator

DEPTH = 8  # levels of containers and plain objects below a part of the network
LONG = 10_000  # containers with more items are taken for data
PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size})
BUILTIN = (dict, list, tuple, set, deque)
OPAQUE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, Enum)
REGISTRIES = ("_parameters", "_buffers", "_modules")
# hooks, mostly; registries and modes are handled separately
BOOKKEEPING = frozenset({*vars(nn.Module()), "dynamo_ctx"})


class Contents:
    """What a module, or an output of one, refers to, also inside containers and plain objects, some levels deep;
    holding it keeps all of it alive.

    Attributes:
        tensors: Those that are not registered parameters, by path.
        held: Every container that was found, with its contents.
    """

    def __init__(self, whole: Any):
        self.held: list[tuple[Any, Any]] = []
        self.tensors: dict[str, Tensor] = {}
        self.arrays: list[np.ndarray] = []
        self.generators: list[Any] = []
        network = isinstance(whole, nn.Module)
        self._seen = set(map(id, whole.parameters() if network else ()))
        for name, part in whole.named_modules() if network else [("", whole)]:
            self._note(name, part, DEPTH)

    def _part(self, value: nn.Module) -> Iterator[tuple[str, Any]]:
        """There may be hundreds, most of which hold only parameters, buffers and submodules."""
        own = vars(value)
        self.held.append((own, dict(own)))
        for registry in map(own.get, REGISTRIES):
            if isinstance(registry, dict):
                self._seen.add(id(registry))
                self.held.append((registry, dict(registry)))
                yield from [(key, item) for key, item in registry.items() if id(item) not in self._seen]
        yield from [(key, item) for key, item in own.items() if key not in BOOKKEEPING]

    def _note(self, path: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or not depth or isinstance(value, OPAQUE):
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            self.tensors[path] = value
        elif isinstance(value, np.ndarray):
            self.arrays += [value] if value.flags.writeable and value.dtype != object else []
        elif is_generator(value):
            self.generators.append(value)
        else:
            depth = DEPTH if isinstance(value, nn.Module) else depth - 1
            for key, item in self._inside(value):
                if type(item) not in PLAIN:
                    self._note(f"{path}.{key}" if path else key, item, depth)

    def _inside(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The contents of a container or an object, by name, after it was noted as it is."""
        if isinstance(value, nn.Module):
            yield from self._part(value)
        elif isinstance(value, dict | list | deque | tuple) and len(value) <= LONG:
            if not isinstance(value, tuple):
                self.held.append((value, dict(value) if isinstance(value, dict) else list(value)))
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((str(key), item) for key, item in [*pairs])
        elif isinstance(value, set):
            self.held.append((value, set(value)))
        if not isinstance(value, nn.Module) and type(value) not in BUILTIN:
            yield from self._attributes(value)

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self.held.append((own, dict(own)))
            yield from [*own.items()]
        if slots := _slots(value):
            self.held.append((value, slots))
            yield from slots.items()


class ModuleState:
    """Attributes, modes, submodules, buffers and other tensors, arrays and generators of a module as they are now;
    `restore` puts them back. The values of parameters are not included.
    """

    def __init__(self, module: nn.Module):
        self.module, self.contents = module, Contents(module)
        self.modes = [(part, part.training) for part in module.modules()]  # not an attribute of scripted modules
        self.fixed = [tensor for tensor in self.contents.tensors.values() if plain(tensor)]
        self.values = [tensor.detach().clone() for tensor in self.fixed]
        self.numbers = [array.copy() for array in self.contents.arrays]
        self.randomness = [generator_state(generator) for generator in self.contents.generators]

    def renewed(self) -> "ModuleState":
        """The state now, found faster if everything holds the same objects as before."""
        pairs = zip(self.fixed, self.values, strict=True)
        resized = any(tensor.shape != value.shape or tensor.dtype != value.dtype for tensor, value in pairs)
        if resized or not all(_unchanged(container, before) for container, before in self.contents.held):
            return ModuleState(self.module)
        self.modes = [(part, part.training) for part, _ in self.modes]
        if self.fixed:
            torch._foreach_copy_(self.values, [tensor.detach() for tensor in self.fixed])
        self.numbers = [array.copy() for array in self.contents.arrays]
        self.randomness = [generator_state(generator) for generator in self.contents.generators]
        return self

    def restore(self) -> None:
        for container, before in self.contents.held:
            if not _unchanged(container, before):
                _put_back(container, before)
        for part, training in self.modes:
            if part.training != training:
                part.training = training
        for tensor, value in zip(self.fixed, self.values, strict=True):
            if tensor.shape != value.shape or tensor.dtype != value.dtype:
                tensor.data = value.clone()
        if self.fixed:
            with torch.no_grad():
                torch._foreach_copy_(self.fixed, self.values)
        for array, number in zip(self.contents.arrays, self.numbers, strict=True):
            array[...] = number
        for generator, state in zip(self.contents.generators, self.randomness, strict=True):
            set_generator(generator, state)


@contextmanager
def preserved(module: nn.Module, state: ModuleState | None = None) -> Iterator[ModuleState]:
    """Undo whatever happens inside to the state of a module, except for the values of its parameters.

    Args:
        module: The module.
        state: Of the same module, from an earlier call.
    """
    state = ModuleState(module) if state is None else state.renewed()
    try:
        yield state
    finally:
        state.restore()


def _slots(value: Any) -> dict[str, Any]:
    """Of classes written in Python, whose slots can be set."""
    written = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__ if kind.__flags__ & 1 << 9]
    names = [name for slots in written for name in ([slots] if isinstance(slots, str) else slots) if name[:2] != "__"]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _unchanged(container: Any, before: Any) -> bool:
    match container:
        case dict():
            same = len(container) == len(before) and all(map(is_, container.values(), before.values()))
            return same and [*container] == [*before]
        case list() | deque():
            return len(container) == len(before) and all(map(is_, container, before))
        case set():
            return container == before
    return all(getattr(container, name, None) is item for name, item in before.items())


def _put_back(container: Any, before: Any) -> None:
    match container:
        case dict() | set():
            container.clear()
            container.update(before)
        case list() | deque():
            container.clear()
            container.extend(before)
        case _:
            for name, item in before.items():
                if getattr(container, name, None) is not item:
                    object.__setattr__(container, name, item)


def plain(tensor: Tensor) -> bool:
    """Whether it is an ordinary tensor that can be copied into: not sparse, expanded, of inference mode and so on."""
    return (
        type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
        and tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_meta or tensor.is_inference() or tensor.is_quantized)
        and torch._debug_has_internal_overlap(tensor) != 1
    )
