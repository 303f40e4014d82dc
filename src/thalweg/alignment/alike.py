"""Whether a network is called in the same way by two batches, apart from the values of tensors."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batches import mapped


def alike(one: Any, two: Any) -> bool:
    """Whether two nested batches have tensors of the same shapes, and are equal in everything else.

    >>> x = torch.zeros(2)
    >>> alike({"x": x, "mode": "a"}, {"x": x + 1, "mode": "a"}), alike({"x": x, "mode": "a"}, {"x": x, "mode": "b"})
    (True, False)
    """
    try:
        return equal(*(mapped(batch, _shape) for batch in (one, two)))
    except Exception:  # whatever the comparison of a user's objects raises, or a cycle in them
        return False


def _shape(item: Any) -> Any:
    return item.shape if isinstance(item, Tensor) else item


def equal(one: Any, two: Any) -> bool:
    """Equality of objects by what they are made of, with the values of the tensors inside them, which are passed on in
    the order of a dict.
    """
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, Mapping):
        return [*one] == [*two] and all(equal(one[key], two[key]) for key in one)
    if is_dataclass(one) or _by_identity(type(one)):
        return equal(one.__reduce_ex__(2), two.__reduce_ex__(2))  # what it is made of; functions raise
    return bool(one == two)


def _by_identity(kind: type) -> bool:
    """Whether objects of a class are equal only to themselves."""
    return all("__eq__" not in vars(each) for each in kind.__mro__[:-1])
