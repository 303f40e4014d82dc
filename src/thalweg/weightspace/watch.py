"""What a forward pass of a probe uses: every tensor, and every module that is called."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..batches import mapped
from ..errors import ThalwegError
from ..runtime.private_copy import Written, written_to
from ..runtime.recompiled import interpreted
from ..runtime.rng import seed_all
from .layout import named_parameters, span
from .probe import Probe
from .state import Contents, plain

FORM = re.compile("_like|new_")  # operations whose result does not depend on the values in a tensor
Result = TypeVar("Result")


class Watch(TorchDispatchMode):
    """Observes every tensor that is used in a forward pass of the copy, and every module that is called.

    Args:
        seed: For all random numbers from the first call of the network on, so that it can be repeated; without one its
            output is not kept.

    Attributes:
        uses: How often each trainable parameter was used in each operation.
        made_of: What the result was computed from: one bit for each trainable parameter, in the order of `spans`.
        arguments: The arguments of the first call of the whole network.
        precision: The precision of that call.
        output: The output of that call.
        uses_others: Whether anything else was used that a gradient could flow into.
    """

    supports_higher_order_operators = True

    def __init__(self, probe: Probe, seed: int | None = None):
        super().__init__()
        self.probe, self.seed, self.depth = probe, seed, 0
        self.shared = _by_storage(
            [(name, p) for name, p in named_parameters(probe.module).items() if name in probe.shared]
        )
        theirs = _by_storage([*probe.original.named_parameters(), *probe.original.named_buffers()])
        self.original_storages = {storage: name for storage, name in theirs.items() if storage not in self.shared}
        self.original_parts = {id(part): name for name, part in probe.original.named_modules()}
        buffers, held = dict(probe.module.named_buffers()), probe.state.contents.tensors.items()
        self.plain_tensors = _by_storage([(path, t) for path, t in held if path not in buffers and not t.requires_grad])
        self.spans = sorted((*span(p), name) for name, p in probe.moving.items() if p.numel())
        self.starts = [start for start, _, _ in self.spans]
        self.uses_others, self.made_of = False, 0
        self.uses: Counter[tuple[str, Any]] = Counter()
        self.plain_used: set[str] = set()
        self.arguments: tuple[Any, Any] | None = None
        self.output: list[Tensor] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch imports its compiler, which takes longer than a small scan; see `interpreted`."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made_of = 0
        for item in (*args, *kwargs.values()) if kwargs else args:
            for tensor in item if isinstance(item, list | tuple) else (item,):  # operators take no deeper nests
                if isinstance(tensor, Tensor):
                    made_of |= self._note(tensor, function)
        if self.shared and any(_storage(tensor) in self.shared for tensor in written_to(function, args, kwargs or {})):
            raise Written
        result = function(*args, **(kwargs or {}))
        if made_of and not FORM.search(function.__name__):
            self.made_of = made_of
            for tensor in result if isinstance(result, list | tuple) else (result,):
                if isinstance(tensor, Tensor) and (storage := _memory(tensor)) is not None:
                    storage.made_of = self.uses, made_of  # type: ignore[attr-defined]
        return result

    @property
    def used(self) -> set[str]:
        return {name for name, _ in self.uses}

    def lost(self, later: "Watch") -> list[str]:
        """Parameters that were used less often in a later pass, or of which its result was no longer made."""
        unmade = self.made_of & ~later.made_of
        less = [name for name, _ in self.uses - later.uses]
        return less + [name for k, (_, _, name) in enumerate(self.spans) if unmade >> k & 1]

    def _note(self, tensor: Tensor, function: Any) -> int:
        """What a tensor was made of in this pass."""
        memory = _memory(tensor)
        if memory is None:
            self.uses_others = self.uses_others or tensor.requires_grad
            return 0
        storage = memory.data_ptr()
        if storage in self.original_storages:
            _refuse_original(self.original_storages[storage])
        if storage in self.plain_tensors:
            self.plain_used.add(self.plain_tensors[storage])
        start = tensor.data_ptr()
        k = bisect_right(self.starts, start) - 1
        if k >= 0 and start < self.spans[k][1]:
            self.uses[self.spans[k][2], function] += 1
            return 1 << k
        self.uses_others = self.uses_others or tensor.requires_grad
        of_pass, made_of = getattr(memory, "made_of", (None, 0))
        return made_of if of_pass is self.uses else 0  # what was made in an earlier pass is a constant here

    def check_part(self, part: nn.Module, args: Any) -> None:
        if id(part) in self.original_parts:
            _refuse_original(self.original_parts[id(part)])

    def before_call(self, network: nn.Module, args: Any, kwargs: Any) -> None:
        self.depth += 1  # it may call itself
        if self.arguments is None:
            kind = self.probe.device.type
            self.precision = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            self.arguments = mapped(args, copied), mapped(kwargs, copied)
            if self.seed is not None:
                seed_all(self.seed)

    def after_call(self, network: nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1
        if self.seed is not None and self.output is None and not self.depth:
            self.output = numbers(output)

    def check(self) -> None:
        """Raise, naming both, if a stale cache is used instead of a parameter."""
        tensors, used = self.probe.state.contents.tensors, self.used
        for name, parameter in self.probe.moving.items():
            here = name.rpartition(".")[0]
            for path in self.plain_used if name not in used else ():
                near = path.rpartition(".")[0] == here or parameter.ndim > 1
                if near and tensors[path].shape in (
                    parameter.shape,
                    parameter.T.shape if parameter.ndim == 2 else None,
                ):
                    raise ThalwegError(
                        f"'{name}' takes no part in the forward pass, and the plain tensor '{path}' of its shape does: "
                        "it looks like a cache of earlier weights; clear it before the call"
                    )


@contextmanager
def _watching(probe: Probe, seed: int | None) -> Iterator[Watch]:
    watch, network = Watch(probe, seed), probe.module
    with ExitStack() as hooks, watch, interpreted():
        hooks.enter_context(nn.modules.module.register_module_forward_pre_hook(watch.check_part))
        if not isinstance(network, torch.jit.ScriptModule):
            hooks.enter_context(network.register_forward_pre_hook(watch.before_call, with_kwargs=True, prepend=True))
            hooks.enter_context(network.register_forward_hook(watch.after_call))
        yield watch


def watched(probe: Probe, work: Callable[[], Result], seed: int | None = None) -> tuple[Watch | None, Result]:
    """The result of `work`, with every tensor in it observed; unobserved if the network cannot run that way, or is not
    a copy.
    """
    if not probe.copied:
        return None, work()
    try:
        with _watching(probe, seed) as watch:
            return watch, work()
    except Written:
        probe.unshare()
        return watched(probe, work, seed)
    except (ThalwegError, torch.OutOfMemoryError):
        raise
    except Exception:  # if it is the network's own error, it is raised again
        probe.unshare()
        return None, work()


def _refuse_original(name: str) -> None:
    whose = f"'{name}' of the network" if name else "the network itself"
    raise ThalwegError(
        f"{whose} that was given takes part in the pass of its private copy: a function bound to the original (a "
        "lambda over self, a replaced .forward, a closure, a hook, a loss over the network itself) must use the "
        "network it is called with, and a teacher must be a copy of its own"
    )


def numbers(output: Any) -> list[Tensor]:
    """Copies of the tensors that an output is compared by."""
    return [
        tensor.detach().clone()
        for tensor in Contents(output).tensors.values()
        if (plain(tensor) or tensor.is_inference()) and tensor.is_floating_point()
    ]


def copied(item: Any) -> Any:
    return item.detach().clone().requires_grad_(item.requires_grad) if isinstance(item, Tensor) else copy(item)


def _by_storage(named: Sequence[tuple[str, Tensor]]) -> dict[int, str]:
    return {storage: name for name, tensor in named if tensor.numel() and (storage := _storage(tensor)) is not None}


def _storage(tensor: Tensor) -> int | None:
    memory = _memory(tensor)
    return None if memory is None else memory.data_ptr()


def _memory(tensor: Tensor) -> torch.UntypedStorage | None:
    """None for tensors without any."""
    try:
        memory = tensor.untyped_storage()
        return memory if memory.data_ptr() else None
    except (NotImplementedError, RuntimeError):
        return None
