"""The modes in which a proof computes: in float64, and in training without what draws random numbers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..runtime.recompiled import interpreted
from ..runtime.rng import seeded
from ..weightspace.state import preserved

WIDE = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
IN_PLACE = re.compile(r"\w*[a-z\d]_$|__set|__i")
DROPOUT = re.compile(r"(feature_)?(alpha_)?dropout([123]d)?_?$")


class InDouble(TorchFunctionMode):
    """Computes in float64 also where the network asks for less, as norms and softmax in float32 do, or makes or holds
    tensors in less, such as the first states of a recurrent layer.

    Attributes:
        entries: How many entries the tensors have that were computed.
    """

    entries = 0

    def __enter__(self) -> Self:
        self.usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self.usual)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            function = Tensor.double
        written = args[:1] if IN_PLACE.match(getattr(function, "__name__", "")) else ()
        args, kwargs = tree_map(_widened, (args[len(written) :], kwargs or {}))
        found = function(*written, *args, **kwargs)
        self.entries += found.numel() if isinstance(found, Tensor) else 0
        return found


def _widened(item: Any) -> Any:
    """A dtype, or a tensor, in double precision."""
    if isinstance(item, torch.dtype):
        return WIDE.get(item, item)
    return item.to(WIDE[item.dtype]) if isinstance(item, Tensor) and item.dtype in WIDE else item


@contextmanager
def training(net: nn.Module, every: bool = True) -> Iterator[None]:
    """Training mode, in which whole branches may be added, without dropout, and without what else the layers of torch
    do in it.

    Args:
        net: The network in eval mode, which is afterwards as it was.
        every: Also for parts without parameters, which may draw random numbers as dropout does.
    """
    with preserved(net), _WithoutDropout():
        net.train()  # which a network may override, to set flags of its own or to keep parts in eval mode
        for part in net.modules():
            own = every or any(True for _ in part.parameters())
            part.training &= own and (_hooked(part) or not _reads_mode(type(part)))  # type: ignore[arg-type]
        yield


@cache
def _reads_mode(kind: type) -> bool:
    """Whether this is a layer of torch that computes something else in training, as batch norm and dropout do."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("torch.nn.") and each is not nn.Module]
    methods = [getattr(method, "__code__", None) for each in own for method in vars(each).values()]
    return kind in own and any("training" in code.co_names for code in methods if code)


def _hooked(part: nn.Module) -> bool:
    """Whether it has hooks, which may look at its mode."""
    return bool(part._forward_hooks or part._forward_pre_hooks)


class _WithoutDropout(TorchFunctionMode):
    """Returns what dropout is given, also where a network calls it as a function."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DROPOUT.match(getattr(function, "__name__", "")):
            return args[0] if args else kwargs["input"]
        return function(*args, **(kwargs or {}))


@contextmanager
def computing(seed: int = 0) -> Iterator[InDouble]:
    with interpreted(), InDouble() as mode, seeded(seed):
        yield mode
