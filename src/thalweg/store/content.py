"""Hashes of anything by its content: tensors and arrays by value, objects by their state, never by address."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 64 << 20  # beyond this many bytes, only blocks of a tensor or array are hashed
BLOCKS, BLOCK = 64, 1 << 20
OVERHEAD = 64  # bytes that an item counts in addition to its content, since hashing many small ones takes time too


def digest_of(item: Any) -> str:
    """A hash of an item by its content.

    >>> digest_of({"x": torch.zeros(2), "y": [1, None]}) == digest_of({"y": [1, None], "x": torch.zeros(2)})
    True
    >>> digest_of([0.0]) == digest_of([0])
    False
    """
    content = Content()
    content.add(item)
    return content.digest()


class Content:
    """Adds one item after another; `size` is about how many bytes there were."""

    def __init__(self) -> None:
        self.sha, self.size = hashlib.sha256(), 0
        self.around: list[int] = []  # ids of the containers being added, since some contain themselves

    def digest(self) -> str:
        return self.sha.hexdigest()

    def add(self, item: Any) -> None:
        if id(item) in self.around:
            self._raw("itself", str(len(self.around) - self.around.index(id(item))).encode())
            return
        self.around.append(id(item))
        try:
            self._add(item)
        finally:
            self.around.pop()

    def _add(self, item: Any) -> None:
        match item:
            case float():
                self._raw(type(item).__name__, struct.pack("<d", item))
            case bytes() | bytearray() | memoryview():
                self._raw("bytes", bytes(item))
            case None | bool() | int() | str() | complex():
                self._raw(type(item).__name__, str(item).encode("utf-8", "surrogatepass"))
            case Tensor():
                self._tensor(item)
            case np.ndarray() | np.generic():
                self._array(np.asarray(item))
            case Mapping():
                self._all(item, sorted(((digest_of(k), value) for k, value in item.items()), key=lambda pair: pair[0]))
            case Set():
                self._all(item, sorted(map(digest_of, item)))
            case Sequence():
                self._all(item, item)
            case _:
                self._all(item, _parts(item))

    def _raw(self, kind: str, content: Any) -> None:
        size = memoryview(content).nbytes
        self.sha.update(f"{kind} {size}\n".encode())
        self.sha.update(content)
        self.size += size + OVERHEAD

    def _all(self, item: Any, parts: Iterable[Any]) -> None:
        self._raw("all of", _name(item if isinstance(item, type) else type(item)).encode())
        for part in parts:
            self.add(part)
        self._raw("end", b"")

    def _tensor(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        shape = "" if tensor.is_nested else tuple(tensor.shape)
        self._raw("tensor", f"{tensor.dtype} {tensor.layout} {shape}".encode())
        if tensor.is_nested:
            self._all(tensor, tensor.unbind())
        elif tensor.layout != torch.strided:
            coordinates = tensor.to_sparse_coo().coalesce()
            self._all(tensor, [coordinates.indices(), coordinates.values()])
        elif tensor.is_quantized:
            self._all(tensor, [tensor.int_repr(), tensor.dequantize()])
        elif tensor.device.type != "meta":
            self._values(tensor.resolve_conj().resolve_neg().reshape(-1), tensor.element_size(), _tensor_bytes)

    def _array(self, array: np.ndarray) -> None:
        self._raw("array", f"{array.dtype.str} {array.shape}".encode())
        if array.dtype.hasobject:
            self._all(array, array.reshape(-1).tolist())
        else:
            self._values(array.reshape(-1), array.itemsize, _array_bytes)

    def _values(self, flat: Any, width: int, content: Callable[[Any], memoryview]) -> None:
        """All of it, or for a large one the first, the last and evenly spaced blocks."""
        count = len(flat)
        if count * width <= LARGE:
            return self._raw("values", content(flat))
        block = BLOCK // width
        for k in range(BLOCKS):
            start = (count - block) * k // (BLOCKS - 1)
            self._raw("values", content(flat[start : start + block]))


def _tensor_bytes(piece: Tensor) -> memoryview:
    return piece.cpu().contiguous().view(torch.uint8).numpy().data


def _array_bytes(piece: np.ndarray) -> memoryview:
    return np.ascontiguousarray(piece).view(np.uint8).data


def _parts(item: Any) -> Iterable[Any]:
    """The parts of an object, as pickling would see them; for what cannot be pickled, its attributes."""
    match item:
        case torch.Generator():
            return [item.get_state()]
        case type() | ModuleType() | BuiltinFunctionType() | torch.dtype() | torch.device() | torch.layout():
            return [_name(item)]
        case MethodType():
            return [item.__func__, item.__self__]
        case FunctionType():
            code = item.__code__
            constants = [*code.co_names, *(value for value in code.co_consts if not hasattr(value, "co_code"))]
            return [_name(item), constants, item.__defaults__, item.__kwdefaults__, *_captured(item)]
    try:
        reduced = item.__reduce_ex__(4)
    except Exception:  # any exception, from objects that cannot be pickled
        return [getattr(item, "__dict__", None)]
    if isinstance(reduced, str):
        return [reduced]
    maker, arguments, *rest = reduced
    return [_name(maker), *arguments, *(list(part) if hasattr(part, "__next__") else part for part in rest)]


def _captured(function: FunctionType) -> Iterator[Any]:
    """The contents of a closure; a cell that is still empty holds nothing."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _name(item: Any) -> str:
    return f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', None) or str(item)}"
