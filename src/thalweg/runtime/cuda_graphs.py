"""Work on a CUDA GPU that is captured once and replayed from then on, where that gives the same results."""

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from traceback import FrameSummary, StackSummary, extract_stack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import mapped, tensors_in
from ..errors import first_line
from ..weightspace.state import Contents
from .compute import warn_slow_path
from .eager import Eager

MOST_GRAPHS = 8  # kinds of batches (shapes and dtypes) that are captured; further ones run eagerly
SYNCHRONIZED = "called a synchronizing CUDA operation"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DRAWN = "random numbers of "  # in the names of what is watched


class Replay:
    """Calls `work(batch)`; from the third batch of the same shapes and dtypes on, by replaying a CUDA graph of it.

    The first call runs eagerly. The second is watched for anything that a capture would freeze: synchronization, random
    numbers drawn on the CPU, attributes of the network that change. If there is any, one warning says so and nothing is
    captured.

    Args:
        work: Reads the batch and tensors at fixed addresses, and writes such tensors; its result is returned as copies.
        module: The network inside, whose attributes are watched.
        device: Where the work runs.
        pool: Memory shared with other graphs, of which only one runs at a time.
        settle: Called after each capture, before the first replay.
        others: An optimizer and functions that take part, whose state and closures are watched too.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        module: nn.Module,
        device: torch.device,
        pool: Any = None,
        settle: Callable[[], None] = lambda: None,
        others: Sequence[Any] = (),
    ):
        self.work, self.module, self.device = work, module, device
        self.settle, self.others = settle, others
        self.eager = Eager(work, module, device)
        self.active = True
        self.pool = pool or torch.cuda.graph_pool_handle()
        self.graphs: dict[str, _Graph] = {}
        hooked = [name for name, part in module.named_modules() if any(getattr(part, kind) for kind in HOOKS)]
        if hooked:
            self.refuse(f"the network has hooks (on '{hooked[0]}'), which would run only during capture")

    def __call__(self, batch: Any) -> Any:
        if not self.active:
            return self.eager(batch)
        graph = self.graphs.get(key := batch_signature(batch))
        if graph is None:
            if len(self.graphs) >= MOST_GRAPHS:
                self.refuse(
                    f"batches come in more than {MOST_GRAPHS} shapes and dtypes, or hold something that is always new"
                )
            return self._first(key, batch)
        if graph.graph is not None:
            return graph.replay(batch)
        if not graph.watched:
            graph.watched = True
            return self._watched(batch)
        return graph.replay(batch) if self._capture(graph, batch) else self.work(batch)

    def _first(self, key: str, batch: Any) -> Any:
        """Shapes and dtypes not seen before; if the network keeps other tensors for them, older captures read freed
        memory.
        """
        before = _host_state(self.module)
        result = self.work(batch)
        if _difference(before, _host_state(self.module)) is not None:
            self.forget()
        self.graphs[key] = _Graph()
        return result

    def signature(self, batch: Any) -> str:
        return batch_signature(batch) if self.active else ""

    def forget(self) -> None:
        """Discard all graphs, so that what comes next is captured again."""
        self.graphs.clear()

    def close(self) -> None:
        """Free what captures hold."""
        self.active = False
        self.forget()

    def refuse(self, reason: str) -> None:
        self.active = False
        warn_slow_path("steps run eagerly instead of as one captured CUDA graph", reason)

    def _watched(self, batch: Any) -> Any:
        before = _host_state(self.module, self.others)
        level, heard = torch.cuda.get_sync_debug_mode(), list[tuple[Any, ...]]()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *warning: heard.append((*warning[:4], extract_stack()))
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self.work(batch)
            finally:
                torch.cuda.set_sync_debug_mode(level)
        waits = [stack for message, *_, stack in heard if SYNCHRONIZED in str(message)]
        for *warning, _ in heard:
            if SYNCHRONIZED not in str(warning[0]) and "Synchronization debug mode" not in str(warning[0]):
                warnings.warn_explicit(*warning)
        changed = _difference(before, _host_state(self.module, self.others))
        if place := next(filter(None, map(_waiting, waits)), None):
            self.refuse(
                f"something in it synchronizes with the GPU ({place.filename}, line {place.lineno}: '{place.line}'), "
                "as item(), int(), bool() and masks in square brackets do: keep the value in a tensor, as where() does"
            )
        elif changed is not None:
            self.refuse(changed)
        return result

    def _capture(self, graph: "_Graph", batch: Any) -> bool:
        device = self.device.index or 0
        generator = torch.cuda.default_generators[device]
        untouched, collects = generator.clone_state(), gc.isenabled()
        gc.disable()  # garbage collection in the middle of a capture would break it
        try:
            graph.capture(self.work, batch, self.pool)
            graph.alive = Contents(self.module)
            self.settle()
        except BaseException as error:  # whatever it is, the step can still run eagerly
            graph.graph = None
            generator.graphsafe_set_state(untouched)  # a failed capture leaves the other state in the middle of one
            with suppress(RuntimeError):  # the allocator waits for the end of one that broke off, if that did not come
                torch._C._cuda_endAllocateToPool(device, self.pool)
                torch._C._cuda_releasePool(device, self.pool)
            if not isinstance(error, Exception):
                raise
            self.refuse(f"capture failed ({first_line(error)})")
        finally:
            if collects:
                gc.enable()
        return graph.graph is not None


class _Graph:
    """Batches of the same shapes and dtypes: one batch at fixed addresses, and the graph that reads it."""

    watched = False
    graph: torch.cuda.CUDAGraph | None = None
    alive: Contents | None = None  # tensors of the network that the graph reads, which must live as long as it does

    def capture(self, work: Callable[[Any], Any], batch: Any, pool: Any) -> None:
        self.batch = mapped(batch, torch.clone)
        self.inputs = tensors_in(self.batch)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # not possible during capture
        # weights cast before would be read for ever, and those cast now only during capture
        torch.clear_autocast_cache()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            self.result = work(self.batch)
        finally:
            graph.capture_end()
            torch.clear_autocast_cache()
        self.graph = graph

    def replay(self, batch: Any) -> Any:
        assert self.graph is not None
        for fixed, tensor in zip(self.inputs, tensors_in(batch), strict=True):
            fixed.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return mapped(self.result, torch.clone)


def batch_signature(batch: Any) -> str:
    """What must be equal for one capture to serve two batches."""

    def described(item: Any) -> str:
        if not isinstance(item, Tensor):
            return f"{type(item)} {id(item)}"
        plain = item.layout == torch.strided and not item.is_nested
        return (
            f"{item.dtype} {tuple(item.shape)} {item.stride()}" if plain else f"{item.dtype} {item.layout} {id(item)}"
        )

    return repr(mapped(batch, described))


def _waiting(stack: StackSummary) -> FrameSummary | None:
    """Where, outside of torch, something waits for the GPU; None in a library that does not while it is captured:
    transformers, which looks at masks to leave out what masks nothing, asks before whether it is traced.
    """
    inside = (os.path.dirname(torch.__file__), warnings.__file__, __file__)
    place = next((frame for frame in reversed(stack) if not frame.filename.startswith(inside)), stack[0])
    asking = (module for name, module in [*sys.modules.items()] if name.startswith("transformers."))
    asks = any(getattr(m, "__file__", None) == place.filename and hasattr(m, "is_tracing") for m in asking)
    return None if asks else place


def _host_state(module: nn.Module, others: Sequence[Any] = ()) -> dict[str, tuple[Any, Any]]:
    """State on the host that a capture would freeze: random states, attributes of the network, closures of functions,
    and counters of an optimizer.
    """
    _, keys, position, *_ = np.random.get_state(legacy=True)
    state: dict[str, tuple[Any, Any]] = {
        f"{DRAWN}torch": (None, torch.get_rng_state().numpy().tobytes()),
        f"{DRAWN}Python": (None, random.getstate()),
        f"{DRAWN}numpy": (None, (np.asarray(keys).tobytes(), position)),
    }
    state |= {name: _noted(value, name.rpartition(".")[2]) for name, value in _attributes(module)}
    for other in others:
        state |= {f"of {getattr(other, '__name__', type(other).__name__)}: {k}": _noted(v, k) for k, v in _parts(other)}
    return state


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return (
        (f"{name}.{key}".removeprefix("."), value)
        for name, part in module.named_modules()
        for key, value in {**vars(part), **part._buffers}.items()
    )


def _parts(other: Any) -> Iterator[tuple[str, Any]]:
    """The settings and state of an optimizer, the attributes of a loss that is an object, or the closure of a function,
    and one level into that.
    """
    match other:
        case torch.optim.Optimizer():
            groups, states = other.param_groups, enumerate(other.state.values())
            yield from ((k, v) for group in groups for k, v in group.items() if k not in ("lr", "params"))
            yield from ((f"{k} of vector {n}", v) for n, memory in states for k, v in memory.items())
        case partial():
            yield from _parts(other.func)
        case nn.Module():
            yield from _attributes(other)
        case _:
            cells = getattr(other, "__closure__", None) or ()
            names = other.__code__.co_freevars if cells else ()
            closure = ((name, cell.cell_contents) for name, cell in zip(names, cells, strict=True))
            for name, value in [("", getattr(other, "__self__", other)), *closure]:
                yield name, value
                if hasattr(value, "__dict__") and not isinstance(value, nn.Module | Tensor | type):
                    yield from ((f"{name}.{key}", item) for key, item in vars(value).items())


def _noted(value: Any, key: str) -> tuple[Any, Any]:
    """An object, held so that its id cannot be reused, and what changes when it does; of a plain value only that."""
    if _is_plain(value):
        return None, repr(value)
    match value:
        case Tensor() if not value.is_cuda and not value.is_inference():
            return value, value._version
        case torch.Generator() if value.device.type == "cpu":
            return value, value.get_state().numpy().tobytes()
        case np.random.Generator():
            return value, repr(value.bit_generator.state)
        case list() | dict() | set() if not key.startswith("_"):
            return value, len(value)
    return value, None


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | None)


def _difference(before: dict[str, tuple[Any, Any]], after: dict[str, tuple[Any, Any]]) -> str | None:
    for name, (value, mark) in after.items():
        known, was = before.get(name, (before, None))
        if known is not value or was != mark:
            if name.startswith(DRAWN):
                return "it draws random numbers on the CPU in every step, and a captured step would always use the same"
            return f"its attribute '{name}' changes in every step, and a captured step would not see it"
    return None
