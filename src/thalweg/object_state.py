"""Hidden state of objects: random generators, counters and orders, found by traversing their attributes."""

import random
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from .errors import ThalwegError
from .generators import generator_state, is_generator, set_generator

LEVELS = 12  # attributes within attributes, at most
OBJECTS = 5_000  # inspected in all, at most
ITEMS = 100  # inspected of each container, at most
LONGEST = 1_000_000  # entries of a list or array that still counts as a value, and bytes of one that is compared
SCALARS = (bool, int, float, str, type(None), np.bool_, np.number)
OPAQUE = {"_parameters", "_buffers", "_iterator", "__weakref__"}  # weights, and the iterator of persistent workers
GUARDED = sys.stdlib_module_names | {"numpy"}
# of the standard library, but made for users to store their own objects in
OPEN = (SimpleNamespace, Namespace, UserDict, UserList)
DICTS = (dict, OrderedDict, defaultdict, Counter)
TRAVERSED = (list, tuple, dict, partial, MethodType, BuiltinMethodType, FunctionType)
GLOBAL: set[int] = {
    id(torch.default_generator),
    id(random.random.__self__),  # type: ignore[attr-defined]
    id(np.random.rand.__self__),  # type: ignore[attr-defined]
}


class Place(NamedTuple):
    """Where a value is stored: an attribute, an entry of a dict, or a variable in a function's closure."""

    owner: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        """Store a copy of `value`, in place if the shape allows, since a list, array or tensor may be shared."""
        match value, self.value:
            case GeneratorState(state), now:
                set_generator(now, state)
            case list(), list() as now:
                now[:] = copied(value)
            case dict(), dict() as now:
                now.clear()
                now.update(copied(value))
            case np.ndarray(), np.ndarray() as now if _kind(value) == _kind(now):
                now[...] = value
            case Tensor(), Tensor() as now if _kind(value) == _kind(now):
                now.detach().copy_(value)
            case Tensor(), Tensor() as now:
                _assign(self.owner, self.key, value.detach().to(now.device, copy=True))
            case _:
                _assign(self.owner, self.key, copied(value))

    def remove(self) -> None:
        """Delete the attribute or entry; variables in closures are left alone."""
        if isinstance(self.owner, dict):
            self.owner.pop(self.key, None)
        elif isinstance(self.key, str) and not isinstance(self.owner, CellType):
            vars(self.owner).pop(self.key, None)


class Absent:
    """Marks a value that did not exist."""


ABSENT = Absent()


class GeneratorState(NamedTuple):
    """The state of a generator: a tensor, or what numpy and Python return."""

    state: Any


class Found(NamedTuple):
    """By path: values and generators, the objects that own them, and objects that cannot be inspected or not be fully
    restored.
    """

    places: dict[str, Place]
    owners: dict[str, Any]
    closed: dict[str, Any]

    @property
    def others(self) -> set[str]:
        """The paths of everything that is not a value."""
        return {*self.owners, *self.closed}


def traverse(sources: Mapping[str, Any], whole: bool = False) -> Found:
    """Generators, plain values, and lists, arrays and tensors of these, wherever the sources hold them.

    Args:
        sources: Objects to search, by name.
        whole: Include tensors of every shape and on every device, as the attributes of a network may be.
    """
    found = Found({}, {}, {})
    seen = {*GLOBAL}
    waiting = deque((name, Place(None, None, source), 0) for name, source in sources.items())
    while waiting and len(found.owners) < OBJECTS:
        path, place, level = waiting.popleft()
        value = place.value
        if is_value(value) or (whole and place.owner is not None and _is_data(value)):
            found.places.update({} if place.owner is None else {path: place})
        elif _identity(value) in seen or isinstance(value, ModuleType | type):
            continue
        elif isinstance(value, Tensor):  # parameters are not hidden state
            found.closed.update({} if isinstance(value, nn.Parameter) else {path: value})
        elif not isinstance(value, TRAVERSED) and is_generator(value):
            found.places[path] = place
        elif isinstance(value, TRAVERSED) or _is_traversed(type(value)):
            if level < LEVELS:
                found.owners[path] = value  # also keeps its id from being reused
                waiting.extend((f"{path}/{key}", inner, level + 1) for key, inner in _inside(value))
            if isinstance(value, list | tuple):  # items can be restored, but not added, and not in a tuple
                found.closed[path] = value
        else:
            found.closed[path] = value
        seen.add(_identity(value))
    return found


def values(found: Found) -> dict[str, Any]:
    """Copies of all values, and the states of all generators."""
    return {path: copied(place.value) for path, place in found.places.items()}


