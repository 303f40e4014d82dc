"""Pickles of byte arrays, read without running anything that they name."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ThalwegError


class Array:
    """Stands in for numpy's array and for the types named in it: keeps what the pickle says, and runs nothing."""

    def __init__(self, *arguments: object):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self) -> Tensor:
        _, shape, _, by_columns, content = self.state
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return values.reshape(shape[::-1]).T if by_columns else values.reshape(shape)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


STAND_INS = {
    "numpy.core.multiarray._reconstruct": Array,
    "numpy._core.multiarray._reconstruct": Array,
    "numpy.ndarray": Array,
    "numpy.dtype": Array,
    "_codecs.encode": _encode,  # how Python 3 writes bytes for Python 2
}


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in STAND_INS:
            raise ThalwegError(
                f"{self.path} must be a pickle of plain arrays, and it asks for {module}.{name}, which could run "
                "anything: do not use it, and download it again from its publisher"
            )
        return STAND_INS[f"{module}.{name}"]


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """A dict of lists, strings and `Array`s.

    Examples:
        >>> read_pickle(pickle.dumps({b"labels": [3, 8]}), Path("train"))
        {'labels': [3, 8]}

    Args:
        content: The pickle.
        path: Its path, for the error message.
    """
    try:
        entries = _Reader(content, path).load()
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in entries.items()}
    except ThalwegError:
        raise
    except Exception as error:  # a damaged pickle may end in any of them
        raise ThalwegError(
            f"{path} is not a whole pickle of arrays ({type(error).__name__}): download it again"
        ) from error
