"""How a task calls its network, as a function of tensors that torch can export, in float64."""

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..batches import mapped, tensors_in
from ..runtime.recompiled import interpreted
from ..runtime.rng import seeded
from ..tasks import Task
from .operations import writes

WIDE = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
IN_PLACE = re.compile(r"\w*[a-z\d]_$|__set|__i")


class Called(nn.Module):
    """A call of the network, or a whole task with it; it returns the tensors that the task uses.

    Attributes:
        net: The network.
        given: What it is called with; the batch where the whole task is traced.
        made: How many tensors it returns.
        used: Which of them are used; None for all.
        spare: Whether it computes more than is used.
    """

    spare = False

    def __init__(
        self, net: nn.Module, call: Callable[[Any], Any], given: Any, made: int = 0, used: Sequence[int] | None = None
    ):
        super().__init__()
        self.net, self.call, self.given, self.made, self.used = net, call, given, made, used
        self.alone = used is not None

    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.given))

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        waiting = iter(tensors)
        given = mapped(self.given, lambda item: next(waiting) if isinstance(item, Tensor) else item)
        with _InDouble():
            found = tensors_in(self.call(given))
        return found if self.used is None else [found[k] for k in self.used]

    def exported(self) -> Any:
        """The graph, as an exported program; torch prints it if it fails. Export looks into what the user has compiled
        itself, and must compile the branches of `torch.cond` to see their parameters.
        """
        with seeded(0), torch.enable_grad(), _quiet(), _masks_as_they_are():
            program = torch.export.export(self, self.inputs(), strict=False)
        unused = self.used is not None and len(self.used) < self.made
        self.spare = program.graph_module.graph.eliminate_dead_code(writes) or unused
        return program

    def arguments(self, task: Task, batch: Any) -> list[Tensor] | None:
        """The inputs for another batch; None for one of another shape."""
        found = tensors_in(self._reached(task, batch) if self.alone else batch)
        return found if [tensor.shape for tensor in found] == [tensor.shape for tensor in self.inputs()] else None

    def _reached(self, task: Task, batch: Any) -> Any:
        """What the task calls the network with."""

        def stop(_: nn.Module, args: Any, kwargs: Any) -> None:
            raise _Reached((args, kwargs))

        with self.net.register_forward_pre_hook(stop, with_kwargs=True):
            try:
                task.predictions(self.net, batch)
            except _Reached as reached:
                return reached.args[0]


class _Reached(BaseException):
    """A task has called its network, with these arguments."""


def recorded(net: nn.Module, task: Task, batch: Any) -> Called:
    """What to trace: the call of the network, with those of its outputs that the task uses; or the whole task, if it
    calls the network several times, or parts of it.
    """
    calls: list[tuple[Any, list[Tensor]]] = []

    def start(*_: Any) -> None:
        torch.set_grad_enabled(False)  # only what the task makes of the outputs matters

    def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        torch.set_grad_enabled(True)
        answer = mapped(output, _leaf)
        calls.append(((args, kwargs), tensors_in(answer)))
        return answer

    hooks = net.register_forward_pre_hook(start), net.register_forward_hook(note, with_kwargs=True)
    with hooks[0], hooks[1], computing(), torch.enable_grad():
        made = tensors_in(task.predictions(net, batch)[0])
    total = sum([tensor.sum() for tensor in made if tensor.requires_grad], torch.zeros(()))
    if len(calls) != 1 or not calls[0][1] or _reaches(total, net.parameters()):
        return Called(net, lambda given: task.predictions(net, given)[0], batch)
    given, leaves = calls[0]
    blind = not total.requires_grad
    used = [k for k, leaf in enumerate(leaves) if blind or not leaf.requires_grad or _reaches(total, [leaf])]
    return Called(net, lambda given: net(*given[0], **given[1]), given, len(leaves), used)


def _leaf(item: Any) -> Any:
    """A copy of a tensor, to which a gradient can lead."""
    return item.detach().clone().requires_grad_(item.is_floating_point()) if isinstance(item, Tensor) else item


def _reaches(total: Tensor, leaves: Iterable[Tensor]) -> bool:
    """Whether a sum depends on one of these."""
    moving = [leaf for leaf in leaves if leaf.requires_grad] if total.requires_grad else []
    slopes = torch.autograd.grad(total, moving, retain_graph=True, allow_unused=True) if moving else ()
    return any(slope is not None for slope in slopes)


@contextmanager
def training(net: nn.Module) -> Iterator[None]:
    """Training mode, in which whole branches may be added, but not for layers: without dropout."""
    try:
        for part in net.modules():
            part.training = any(True for _ in part.children())
        yield
    finally:
        net.eval()


class _InDouble(TorchFunctionMode):
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
def _quiet() -> Iterator[None]:
    """Without what torch prints, warns of and logs while it exports a graph."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _masks_as_they_are() -> Iterator[None]:
    """Transformers look whether a mask is causal, to compute the same faster; a graph must not depend on its values."""
    look = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = look


@contextmanager
def computing(seed: int = 0) -> Iterator[_InDouble]:
    with interpreted(), _InDouble() as mode, seeded(seed):
        yield mode
