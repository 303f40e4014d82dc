"""Work that is called once for each batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .threads import few_threads


class Eager:
    """Calls `work(batch)` with the number of CPU threads that suits the network.

    Args:
        work: What is called.
        module: The network inside.
        device: Where the work runs.
    """

    def __init__(self, work: Callable[[Any], Any], module: nn.Module, device: torch.device):
        self.work = work
        self.module = module
        self.device = device

    def __call__(self, batch: Any) -> Any:
        with few_threads(self.device, self.module, batch):
            return self.work(batch)

    def signature(self, batch: Any) -> str:
        """What tells batches apart that are computed in different ways."""
        return ""
