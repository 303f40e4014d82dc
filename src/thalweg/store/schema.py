"""Whether what a file held has the types that a dataclass declares."""

from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints


def check_fields(found: object) -> None:
    """Raise a TypeError that names the first field of a dataclass that is not of its declared type.

    >>> from dataclasses import make_dataclass
    >>> check_fields(make_dataclass("Record", [("values", list[float])])(["one"]))
    Traceback (most recent call last):
    TypeError: 'values' is not a list[float]
    """
    for name, hint in get_type_hints(type(found)).items():
        if get_origin(hint) is not ClassVar and not _fits(getattr(found, name), hint):
            raise TypeError(f"'{name}' is not a {hint.__name__ if isinstance(hint, type) else hint}")


def _fits(value: Any, hint: Any) -> bool:
    kind, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if kind is dict:
        return isinstance(value, dict) and all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in value.items())
    if kind is list or (kind is tuple and inside[-1] is Ellipsis):
        return isinstance(value, kind) and all(_fits(item, inside[0]) for item in value)
    if kind is tuple:
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(_fits, value, inside))
    numbers: dict[Any, Any] = {float: (int, float), int: int}
    return isinstance(value, numbers.get(hint, hint)) and (hint is bool or not isinstance(value, bool))
