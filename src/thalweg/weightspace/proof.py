"""Proof that a probe computes with its own weights only, and the same as the caller's module."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..batches import Batches, mapped, tensors_in
from ..error_notes import explained
from ..errors import ThalwegError, during
from ..object_state import same
from ..runtime.private_copy import Written, written_to
from ..runtime.recompiled import interpreted
from ..runtime.rng import seed_all, seeded
from ..runtime.threads import few_threads
from ..runtime.transfer import source
from .layout import named_parameters, span, user_compiled
from .probe import Probe, drop_caches
from .state import Contents, ModuleState, plain

# relative to the largest value, on the CPU; elsewhere precision is low
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = 3e-2
MASKED = 1e6  # times the median: values beyond it, such as logits set to -1e9, are no measure for the others
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
            self.arguments = mapped(args, _copied), mapped(kwargs, _copied)
            if self.seed is not None:
                seed_all(self.seed)

    def after_call(self, network: nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1
        if self.seed is not None and self.output is None and not self.depth:
            self.output = _numbers(output)

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


class Proof:
    """A forward pass over one batch that is observed when a call begins, and `again` when it ends.

    Both times the copy has the weights of the caller's module and sees the same batch in the same memory with the same
    seed, so it must compute the same. If a parameter is used less often the second time, or the result is no longer
    made of it, something computed from it was cached outside the network, where it cannot be restored. There is no
    second pass if the same batch was observed at another point, and no parameter was lost there.
    """

    last: Watch | None = None

    def __init__(self, probe: Probe, forward: Callable[[Any], Any], batch: Any):
        self.probe, self.forward, self.batch = probe, forward, batch
        self.tensors: list[Any] = []
        self.first = self._watched()

    def check(self) -> None:
        """Raise unless the pass uses the weights of the copy alone, and the copy computes what the caller's module
        does.
        """
        if self.first is not None and not self.first.used:
            raise ThalwegError(
                "no moving weight takes part when the network is measured: look for weights that are kept somewhere "
                "else, or a task that does not use the network"
            )
        if self.first is None or self.first.uses_others:
            self._check_leaves()
        if self.first is not None:
            self.first.check()
            compare(self.probe, self.first)

    def _check_leaves(self) -> None:
        """With gradients, since a teacher that takes part without them may be anything."""
        self._load_original()
        # with everything kept for a gradient it needs more memory than the call itself
        with suppress(torch.OutOfMemoryError), torch.enable_grad(), self._around():
            check_leaves(self.probe, self.forward(self._in_same_memory(self.batch)))

    @contextmanager
    def observing(self, batch: Any) -> Iterator[tuple[Any, AbstractContextManager[Any]]]:
        """Yields the first batch at some point, in the memory that it had before, and what to enter to observe its use.
        What is written to it within the block is written to the batch, too.
        """
        probe = self.probe
        if self.first is None or probe.device.type != "cpu" or any(map(user_compiled, probe.module.modules())):
            yield batch, nullcontext()  # captured or compiled work cannot be observed
            return
        self.last = copy(self.first)
        self.last.uses, self.last.made_of = Counter(), 0
        there = self._in_same_memory(batch)
        with interpreted():
            yield there, self.last
        for own, used in zip(tensors_in(batch), tensors_in(there), strict=True):
            if plain(own) and plain(used) and not same(own, used):
                own.copy_(used)

    def again(self) -> None:
        """Raise, naming it, if a parameter is used less often than before."""
        if self.first is not None and self.last is not None and not _lost(self.first, self.last):
            return
        with during("trying the first batch again"), seeded(0):
            last = self._watched()
        self.probe.drop_caches()
        if self.first is None or last is None:
            return
        for name in _lost(self.first, last):
            raise ThalwegError(
                f"'{name}' takes part less often in the last pass than in the first, over the same batch at the same "
                "weights: something made of it is kept outside of the network (on its class, in a global, a closure, "
                "functools.cache) and would be the same at all points; keep it in an attribute, or clear it in train()"
            )

    def _watched(self) -> Watch | None:
        self._load_original()
        try:
            with torch.no_grad(), self._around():
                batch = self._in_same_memory(self.batch)
                watch, _ = watched(self.probe, lambda: self.forward(batch), seed=0)
        except torch.OutOfMemoryError:
            return None
        self.probe.check()
        return watch

    def _load_original(self) -> None:
        self.probe.load_original()
        self.probe.module.eval()

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Nothing that earlier passes have to do with, including the optimizer of torch.jit."""
        network, plainly = self.probe.module, torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
        seed_all(0)
        with explained(network, self.batch), few_threads(self.probe.device, network, self.batch), plainly:
            yield

    def _in_same_memory(self, batch: Any) -> Any:
        """A batch, each time in the same memory, which may be the key of a cache."""
        before, self.tensors = iter(self.tensors), []

        def written(item: Any) -> Any:
            old: Any = next(before, None)
            with torch.no_grad():
                new = old.copy_(item) if plain(old) and plain(item) and _form(old) == _form(item) else _copied(item)
            self.tensors.append(new)
            return new

        return mapped(batch, written)


def prove_on(probe: Probe, forward: Callable[[Any], Any], batches: Batches) -> Proof:
    """Raise unless `forward` of the first batch uses the weights of the copy alone, as the caller's module would. The
    probe is moved.
    """
    passes, make_batch = source(batches, probe.device)
    with during("trying the first batch"), seeded(0, batches):
        proof = Proof(probe, forward, make_batch(next(iter(passes()))))
        proof.check()
    return proof