def moved(before: Found, marks: Mapping[str, Any], found: Found) -> tuple[str, ...]:
    """The paths of objects in which something changed that cannot be put back, such as a cache of large tensors; other
    values of theirs, such as what is in the cache, must not be put back either.

    Args:
        before: What was found before.
        marks: Its `marked`.
        found: What is found now.
    """
    now, others = marked(found), found.owners | found.closed
    odd = {path for path, mark in marks.items() if now.get(path, ABSENT) != mark}
    odd |= {path for path, item in before.closed.items() if others.get(path) is not item}
    return tuple({f"{_object_at(path, before.owners)}/" for path in odd})


def marked(found: Found) -> dict[str, Any]:
    """By path, what shows that something changed in place that cannot be put back."""
    containers = {path: item for path, item in found.owners.items() if type(item) in DICTS}
    return {path: _mark(item) for path, item in (found.closed | containers).items()}


def _mark(item: Any) -> Any:
    if isinstance(item, Tensor):
        return None if item.is_inference() else item._version
    if type(item) is np.ndarray:
        return crc32(item.tobytes()) if item.nbytes <= LONGEST and not item.dtype.hasobject else None
    return len(item) if type(item) in (list, set, deque, *DICTS) else None


def _object_at(path: str, owners: Mapping[str, Any]) -> str:
    """The innermost object that holds what is at a path, be it in lists, tuples or dicts."""
    while "/" in path and (path not in owners or type(owners[path]) in (list, tuple, *DICTS)):
        path = path.rpartition("/")[0]
    return path


def put_back(before: Mapping[str, Any], found: Found) -> None:
    """Restore every value in `before`; all others are left alone."""
    for name, value in before.items():
        place = found.places.get(name)
        if value is ABSENT:
            if place is not None:
                place.remove()
        elif place is None or not same(copied(place.value), value):
            _belongs(name, value, place, found.owners).put(value)


def _belongs(name: str, value: Any, place: Place | None, owners: Mapping[str, Any]) -> Place:
    """Where a value belongs; an attribute that is set on first use may be missing, but its owner must exist."""
    if isinstance(value, GeneratorState) and (place is None or not is_generator(place.value)):
        raise ThalwegError(
            f"this run was saved with a random generator '{dotted(name)}', which does not exist now: create the data, "
            "network and loss as they were created then, with all their generators"
        )
    owner, _, key = name.rpartition("/")
    return place or Place(owners.get(owner), key, None)


def dotted(path: str) -> str:
    """A path as one would write it in Python, without the numbers of the sources."""
    first, _, rest = path.partition("/")
    return (rest if first.isdigit() else path).replace("/", ".")


def modules_in(*sources: Any) -> dict[str, nn.Module]:
    """Every module that the sources hold, by path."""
    return {path: owner for path, owner in traverse(numbered(sources)).owners.items() if isinstance(owner, nn.Module)}


def changed(*snapshots: Mapping[str, Any]) -> set[str]:
    """The names of the values that differ between snapshots."""
    first, *others = snapshots
    names = {name for snapshot in snapshots for name in snapshot}
    return {
        name for name in names if not all(same(first.get(name, ABSENT), other.get(name, ABSENT)) for other in others)
    }


def generators(*sources: Any) -> list[Any]:
    """Every random generator that the sources hold, each once."""
    return [place.value for place in traverse(numbered(sources)).places.values() if is_generator(place.value)]


def numbered(sources: Sequence[Any]) -> dict[str, Any]:
    return {str(number): source for number, source in enumerate(sources)}


