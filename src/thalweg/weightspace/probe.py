"""The probe: a private copy of the caller's module that can be moved to any point of weight space."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError
from ..generators import same_randomness
from ..runtime.compute import Compute, private_copy, shards_of
from .layout import Layout, named_buffers, named_parameters, overrides_train, unwrapped
from .state import ModuleState, preserved
from .weights import LARGE, Weights, bit_sum, check_state, same_bits, shared_frozen


class Probe:
    """The network at a point. `point` and `grad` are flat vectors; its parameters and gradients are views of them.

    Writing to `point` moves the network; after `backward`, `grad` holds the gradient. Where views are not possible
    (cuDNN has its own memory layout for recurrent layers), the probe copies tensor by tensor instead, behind the same
    calls: `sync_parameters()` after writing to `point`, `backward(loss)` for the gradient.

    Args:
        module: The caller's module, which is not changed.
        weights: Where to start; the module's own weights by default.
        compute: How to compute.
        layout: That of the module, if it is known.
        share: Whether frozen parameters may lie in the memory of the caller's while they are equal; only for calls
            that observe their first pass, in which a network that writes to them is found.
    """

    copied = True  # whether the network is a copy of the caller's, with which it can be compared

    def __init__(
        self,
        module: nn.Module,
        weights: Weights | None = None,
        compute: Compute | None = None,
        layout: Layout | None = None,
        share: bool = False,
    ):
        if not isinstance(module, nn.Module):
            raise ThalwegError(f"the network must be a torch.nn.Module; got {type(module).__name__}")
        _refuse_cached()
        if shards_of(module) is not None:
            raise ThalwegError(
                "a network in shards can be used in fit, connect and scan; save the weights, and load them without "
                "module= for a whole network"
            )
        self.original, self.layout = unwrapped(module), layout or Layout.of(module)
        parameters = named_parameters(module)
        originals = [parameters[name] for name in self.layout.names]
        if originals[0].is_meta:
            raise ThalwegError(
                f"'{self.layout.names[0]}' has no values, being on the meta device: load the network first"
            )
        compute = compute or Compute()
        if compute.precision == "bf16" and self.layout.dtype != torch.float32:
            raise ThalwegError(
                f"precision 'bf16' is for networks with float32 weights; this one has {self.layout.dtype}"
            )
        channels_last = compute.channels_last(originals[0].device)
        self._allocate(originals, [_strides(p, channels_last) for p in originals])
        torch._foreach_copy_(self._point_views, [p.detach() for p in originals])
        self.views = not (self.point.is_cuda and any(isinstance(part, nn.RNNBase) for part in module.modules()))
        frozen = {name: parameters[name] for name in self.layout.frozen}
        large = sum(parameter.nbytes for parameter in frozen.values()) > LARGE
        frozen = frozen if share and large and self.views else {}
        self.module, self._parameters = self._copied(module, originals, frozen)
        self.moving = dict(zip(self.layout.names, self._parameters, strict=True))
        self.hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters)
        for part in () if self.views else self.module.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # a deep copy loses the memory layout that cuDNN needs
        self.state = ModuleState(self.module)
        self._drops = overrides_train(self.module)
        self._fixed: dict[str, Tensor] = {  # what does not lie in the vectors
            **{name: tensor for name, tensor in named_parameters(self.module).items() if name in self.layout.frozen},
            **named_buffers(self.module),
        }
        if not self.views:
            self.load_original()  # a copy made by the network's own __deepcopy__ may start elsewhere
            self.state = ModuleState(self.module)
        if weights is not None:
            self.load(weights)

    def _allocate(self, parameters: Sequence[Tensor], strides: Sequence[tuple[int, ...]]) -> None:
        """The flat vectors, and the places of the parameters in them."""
        self._shapes = [(p.shape, p.numel(), stride) for p, stride in zip(parameters, strides, strict=True)]
        self.point = torch.empty(self.layout.size, dtype=self.layout.dtype, device=parameters[0].device)
        self.grad = torch.zeros_like(self.point)
        self._point_views, self._grad_views = self.slots(self.point), self.slots(self.grad)
        self.unreached = set(self.layout.names)  # parameters no loss has depended on so far
        self.skipped = set(self.layout.names)  # those that the last one has not depended on

    @property
    def device(self) -> torch.device:
        return self.point.device

    def slots(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector with the shapes and strides of the parameters (channels_last ones included)."""
        pieces = flat.split([count for _, count, _ in self._shapes])
        return [
            piece.as_strided(shape, stride, piece.storage_offset())
            for piece, (shape, _, stride) in zip(pieces, self._shapes, strict=True)
        ]

    def from_layout_order(self, vector: Tensor) -> Tensor:
        """A copy of a vector in the order of the layout, as `Weights` have it, in that of this probe's memory."""
        flat = torch.empty_like(vector)
        torch._foreach_copy_(self.slots(flat), list(self.layout.split(vector).values()))
        return flat

    @property
    def in_layout_order(self) -> bool:
        """Whether both orders are the same, as without channels_last."""
        return all(stride == torch.empty(shape, device="meta").stride() for shape, _, stride in self._shapes)

    def to_layout_order(self, flat: Tensor) -> Tensor:
        """A copy of a flat vector of this probe, as `Weights` have it."""
        return torch.cat([slot.reshape(-1) for slot in self.slots(flat)])

    def load(self, weights: Weights) -> None:
        """Move to `weights`, with its frozen parameters and buffers; all other state of the network is as in the
        caller's.
        """
        _refuse_cached()
        self.layout.check(weights.layout, "the network", "the weights")
        given = {**weights.frozen, **weights.buffers}
        expected = {
            name: own for name, own in self._fixed.items() if name in given or name not in self.layout.statistics
        }
        check_state(given, expected, "the weights", "the network")
        self._forget()
        vector = weights.vector if self.point.nbytes > LARGE else weights.vector.to(self.point)
        torch._foreach_copy_(self._point_views, list(self.layout.split(vector).values()))
        self.sync_parameters()
        self._fill(given)

    def _fill(self, given: Mapping[str, Tensor]) -> None:
        """Write frozen parameters and buffers, of any kind of tensor."""
        with torch.no_grad():
            for name, value in given.items():
                if name in self.shared and not same_bits(self._fixed[name], value.to(self.device)):
                    self.unshare([name])
                if name not in self.shared:
                    self._fixed[name].copy_(value)

    def unshare(self, names: Collection[str] | None = None) -> None:
        """Copy frozen parameters, all by default, from the memory of the caller's."""
        for name in [*self.shared] if names is None else names:
            del self.shared[name]
            self._fixed[name].data = self._fixed[name].detach().clone()

    def load_original(self) -> None:
        """Move to the current weights of the caller's module, with its other state."""
        theirs: dict[str, Tensor] = {**named_parameters(self.original), **named_buffers(self.original)}
        self._forget()
        torch._foreach_copy_(self._point_views, [theirs[name].detach() for name in self.layout.names])
        self.sync_parameters()
        self._fill({name: theirs[name] for name in self._fixed})

    def drop_caches(self) -> None:
        """Clear what the network caches; what this writes to weights and attributes is undone by the next move."""
        if self._drops:
            drop_caches(self.module)

    def _forget(self) -> None:
        self.drop_caches()
        self.state.restore()

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the network afterwards, whatever happens inside and wherever it is moved."""
        point = self.point.to("cpu" if self.point.nbytes > LARGE else self.device, copy=True)
        theirs = named_parameters(self.original)
        frozen = {
            name: theirs[name] if name in self.shared else self._fixed[name].clone() for name in self.layout.frozen
        }
        with preserved(self.module):
            try:
                yield
            finally:
                self.point.copy_(point)
                self.sync_parameters()
                self._fill(frozen)

    def weights(self, made: dict[str, Any] | None = None) -> Weights:
        """A copy of the current point with its buffers and provenance."""
        self.check()
        parameters = named_parameters(self.module)
        frozen = {name: shared_frozen(name, parameters[name].detach()) for name in self.layout.frozen}
        buffers = {name: buffer.detach().clone() for name, buffer in named_buffers(self.module).items()}
        return Weights(self.layout, self.to_layout_order(self.point), buffers, frozen, made or {})

    def sync_parameters(self) -> None:
        """Tell the network that `point` was written."""
        if not self.views:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self._parameters), self._point_views)
        torch.clear_autocast_cache()  # inside a caller's autocast block, the old weights would be reused

    def backward(self, loss: Tensor) -> None:
        """Fill `grad` with the gradient of `loss` at `point`."""
        if not loss.requires_grad:
            raise ThalwegError(
                "the loss does not depend on any moving weight: check for detach() or no_grad() in the task"
            )
        if self.views:
            self.grad.zero_()
        else:
            for parameter in self._parameters:
                parameter.grad = None
        self.skipped.update(self._watched)
        loss.backward()
        if not self.views:
            self.gather([parameter.grad for parameter in self._parameters])
        if self.unreached - self.skipped:
            self.remember_reached(self.skipped)
            self.check()
        if len(self.unreached) == len(self.layout.names):
            raise ThalwegError(
                "the loss depends on weights outside the network that was given: its forward pass uses another "
                "module's (a replaced .forward that is bound to the original, say); make it use its own"
            )

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of `loss` per parameter, in the memory layout of `grad`, which is not written; None for
        parameters that the loss does not depend on.
        """
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return [
            None if g is None else _laid_out(g.to_dense(), slot)
            for g, slot in zip(found, self._grad_views, strict=True)
        ]

    def gather(self, gradients: Sequence[Tensor | None]) -> None:
        """Write the result of `gradients` into `grad`."""
        pairs = [(slot, g) for slot, g in zip(self._grad_views, gradients, strict=True) if g is not None]
        if len(pairs) < len(gradients):
            self.grad.zero_()
        torch._foreach_copy_([slot for slot, _ in pairs], [g for _, g in pairs])

    def remember_reached(self, unreached: Collection[str]) -> None:
        """Of all that no loss had depended on, only these are left."""
        self.unreached.intersection_update(unreached)
        self.__dict__.pop("decayed", None)

    def decay(self, weight_decay: float) -> None:
        """Add weight decay at `point` to `grad`."""
        for stretch in self.decayed:
            self.grad[stretch].add_(self.point[stretch], alpha=weight_decay)

    @cached_property
    def decayed(self) -> list[slice]:
        """The slices of `point` that decay: all but parameters no loss has depended on so far."""
        stops = [*accumulate(count for _, count, _ in self._shapes)]
        spans = zip(self.layout.names, [0, *stops], stops, strict=False)
        runs = [list(run) for reached, run in groupby(spans, lambda span: span[0] not in self.unreached) if reached]
        return [slice(run[0][1], run[-1][2]) for run in runs]

    def check(self) -> None:
        """Raise, naming it, if a parameter is no longer a view of the flat vectors."""
        current = named_parameters(self.module)
        slots = zip(self.layout.names, self._parameters, self._point_views, self._grad_views, strict=True)
        for name, bound, place, grad in slots:
            loose = current.get(name) is not bound
            if self.views and not loose:
                loose = not _shares(bound, place) or bound.grad is None or not _shares(bound.grad, grad)
            if loose:
                raise ThalwegError(
                    f"'{name}' no longer lies in the vector that moves the network: something in the network's own "
                    "code replaced it (zero_grad, .to, .data =, .grad =, load_state_dict(assign=True), a new "
                    "parametrization); remove that from its forward pass and hooks"
                )
        if written := [name for name, total in self.shared.items() if bit_sum(self._fixed[name]) != total]:
            raise ThalwegError(
                f"the frozen parameter '{written[0]}' was written to after the first pass, in which it was not: its "
                "memory is that of the network that was given; let the network write to it from the first pass on, or "
                "keep such values in a buffer"
            )

    def _copied(
        self, module: nn.Module, originals: list[nn.Parameter], frozen: Mapping[str, nn.Parameter]
    ) -> tuple[nn.Module, list[nn.Parameter]]:
        """The copy and its trainable parameters; a network that does not accept ours (scripted, or with a
        `__deepcopy__` that makes new ones) is written to tensor by tensor.
        """
        memo = self._viewing(originals) if self.views else {}
        with same_randomness():
            copy, shared = private_copy(module, memo, frozen)
        named = named_parameters(copy)
        # frozen parameters in the memory of the caller's, and the sums of their bits
        self.shared = {name: bit_sum(new) for name, new in shared.items() if named.get(name) is new}
        found = [named.get(name) for name in self.layout.names]
        if self.views and any(new is not memo[id(old)] for new, old in zip(found, originals, strict=True)):
            self.views = False
            return self._copied(module, originals, {})
        for name, old, new in zip(self.layout.names, originals, found, strict=True):
            if new is None or (new.shape, new.dtype) != (old.shape, old.dtype) or (old.numel() and _shares(new, old)):
                how = "not in it" if new is None else "another" if new.shape != old.shape else "that of the original"
                raise ThalwegError(
                    f"a copy of the network must have parameters of its own, and '{name}' is {how}: correct the "
                    "network's __deepcopy__, or leave it out"
                )
            if not self.views:
                _copy_attributes(new.detach_().requires_grad_(), old)  # those of a copied scripted module have a graph
        return copy, [new for new in found if new is not None]

    def _viewing(self, originals: list[nn.Parameter]) -> dict[int, Any]:
        """What each parameter becomes in the copy, wherever it is referenced: a real parameter, so that autograd sees
        every write to the vector.
        """
        memo: dict[int, Any] = {}
        for old, place, grad in zip(originals, self._point_views, self._grad_views, strict=True):
            memo[id(old)] = new = nn.Parameter(place)
            _copy_attributes(new, old)
            new.grad = grad
        return memo

    def parameters(self, flat: Tensor) -> list[nn.Parameter]:
        """Parameters that view another flat vector, with the types and attributes of the network's own, for an
        optimizer.
        """
        types = map(type, map(named_parameters(self.original).get, self.layout.names))
        found = [
            Tensor._make_subclass(kind if issubclass(kind, nn.Parameter) else nn.Parameter, slot, True)
            for kind, slot in zip(types, self.slots(flat), strict=True)
        ]
        for new, old in zip(found, self._parameters, strict=True):
            new.__dict__.update(old.__dict__)
        return found

    @cached_property
    def _watched(self) -> tuple[str, ...]:
        """All names, with hooks made before the first backward pass, which most probes never have; a hook that held the
        probe would keep it alive, since its parameters hold the hook. What the network has frozen by then may move
        again.
        """
        skipped = self.skipped
        for name, parameter in self.moving.items():
            moves = parameter.requires_grad
            parameter.requires_grad_().register_post_accumulate_grad_hook(lambda _, name=name: skipped.discard(name))
            parameter.requires_grad_(moves)
        return self.layout.names