def prove_copy(probe: Probe, watch: Watch) -> None:
    """Raise unless the network observed in training computes the same as the caller's in eval mode, and keeps doing so.
    If it cannot be called by itself, there is nothing to compare. The probe is moved.
    """
    if watch.arguments is None:
        return
    with seeded(0):
        try:
            proof = Proof(probe, lambda given: probe.module(*given[0], **given[1]), watch.arguments)
        except Exception:
            return
        if proof.first is not None:
            compare(probe, proof.first)
    proof.again()


def compare(probe: Probe, watch: Watch) -> None:
    """Raise unless the original returns for the observed call what the copy did. If it cannot be called by itself,
    there is nothing to compare. The original is left as it was.
    """
    if watch.arguments is None or watch.output is None:
        return
    probe.load_original()
    try:
        with few_threads(probe.device, probe.module, watch.arguments), watch.precision:
            theirs = _original_output(probe, watch.arguments)
    except Exception:
        return
    if len(watch.output) != len(theirs) or not all(
        agree(probe, one, two) for one, two in zip(watch.output, theirs, strict=True)
    ):
        raise ThalwegError(
            "a copy of the network computes something else than the network itself at the same weights: it keeps "
            "something that copy.deepcopy does not copy; correct its __deepcopy__, or keep that in an attribute"
        )


def _original_output(probe: Probe, given: tuple[Any, Any]) -> list[Tensor]:
    """The probe has the weights of the original, and knows what its parameters were."""
    module, state = probe.original, ModuleState(probe.original)
    places = [(part, part.data, dict(vars(part)), part.requires_grad) for part in module.parameters()]
    own = named_parameters(probe.module)
    try:
        module.eval()
        seed_all(0)
        with torch.no_grad():
            return _numbers(module(*given[0], **given[1]))
    finally:
        drop_caches(module)
        state.restore()
        for parameter, place, notes, moves in places:
            if parameter.requires_grad != moves:
                parameter.requires_grad_(moves)
            for odd in vars(parameter).keys() - notes.keys():  # torch.compile leaves its own notes
                del vars(parameter)[odd]
            if parameter.data_ptr() != place.data_ptr():
                parameter.data = place
        with torch.no_grad():
            for name, parameter in named_parameters(module).items():
                if not torch.equal(parameter, own[name]):
                    parameter.copy_(own[name])


def _numbers(output: Any) -> list[Tensor]:
    """Copies of the tensors that an output is compared by."""
    return [
        tensor.detach().clone()
        for tensor in Contents(output).tensors.values()
        if plain(tensor) and tensor.is_floating_point()
    ]


def agree(probe: Probe, one: Tensor, two: Tensor) -> bool:
    """Whether two results of one computation are equal up to rounding."""
    if one.shape != two.shape:
        return False
    if torch.equal(one, two):
        return True
    digits = TOLERANCE.get(probe.layout.dtype, COARSE) if probe.device.type == "cpu" else COARSE
    sizes = one[one.isfinite() & (one != 0)].abs()
    usual = sizes[sizes <= MASKED * sizes.median()] if sizes.numel() else sizes.new_zeros(1)
    return torch.allclose(one, two, rtol=digits, atol=digits * float(usual.max()), equal_nan=True)


def check_leaves(probe: Probe, values: Any) -> None:
    """Raise, naming it, if the output depends on a parameter outside the vector."""
    own = set(map(id, probe.moving.values()))
    others = [leaf for leaf in _leaves(Contents(values).tensors.values()) if id(leaf) not in own]
    if not others:
        return
    known = {id(tensor): path for path, tensor in Contents(probe.module).tensors.items()}
    known |= {id(tensor): name for name, tensor in named_parameters(probe.module).items()}
    for leaf in others:
        if isinstance(leaf, nn.Parameter) or id(leaf) in known:
            name = f"'{known[id(leaf)]}'" if id(leaf) in known else f"a parameter of shape {tuple(leaf.shape)}"
            raise ThalwegError(
                f"{name} takes part in the loss and does not move, since it is no parameter of the network that was "
                "given (a plain list of layers, a layer made in the first forward pass, a closure): register it "
                "before the call, or, if it should stay as it is, freeze it with requires_grad_(False)"
            )


def _refuse_original(name: str) -> None:
    whose = f"'{name}' of the network" if name else "the network itself"
    raise ThalwegError(
        f"{whose} that was given takes part in the pass of its private copy: a function bound to the original (a "
        "lambda over self, a replaced .forward, a closure, a hook, a loss over the network itself) must use the "
        "network it is called with, and a teacher must be a copy of its own"
    )


def _lost(first: Watch, last: Watch) -> list[str]:
    """Parameters that were used less often in the last pass, or of which its result was no longer made."""
    unmade = first.made_of & ~last.made_of
    return [name for name, _ in first.uses - last.uses] + [
        name for k, (_, _, name) in enumerate(first.spans) if unmade >> k & 1
    ]


def _leaves(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors a gradient would flow into."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [following for following, _ in node.next_functions]


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


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _copied(item: Any) -> Any:
    return item.detach().clone().requires_grad_(item.requires_grad) if isinstance(item, Tensor) else copy(item)