def copied(value: Any) -> Any:
    """A copy of a value, or the state of a generator."""
    if is_generator(value):
        return GeneratorState(generator_state(value))
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return value.copy() if is_value(value) and isinstance(value, list) else type(value)(map(copied, value))
    if type(value) in DICTS:
        return {key: copied(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def same(one: Any, two: Any) -> bool:
    """Whether two copies are equal, bit for bit and in type."""
    if type(one) is not type(two):
        return False
    match one:
        case Tensor():
            two = two.to(one.device)
            alike = _kind(one) == _kind(two)
            return alike and (torch.equal(one, two) or bool(((one == two) | ((one != one) & (two != two))).all()))
        case np.ndarray():
            return _kind(one) == _kind(two) and one.tobytes() == two.tobytes()
        case GeneratorState(state):
            return same(state, two.state)
        case list() | tuple():
            kinds = set(map(type, one))
            quick = kinds.isdisjoint((Tensor, np.ndarray, list, tuple, dict)) and one == two
            return list(map(type, one)) == list(map(type, two)) and (quick or all(map(same, one, two)))
        case dict():
            return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return bool(one == two or (one != one and two != two))


def is_value(value: Any) -> bool:
    """A number, a string or None; or a tuple, list, array or tensor of these, one-dimensional and not too long."""
    if isinstance(value, SCALARS):
        return True
    if isinstance(value, Tensor):
        plain = type(value) is Tensor and value.layout == torch.strided and value.device.type == "cpu"
        return plain and value.ndim < 2 and value.numel() <= LONGEST and not (value.requires_grad or value.is_complex())
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and value.ndim < 2 and value.size <= LONGEST and value.dtype.kind in "biufSU"
    return type(value) in (list, tuple) and len(value) <= LONGEST and all(isinstance(item, SCALARS) for item in value)


def _is_data(value: Any, level: int = 0) -> bool:
    """Arrays and tensors of any shape, and nested structures of these and of plain values, without other objects
    inside.
    """
    if type(value) in DICTS:
        return all(isinstance(key, SCALARS) for key in value) and _is_data([*value.values()], level)
    if type(value) in (list, tuple):
        small = len(value) <= LONGEST and level < LEVELS
        return small and all(is_value(item) or _is_data(item, level + 1) for item in value)
    if type(value) is Tensor:  # not the result of a graph
        real = value.layout == torch.strided and not value.is_complex()
        return real and not value.requires_grad and value.device.type != "meta"
    return type(value) is np.ndarray and value.dtype.kind in "biuf"


def _inside(value: Any) -> Iterator[tuple[Any, Place]]:
    """The items and attributes of an object; read by the methods of the built-in types, since those of a subclass may
    count calls.
    """
    match value:
        case list():
            yield from ((i, Place(value, i, item)) for i, item in enumerate(list.__getitem__(value, slice(ITEMS))))
        case tuple():
            items = enumerate(tuple.__getitem__(value, slice(ITEMS)))
            yield from ((i, Place(value, i, item)) for i, item in items if not isinstance(item, SCALARS))
        case dict():
            yield from ((key, Place(value, key, item)) for key, item in islice(dict.items(value), ITEMS))
        case MappingProxyType():
            yield from ((key, Place(None, None, item)) for key, item in islice(value.items(), ITEMS))
        case partial():
            yield from ((key, Place(None, None, getattr(value, key))) for key in ("func", "args", "keywords"))
        case MethodType() | BuiltinMethodType():
            yield "self", Place(None, None, value.__self__)
        case FunctionType():
            yield from _of_function(value)
        case torch.optim.Optimizer():
            yield from _of_optimizer(value)
            return
    if isinstance(value, FunctionType) or _is_traversed(type(value)):
        yield from _of_object(value)


def _of_object(value: Any) -> Iterator[tuple[str, Place]]:
    """The attributes of an instance and of its classes, and what their methods use."""
    yield from (
        (key, Place(value, key, item)) for key, item in [*getattr(value, "__dict__", {}).items()] if key not in OPAQUE
    )
    for kind in filter(_is_own, type(value).__mro__):
        for key, item in list(vars(kind).items()):
            if isinstance(item, MemberDescriptorType) and key != "__dict__" and hasattr(value, key):
                yield key, Place(value, key, getattr(value, key))
            elif isinstance(item, FunctionType):
                yield f"{kind.__name__}.{key}", Place(None, None, item)
            elif not key.startswith("__") and (is_generator(item) or is_value(item)):
                yield f"{kind.__name__}.{key}", Place(kind, key, item)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Place]]:
    """Its attributes, the settings of its groups, and its state for each tensor; not its learning rates."""
    moving = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    yield from ((f"state/{k}", Place(None, None, optimizer.state[tensor])) for k, tensor in enumerate(moving))
    for k, group in enumerate(optimizer.param_groups):
        yield from (
            (f"group/{k}/{key}", Place(group, key, item)) for key, item in group.items() if key not in ("params", "lr")
        )
    yield from (
        (key, Place(optimizer, key, item))
        for key, item in vars(optimizer).items()
        if key not in ("state", "param_groups")
    )


def _of_function(function: FunctionType) -> Iterator[tuple[str, Place]]:
    """The closure of a function, its defaults, and the global variables it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, Place(cell, "cell_contents", cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((f"defaults/{i}", Place(None, None, item)) for i, item in enumerate(defaults))
    known = function.__globals__
    used = [name for name in function.__code__.co_names if name in known] if _is_own(function) else []
    yield from ((name, Place(known, name, known[name])) for name in used)


def _is_traversed(kind: Any) -> bool:
    """Whether to look inside; most objects of the standard library and of NumPy guard their own state."""
    return kind in OPEN or _package(kind) not in GUARDED


def _is_own(thing: Any) -> bool:
    """Whether it is user code; classes and functions of torch and of this library keep no counters."""
    return _is_traversed(thing) and _package(thing) not in ("torch", "thalweg")


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
        vars(owner)[key] = value  # bypassing the class's own __setattr__
    else:
        # object.__setattr__ also works on a frozen dataclass
        put = setattr if isinstance(owner, type | nn.Module) else object.__setattr__
        with suppress(AttributeError, TypeError):  # a tuple, or an object of another type than before
            put(owner, key, value)
