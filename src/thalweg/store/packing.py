"""Values as tensors and JSON, and back: numbers, strings, tensors, arrays, lists, dicts, states of generators."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..object_state import ABSENT, GeneratorState


def packed(values: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and JSON that says where in the values they belong.

    >>> tensors, about = packed({"epoch": 3, "betas": (0.9, torch.ones(2))})
    >>> unpacked(tensors, about)
    {'epoch': 3, 'betas': (0.9, tensor([1., 1.]))}
    """
    tensors: dict[str, Tensor] = {}
    return tensors, {name: _pack(value, tensors, name) for name, value in values.items()}


def unpacked(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`."""
    return {name: _unpack(value, tensors) for name, value in about.items()}


def _pack(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    match value:
        case Tensor():
            return {"tensor": _named(value, tensors, name)}
        case np.ndarray() | np.generic():
            content = bytearray(value.tobytes())
            tensor = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, device="cpu")
            kind = {"dtype": value.dtype.str, "shape": list(value.shape), "scalar": isinstance(value, np.generic)}
            return {"array": _named(tensor, tensors, name), **kind}
        case GeneratorState(state):
            return {"generator": _pack(state, tensors, name)}
        case list() | tuple():
            items = [_pack(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        case dict():
            return {"dict": [[_pack(k, tensors, name), _pack(v, tensors, f"{name}.{k}")] for k, v in value.items()]}
    return {"absent": True} if value is ABSENT else value


def _named(tensor: Tensor, tensors: dict[str, Tensor], name: str) -> str:
    """Add a tensor by a name of its own, since the keys 1 and "1", or "a.b" and "b" within "a", ask for the same."""
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case list():
            return [_unpack(item, tensors) for item in value]
        case {"tensor": name}:
            return tensors[name]
        case {"array": name}:
            array = np.frombuffer(bytes(tensors[name].numpy()), dtype=value["dtype"]).reshape(value["shape"])
            return array[()] if value["scalar"] else array.copy()
        case {"generator": state}:
            return GeneratorState(_unpack(state, tensors))
        case {"tuple": items}:
            return tuple(_unpack(items, tensors))
        case {"dict": pairs}:
            return {_unpack(key, tensors): _unpack(item, tensors) for key, item in pairs}
        case dict():
            return ABSENT
    return value
