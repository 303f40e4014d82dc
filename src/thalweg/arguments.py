"""What surrounds every public call: if it fails, its arguments are compared with their annotations, so that the error
names the wrong one; if it computes, it waits for its turn.
"""

import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, signature
from numbers import Integral, Real
from traceback import extract_tb
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import ThalwegError
from .turns import own_turn

PLAIN = (str, int, float, type, NoneType)  # types whose values are shown in a message
METHODS = ("__init__", "__call__")
COMPUTING = {"task", "batches", "jobs", "make"}  # arguments of calls that compute
LATE = ("thalweg.", "matplotlib.")  # where to look up names that are imported only under TYPE_CHECKING


@cache
def checked(home: str, *names: str) -> ModuleType:
    """Import a module, and let its functions and classes name the wrong argument if a call fails.

    Args:
        home: The module.
        names: The public names of the package; by default everything that the module itself makes public.
    """
    module = import_module(home)
    for name, thing in [*vars(module).items()]:
        if not (name in names or (not names and name[0] != "_")) or not _is_ours(thing):
            continue
        if isinstance(thing, type):
            for kind in filter(_is_ours, thing.__mro__):
                _check_methods(kind)
        elif isinstance(thing, FunctionType) and (thing.__module__ == home or not names):
            setattr(module, name, _naming(thing))
    return module


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("thalweg.")


def _check_methods(kind: type) -> None:
    for key, item in [*vars(kind).items()]:
        if isinstance(item, classmethod | staticmethod):
            setattr(kind, key, type(item)(_naming(item.__func__)))
        elif isinstance(item, FunctionType) and (key in METHODS or key[0] != "_"):
            setattr(kind, key, _naming(item))


def _naming(function: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(function, "names_arguments"):
        return function
    turn = nullcontext if COMPUTING.isdisjoint(function.__annotations__) else own_turn

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with turn():
                return function(*args, **kwargs)
        except ThalwegError:
            raise
        except Exception as error:
            for problem in _problems(function, args, kwargs, error):
                where = f"{function.__module__}.{function.__qualname__}"
                raise ThalwegError(f"{problem}: see help('{where}')") from error
            raise

    call.names_arguments = True  # type: ignore[attr-defined]
    return call


def _problems(function: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> Iterator[str]:
    """Arguments of the wrong type, then unknown keys and empty collections; none if user code raised the error."""
    from .error_notes import is_users

    known = signature(function)
    try:
        given = known.bind(*args, **kwargs).arguments
    except TypeError:  # the number or the names of arguments are wrong
        return
    if any(is_users(frame.filename) for frame in extract_tb(error.__traceback__)):
        return
    several = {name for name in given if known.parameters[name].kind is Parameter.VAR_POSITIONAL}
    each = [(name, value) for name in given for value in (given[name] if name in several else [given[name]])]
    for name, value in each:
        if not fits(value, hint := _hint(function, name)):
            yield f"{name} must be {_type_in_words(hint)}; got {_shown(value)}"
    for name, value in each:
        if isinstance(error, KeyError) and str(value) == str(error.args[0]):
            yield f"there is no {name} {value!r}"
        elif known.parameters[name].default is Parameter.empty and isinstance(value, list | dict) and not value:
            yield f"{name} must not be empty; got {_shown(value)}"


def _shown(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, PLAIN) else type(value).__name__


def _hint(function: Callable[..., Any], name: str) -> Any:
    """The annotation of an argument; Any if it cannot be evaluated."""
    hint = function.__annotations__.get(name, Any)
    late = ChainMap(*(vars(module) for home, module in [*sys.modules.items()] if home.startswith(LATE)))
    try:
        return eval(hint, function.__globals__, late) if isinstance(hint, str) else hint
    except NameError:
        return Any


def fits(value: Any, hint: Any) -> bool:
    """Whether a value matches an annotation; NumPy and torch scalars count as numbers.

    >>> fits({"a": [1, 2.5]}, Mapping[str, list[float]]), fits({1: []}, dict[str, Any]), fits(None, int | str)
    (True, False, False)
    """
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, one) for one in inside)
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in inside)
    if hint in (int, float):
        real = isinstance(value, Integral if hint is int else Real) or getattr(value, "ndim", 1) == 0
        return real and not isinstance(value, bool)
    if kind in (Callable, type):
        return callable(value) if kind is Callable else isinstance(value, type)
    if not isinstance(kind, type):
        known = isinstance(hint, type) and hint is not Any and not getattr(hint, "_is_protocol", False)
        return isinstance(value, hint) if known else hint is not None or value is None
    if issubclass(kind, Mapping):
        return isinstance(value, kind) and all(fits(k, inside[0]) and fits(v, inside[1]) for k, v in value.items())
    items = isinstance(value, Iterable) and isinstance(value, Sized) and not isinstance(value, str | bytes | Mapping)
    return items and all(fits(item, inside[0]) for item in value)


def _type_in_words(hint: Any) -> str:
    """
    >>> _type_in_words(Literal["a", "b"] | None), _type_in_words(Mapping[str, Any])
    ("'a' or 'b' or None", 'Mapping[str, Any]')
    """
    if get_origin(hint) in (Union, UnionType, Literal):
        return " or ".join(repr(one) if isinstance(one, str) else _type_in_words(one) for one in get_args(hint))
    if hint in (None, NoneType):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else re.sub(r"\b[a-z_]\w*\.", "", str(hint))
