"""What would wait for a GPU, seen on a CPU: operations whose result Python, or the shape of a tensor, depends on."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default")


class Looks(TorchDispatchMode):
    """Counts them in `.seen`."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        masks = name.startswith("aten.index.Tensor") and any(k is not None and k.dtype == torch.bool for k in args[1])
        if masks or any(word in name for word in WAITING):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))
