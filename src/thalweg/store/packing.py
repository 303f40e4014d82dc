"""Values as tensors and JSON, and back: numbers, strings, tensors, arrays, lists, dicts, states of generators."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..hidden import ABSENT, GeneratorState


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
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, np.ndarray | np.generic):
        tensors[name] = (
            torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.empty(0)
        )
        return {
            "array": name,
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "scalar": isinstance(value, np.generic),
        }
    if isinstance(value, GeneratorState):
        return {"generator": _pack(value.state, tensors, name)}
    if isinstance(value, list | tuple):
        items = [_pack(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"dict": [[_pack(key, tensors, name), _pack(value[key], tensors, f"{name}.{key}")] for key in value]}
    return {"absent": True} if value is ABSENT else value


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "array" in value:
        array = np.frombuffer(bytes(tensors[value["array"]].numpy()), dtype=value["dtype"]).reshape(value["shape"])
        return array[()] if value["scalar"] else array.copy()
    if "generator" in value:
        return GeneratorState(_unpack(value["generator"], tensors))
    if "tuple" in value:
        return tuple(_unpack(value["tuple"], tensors))
    return {_unpack(key, tensors): _unpack(item, tensors) for key, item in value["dict"]} if "dict" in value else ABSENT
