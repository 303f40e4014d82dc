"""Proof that a probe computes with its own weights only, and the same as the caller's module."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, mapped, tensors_in
from ..error_notes import explained
from ..errors import ThalwegError, during
from ..object_state import same
from ..runtime.recompiled import interpreted
from ..runtime.rng import seed_all, seeded
from ..runtime.threads import few_threads
from ..runtime.transfer import source
from .layout import named_parameters, user_compiled
from .probe import Probe, drop_caches
from .state import Contents, ModuleState, plain
from .watch import Watch, copied, numbers, watched

# relative to the largest value, on the CPU; elsewhere precision is low
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = 3e-2
MASKED = 1e6  # times the median: values beyond it, such as logits set to -1e9, are no measure for the others


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
        if self.first is not None and self.last is not None and not self.first.lost(self.last):
            return
        with during("trying the first batch again"), seeded(0):
            last = self._watched()
        self.probe.drop_caches()
        if self.first is None or last is None:
            return
        for name in self.first.lost(last):
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
                new = old.copy_(item) if plain(old) and plain(item) and _form(old) == _form(item) else copied(item)
            self.tensors.append(new)
            return new

        return mapped(batch, written)


def prove_on(probe: Probe, forward: Callable[[Any], Any], batches: Batches) -> Proof:
    """Raise unless `forward` of the first batch uses the weights of the copy alone, as the caller's module would. The
    probe is moved.
    """
    passes, make_batch = source(batches, probe.device, held=True)
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
        with torch.no_grad(), _module_by_module(module):
            return numbers(module(*given[0], **given[1]))
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


def _module_by_module(network: nn.Module) -> AbstractContextManager[Any]:
    """A network with kernels of its own calls its modules instead while something follows them, as at the copy."""
    fuses = any(getattr(part, "has_kernels", False) for part in network.modules())
    follow = nn.modules.module.register_module_forward_pre_hook
    return follow(lambda *_: None) if fuses else nullcontext()


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


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype
