"""What objects keep to themselves: random generators, counters and orders, found by walking through their attributes."""

import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from types import BuiltinMethodType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LEVELS, OBJECTS, ITEMS, LONGEST = 12, 5_000, 100, 1_000_000  # how deep, how many, of each container, in one list or array
SCALARS = (bool, int, float, str, type(None), np.bool_, np.number)
OPAQUE = {"_parameters", "_buffers", "_iterator", "_grad", "__weakref__"}  # weights, and the iterator of persistent workers
GLOBAL: set[int] = {id(torch.default_generator), id(random.random.__self__), id(np.random.rand.__self__)}  # type: ignore[attr-defined]


class Place(NamedTuple):
    """Where a value is kept: an attribute, an entry of a dict, or the variable that a function closes over."""

    owner: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        """Put a copy there; into the same list, array or tensor where its shape allows, which others may hold too."""
        now = self.value
        if isinstance(value, GeneratorState):
            set_generator(now, value.state)
        elif isinstance(value, list) and isinstance(now, list):
            now[:] = value
        elif isinstance(value, np.ndarray) and isinstance(now, np.ndarray) and _kind(value) == _kind(now):
            now[...] = value
        elif isinstance(value, Tensor) and isinstance(now, Tensor) and _kind(value) == _kind(now):
            now.detach().copy_(value)
        else:
            _assign(self.owner, self.key, copied(value))

    def remove(self) -> None:
        """Take away what was not there; variables of functions stay."""
        if isinstance(self.owner, dict):
            self.owner.pop(self.key, None)
        elif isinstance(self.key, str) and not isinstance(self.owner, CellType):
            vars(self.owner).pop(self.key, None)


class Absent:
    """Instead of a value that was not there."""


ABSENT = Absent()


class GeneratorState(NamedTuple):
    """Where a generator stands: a tensor, or what numpy and Python give."""

    state: Any


def places(*sources: Any) -> tuple[dict[str, Place], dict[str, Any]]:
    """Generators, plain values, and lists, arrays and tensors of such, by path from the sources; and who owns them, by path."""
    found: dict[str, Place] = {}
    owners: dict[str, Any] = {}
    seen = {*GLOBAL}
    waiting = deque((str(number), Place(None, None, source), 0) for number, source in enumerate(sources))
    while waiting and len(owners) < OBJECTS:
        path, place, level = waiting.popleft()
        if is_value(place.value):
            found |= {} if place.owner is None else {path: place}
        elif _identity(place.value) in seen or isinstance(place.value, Tensor | np.ndarray | ModuleType | type):
            continue
        elif is_generator(place.value):
            found[path] = place
        elif level < LEVELS:
            owners[path] = place.value  # which also keeps its identity from being given to another
            waiting.extend((f"{path}/{key}", inner, level + 1) for key, inner in _inside(place.value))
        seen.add(_identity(place.value))
    return found, owners


def generators(*sources: Any) -> list[Any]:
    """Every random generator that the sources hold, each once."""
    return [place.value for place in places(*sources)[0].values() if is_generator(place.value)]


def is_generator(value: Any) -> bool:
    kinds = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def generator_state(generator: Any) -> Any:
    """A copy of where it stands, made of tensors, arrays, dicts, tuples and numbers."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def seed_generator(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(seed % 2**64).state


def copied(value: Any) -> Any:
    """A copy of a value, or the state of a generator."""
    if is_generator(value):
        return GeneratorState(generator_state(value))
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, list | np.ndarray) else value


def same(one: Any, two: Any) -> bool:
    """Whether two copies are equal, bit for bit and in kind."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return _kind(one) == _kind(two) and bool(((one == two) | ((one != one) & (two != two))).all())
    if isinstance(one, np.ndarray):
        return _kind(one) == _kind(two) and one.tobytes() == two.tobytes()
    if isinstance(one, GeneratorState):
        return same(one.state, two.state)
    if isinstance(one, list | tuple):
        return list(map(type, one)) == list(map(type, two)) and (one == two or all(map(same, one, two)))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return bool(one == two or (one != one and two != two))


def is_value(value: Any) -> bool:
    """A number, a text or nothing; a tuple, a list, an array or a tensor of such, of one axis and not too long."""
    if isinstance(value, SCALARS):
        return True
    if isinstance(value, Tensor):
        plain = type(value) is Tensor and value.layout == torch.strided and value.device.type == "cpu"
        return plain and value.ndim < 2 and value.numel() <= LONGEST and not value.requires_grad
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and value.ndim < 2 and value.size <= LONGEST and value.dtype.kind in "biufSU"
    return type(value) in (list, tuple) and len(value) <= LONGEST and all(isinstance(item, SCALARS) for item in value)


def _inside(value: Any) -> Iterator[tuple[Any, Place]]:
    """What an object holds, one step down; by the methods of the basic types, since those of a subclass may count."""
    if isinstance(value, list | tuple):
        items = list.__getitem__(value, slice(ITEMS)) if isinstance(value, list) else tuple.__getitem__(value, slice(ITEMS))
        yield from ((i, Place(value, i, item)) for i, item in enumerate(items) if not isinstance(item, SCALARS))
    elif isinstance(value, dict):
        yield from ((key, Place(value, key, item)) for key, item in islice(dict.items(value), ITEMS))
    elif isinstance(value, partial):
        yield from ((key, Place(None, None, getattr(value, key))) for key in ("func", "args", "keywords"))
    elif isinstance(value, MethodType | BuiltinMethodType):
        yield "self", Place(None, None, value.__self__)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    if isinstance(value, FunctionType) or _is_walked(type(value)):
        yield from _of_object(value)


def _of_object(value: Any) -> Iterator[tuple[str, Place]]:
    """Attributes of an instance, and what its classes hold and their methods use."""
    for key, item in list(getattr(value, "__dict__", {}).items()):
        if key not in OPAQUE:
            yield key, Place(value, key, item)
    for kind in filter(_is_walked, type(value).__mro__):
        for key, item in list(vars(kind).items()):
            if isinstance(item, MemberDescriptorType) and hasattr(value, key):
                yield key, Place(value, key, getattr(value, key))
            elif _is_own(kind) and isinstance(item, FunctionType):
                yield f"{kind.__name__}.{key}", Place(None, None, item)
            elif _is_own(kind) and not key.startswith("__") and (is_generator(item) or is_value(item)):
                yield f"{kind.__name__}.{key}", Place(kind, key, item)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Place]]:
    """What a function closes over, its defaults, and the global variables that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, Place(cell, "cell_contents", cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    yield "defaults", Place(None, None, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
    if _is_own(function):
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, Place(function.__globals__, name, function.__globals__[name])


def _is_walked(kind: Any) -> bool:
    """Objects of the standard library and of numpy guard their own state."""
    return _package(kind) not in sys.stdlib_module_names | {"numpy"}


def _is_own(thing: Any) -> bool:
    """Neither of torch nor of this library, whose classes and functions keep no counters."""
    return _is_walked(thing) and _package(thing) not in ("torch", "thalweg")


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _identity(value: Any) -> int:
    return id(getattr(value, "bit_generator", value)) if isinstance(value, np.random.Generator) else id(value)


def _kind(value: Any) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape)


def _assign(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict) or (isinstance(owner, list) and isinstance(key, int)):
        owner[key] = value
    elif not isinstance(owner, type) and key in getattr(owner, "__dict__", {}):
        vars(owner)[key] = value  # whatever its class does when an attribute is set
    else:
        with suppress(AttributeError, TypeError):  # a tuple, or another kind of object than had it
            setattr(owner, key, value)
