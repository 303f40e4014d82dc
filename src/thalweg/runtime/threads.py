"""The number of CPU threads for a small network.

Threads that wait for each other after every small operation are up to a hundred times slower than one as soon as
anything else runs on the machine, and gain little where nothing does. Results depend on the number of threads in their
last bits, so it is chosen by the size of the work, never by timing: a run that is resumed, here or on another machine,
computes the same.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ..weightspace.state import Contents

SMALL = 4e8  # parameters times values in a batch: a step of 20 ms or less, measured on two cores


@contextmanager
def few_threads(device: torch.device, module: nn.Module, batch: Any) -> Iterator[None]:
    """One thread for a pass of a small network over a small batch on a CPU, unless the user has set the number.

    >>> before = torch.get_num_threads()
    >>> with few_threads(torch.device("cpu"), nn.Linear(2, 2), torch.ones(4, 2)):
    ...     inside = torch.get_num_threads()
    >>> inside == 1 or _chosen(before), torch.get_num_threads() == before
    (True, True)
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1 or _chosen(before) or not _small(module, batch):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chosen(threads: int) -> bool:
    """Whether the user set the number, in the environment or by another value than torch's own defaults."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return threads not in (cores, cores // 2) or any(
        name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    )


def _small(module: nn.Module, batch: Any) -> bool:
    """Stops at the first layer that is too large, so that it costs nothing for large networks; a batch without numbers,
    such as texts, may become anything.
    """
    held = Contents(batch)
    numbers = sum(map(Tensor.numel, held.tensors.values())) + sum(array.size for array in held.arrays) or SMALL
    return all(total * numbers <= SMALL for total in accumulate(layer.numel() for layer in module.parameters()))
