"""Frozen parameters, shared by many points of weight space: held once in memory, stored once in a folder."""

from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..errors import ThalwegError
from ..store import files

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_held: WeakValueDictionary[tuple[object, ...], Tensor] = WeakValueDictionary()


def held_once(name: str, tensor: Tensor, copy: bool = True) -> Tensor:
    """The tensor that points hold for a frozen parameter: one that another point already holds, if it is the same bit
    for bit.

    Args:
        name: The name of the parameter.
        tensor: Its value.
        copy: Whether `tensor` may be written to later, so that a copy must be held instead.
    """
    key = (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    other = _held.get(key)
    if other is None or not _same_bits(other, tensor):
        other = _held[key] = tensor.detach().clone() if copy else tensor
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
    stored = files.beside(path, name, "base")
    if not stored.is_file():
        raise ThalwegError(
            f"{path} holds only trainable parameters, and the frozen ones are not next to it, in {name}: keep the two "
            "files in one folder"
        )
    return files.load_tensors(stored, "base")[0]


def _same_bits(one: Tensor, two: Tensor) -> bool:
    return one is two or (not one.is_meta and torch.equal(_bits(one), _bits(two)))


def _bits(tensor: Tensor) -> Tensor:
    """As integers, in which -0.0 is not 0.0 and NaN is NaN."""
    return tensor.detach().reshape(-1).view(INTEGERS.get(tensor.element_size(), torch.uint8))
