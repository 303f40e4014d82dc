"""Side streams of a CUDA GPU: work on one can be captured, and overlaps with that on others."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def on_side_stream(device: torch.device, number: int = 0) -> Iterator[None]:
    """Work on a side stream, since the default stream cannot be captured.

    Args:
        device: Does nothing unless this is a CUDA device.
        number: The number of the stream; each of several interleaved runs has its own.
    """
    if device.type != "cuda":
        yield
        return
    stream, current = side_stream(device, number), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


@cache
def side_stream(device: torch.device, name: object) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