def probe_at(
    module: nn.Module,
    weights: Weights | None,
    compute: Compute,
    layout: Layout | None = None,
    share: bool = False,
) -> Probe:
    """The network at a point; one in shards is not copied but recreated."""
    shards = shards_of(module)
    return Probe(module, weights, compute, layout, share) if shards is None else shards.probe(module, weights)


def drop_caches(module: nn.Module) -> None:
    """Let a network that overrides `train()` drop what it caches outside itself, on its class or in a global, as it
    would between two evaluations. The caller restores its weights, modes and attributes.
    """
    if overrides_train(module):
        with suppress(Exception):  # some networks are for inference only
            module.train()


def _refuse_cached() -> None:
    if nn.utils.parametrize._cache_enabled:
        raise ThalwegError(
            "torch.nn.utils.parametrize.cached() is active, and would keep the weights of one point at all others: "
            "make this call outside of it"
        )


def _copy_attributes(new: Tensor, old: Tensor) -> None:
    """Give a parameter the attributes and hooks of the original."""
    new.__dict__.update(old.__dict__)
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for after in (old._post_accumulate_grad_hooks or {}).values():
        new.register_post_accumulate_grad_hook(after)


def _strides(parameter: Tensor, channels_last: bool) -> tuple[int, ...]:
    return torch.empty_like(
        parameter,
        memory_format=torch.channels_last if channels_last and parameter.ndim == 4 else torch.preserve_format,
    ).stride()


def _laid_out(tensor: Tensor, place: Tensor) -> Tensor:
    """`tensor`, copied if its memory layout is not that of `place`; dimensions of size one do not matter."""
    if all(size == 1 or a == b for size, a, b in zip(place.shape, tensor.stride(), place.stride(), strict=True)):
        return tensor
    return torch.empty_strided(place.shape, place.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _shares(one: Tensor, two: Tensor) -> bool:
    return one.data_ptr() == two.data_ptr() and one.stride() == two.stride() and one.dtype == two.dtype
