"""A network that the user has compiled stays compiled: its private copy is compiled in the same way."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .compute import warn_slow_path


def recompiled(original: nn.Module, copy: nn.Module, part: bool) -> nn.Module:
    """The copy with the backend and options of the original: of `torch.compile(module)`, whose wrapper that is, or of
    `module.compile()`. As a part, the latter keeps its class; as a whole it gets a wrapper, outside of which hooks can
    run.
    """
    context = getattr(original, "dynamo_ctx", None) or _context(getattr(original, "_compiled_call_impl", None))
    if context is None:
        what = f"{type(original).__name__} is computed without the compiler"
        warn_slow_path(what, "how it was compiled cannot be read from it; use torch.compile")
        return copy
    if part and not hasattr(original, "dynamo_ctx"):
        copy._compiled_call_impl = context(copy._call_impl)
        return copy
    return context(copy)


@contextmanager
def interpreted() -> Iterator[None]:
    """Run what the user has compiled eagerly, functions included, since compiled code does not call hooks that were
    added later, and the compiler would try to compile what observes a pass.
    """
    if "torch._dynamo" not in sys.modules:  # then there is nothing compiled, and importing it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        yield


def _context(function: Any) -> Any:
    """What `module.compile()` made, as far as its compiled call refers to it."""
    from torch._dynamo.eval_frame import OptimizeContext

    cells = getattr(function, "__closure__", None) or ()
    return next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, OptimizeContext)), None)
