"""The probe: a private copy of the caller's module that can stand at any point of weight space."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError
from .layout import Layout
from .modules import named_buffers, named_parameters, unwrapped
from .weights import Weights


class Probe:
    """The network at a point. `point` and `grad` are flat vectors that its parameters and gradients view.

    Writing to `point` moves the network; after `backward`, `grad` holds the gradient. Where views cannot hold (cuDNN
    lays out the weights of recurrent layers itself), the probe copies tensor by tensor instead, behind the same calls:
    `moved()` after writing to `point`, `backward(loss)` for the gradient.
    """

    def __init__(self, module: nn.Module, weights: Weights | None = None):
        self.module = _private_copy(module)
        self.layout = Layout.of(self.module)
        self.idle: frozenset[str] | None = None  # parameters the loss never reached, known after one backward
        parameters, _ = named_parameters(self.module)
        self._parameters = [parameters[name] for name in self.layout.names]
        self._strides = [torch.empty_like(p).stride() for p in self._parameters]
        self.point = torch.empty(self.layout.size, dtype=self.layout.dtype, device=self._parameters[0].device)
        self.grad = torch.zeros_like(self.point)
        self.views = self._can_view()
        torch._foreach_copy_(self.slots(self.point), [p.detach() for p in self._parameters])
        if self.views:
            self._bind()
        else:
            for part in self.module.modules():
                if isinstance(part, nn.RNNBase):
                    part.flatten_parameters()  # a deep copy loses the layout cuDNN works with
        if weights is not None:
            self.load(weights)

    @property
    def device(self) -> torch.device:
        return self.point.device

    def slots(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector with the shapes and strides of the parameters (channels_last ones included)."""
        pieces = flat.split([p.numel() for p in self._parameters])
        return [
            piece.as_strided(p.shape, stride, piece.storage_offset())
            for piece, p, stride in zip(pieces, self._parameters, self._strides, strict=True)
        ]

    def native(self, vector: Tensor) -> Tensor:
        """A vector of a `Weights`, in the order in which this probe's parameters lie in memory."""
        flat = torch.empty_like(self.point)
        self._write(flat, vector)
        return flat

    def canonical(self, flat: Tensor) -> Tensor:
        """The reverse: a flat vector of this probe in the order of its layout."""
        return torch.cat([slot.reshape(-1) for slot in self.slots(flat)])

    def load(self, weights: Weights) -> None:
        """Stand at `weights`, with its frozen parameters and buffers."""
        self.layout.check(weights.layout, "the network", "the weights")
        self._write(self.point, weights.vector)
        self.moved()
        parameters, _ = named_parameters(self.module)
        own = {**parameters, **dict(named_buffers(self.module))}
        with torch.no_grad():
            for name, value in {**weights.frozen, **weights.buffers}.items():
                own[name].copy_(value)

    def weights(self, made: dict[str, Any] | None = None) -> Weights:
        """The point where the probe stands, copied, with its buffers, and a note on how it was made."""
        self.check()
        parameters, _ = named_parameters(self.module)
        frozen = {name: parameters[name].detach().clone() for name in self.layout.frozen}
        buffers = {name: buffer.detach().clone() for name, buffer in named_buffers(self.module)}
        return Weights(self.layout, self.canonical(self.point), buffers, frozen, made or {})

    def moved(self) -> None:
        """Tell the network that `point` was written."""
        if not self.views:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self._parameters), self.slots(self.point))

    def backward(self, loss: Tensor) -> None:
        """Fill `grad` with the gradient of `loss` at `point`."""
        if not loss.requires_grad:
            raise ThalwegError("the loss does not depend on any moving weight: check for detach() or no_grad() in the task")
        hooks = [] if self.idle is not None else self._watch_idle()
        if self.views:
            self.grad.zero_()
            loss.backward()
        else:
            self._backward_by_copy(loss)
        if self.idle is None:
            self._end_watch(hooks)

    def decayed(self) -> list[slice]:
        """The stretches of `point` that weight decay acts on: all but what the loss never reached."""
        stretches: list[slice] = []
        offset = 0
        for name, parameter in zip(self.layout.names, self._parameters, strict=True):
            here = slice(offset, offset + parameter.numel())
            offset = here.stop
            if name in (self.idle or ()):
                continue
            if stretches and stretches[-1].stop == here.start:
                here = slice(stretches.pop().start, here.stop)
            stretches.append(here)
        return stretches

    def check(self) -> None:
        """Raise, naming the parameter, if something in the network cut a parameter loose from the flat vectors."""
        current, _ = named_parameters(self.module)
        slots = zip(self.layout.names, self._parameters, self.slots(self.point), self.slots(self.grad), strict=True)
        for name, bound, place, grad in slots:
            loose = current.get(name) is not bound
            if self.views and not loose:
                loose = not _shares(bound, place) or bound.grad is None or not _shares(bound.grad, grad)
            if loose:
                raise ThalwegError(
                    f"'{name}' no longer lies in the vector that moves the network: something in the network's own code "
                    "replaced it (zero_grad, .to, .data =, load_state_dict(assign=True), a new parametrization); "
                    "remove that from its forward pass and hooks"
                )

    def _can_view(self) -> bool:
        return not (self.point.is_cuda and any(isinstance(part, nn.RNNBase) for part in self.module.modules()))

    def _write(self, flat: Tensor, vector: Tensor) -> None:
        torch._foreach_copy_(self.slots(flat), list(self.layout.split(vector.to(self.point)).values()))

    def _bind(self) -> None:
        """Real parameters, not rebound `.data`: autograd then sees every write to the vector."""
        bound = {}
        for old, place, grad in zip(self._parameters, self.slots(self.point), self.slots(self.grad), strict=True):
            bound[id(old)] = nn.Parameter(place)
            bound[id(old)].grad = grad
        for part in self.module.modules():
            for name, parameter in list(part._parameters.items()):
                if id(parameter) in bound:
                    setattr(part, name, bound[id(parameter)])  # through setattr, so that nn.LSTM takes note
        self._parameters = [bound[id(old)] for old in self._parameters]

    def _backward_by_copy(self, loss: Tensor) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()
        self.grad.zero_()
        pairs = [
            (slot, p.grad) for slot, p in zip(self.slots(self.grad), self._parameters, strict=True) if p.grad is not None
        ]
        torch._foreach_copy_([slot for slot, _ in pairs], [grad for _, grad in pairs])

    def _watch_idle(self) -> Sequence[Any]:
        self._reached: set[str] = set()

        def watcher(name: str) -> Any:
            return lambda _: self._reached.add(name)

        named = zip(self.layout.names, self._parameters, strict=True)
        return [p.register_post_accumulate_grad_hook(watcher(name)) for name, p in named]

    def _end_watch(self, hooks: Sequence[Any]) -> None:
        for hook in hooks:
            hook.remove()
        self.idle = frozenset(self.layout.names) - self._reached
        self.check()


def _private_copy(module: nn.Module) -> nn.Module:
    """A deep copy without torch.compile wrappers; tensors that a forward pass left behind come along as plain values."""
    module = unwrapped(module)
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in _leftovers(module)}
    try:
        for part in module.modules():
            if hasattr(part, "_orig_mod"):
                memo[id(part)] = deepcopy(part._orig_mod, memo)
        return deepcopy(module, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        message = f"the network must be copyable with copy.deepcopy, and {type(module).__name__} is not: {error}"
        raise ThalwegError(message) from error


def _leftovers(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, Tensor) and not value.is_leaf)


def _shares(one: Tensor, two: Tensor) -> bool:
    return one.data_ptr() == two.data_ptr() and one.stride() == two.stride() and one.dtype == two.dtype
