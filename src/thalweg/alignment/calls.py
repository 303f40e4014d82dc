"""How a task calls its network, as a function of tensors that torch can export, in float64."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from inspect import getclosurevars
from io import StringIO
from types import FunctionType, MethodType
from typing import Any
from unittest.mock import patch
from weakref import ref

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..batches import mapped, tensors_in
from ..runtime.rng import seeded
from ..tasks import Task
from ..weightspace.layout import named_statistics
from ..weightspace.state import Contents
from ..weightspace.watch import copied
from .alike import alike
from .modes import IN_PLACE, InDouble, computing
from .operations import writes

TRIES = 12  # values of an output, to see whether a task uses it


class Called(nn.Module):
    """A call of the network, or a whole task with it; it returns the tensors that the task uses.

    Attributes:
        net: The network.
        given: What it is called with; the batch where the whole task is traced.
        made: How many tensors it returns.
        used: Which of them are used; None for all.
        spare: Whether it computes more than is used.
        every: In training mode, whether parts without parameters are in it too.
    """

    spare = False
    every = True

    def __init__(
        self, net: nn.Module, call: Callable[[Any], Any], given: Any, made: int = 0, used: Sequence[int] | None = None
    ):
        super().__init__()
        self.net = net
        self.call = call
        self.given = given
        self.made = made
        self.used = used
        self.alone = used is not None

    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.given))

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        waiting = iter(tensors)
        given = mapped(self.given, lambda item: copied(next(waiting) if isinstance(item, Tensor) else item))
        before = dict(self.net.named_buffers())
        with InDouble():
            found = outputs_in(self.call(given))
            for name, buffer in self.net.named_buffers():
                if name in before and buffer is not before[name] and buffer.shape == before[name].shape:
                    before[name].copy_(buffer)  # export sees what is written to a buffer, but not that it is replaced
        kept = found if self.used is None else [found[k] for k in self.used]
        return [tensor.clone() for tensor in kept]  # export fails at outputs that a gradient inside the call needs

    def exported(self) -> Any:
        """The graph, as an exported program; torch prints it if it fails. Export looks into what the user has compiled
        itself, and must compile the branches of `torch.cond` to see their parameters.
        """
        with seeded(0), torch.enable_grad(), _quiet(), _blind():
            program = self._program()
        for node in program.graph_module.graph.nodes:
            for given in node.all_input_nodes:
                given.users.setdefault(node)  # torch may forget some, and then fails to erase them
        unused = self.used is not None and len(self.used) < self.made
        self.spare = program.graph_module.graph.eliminate_dead_code(writes) or unused
        return program

    def _program(self) -> Any:
        try:
            return torch.export.export(self, self.inputs(), strict=False)
        except Exception:
            private: Any = torch.export
            with suppress(Exception):  # below autograd, gradients that a call computes are seen; torch promises it not
                return private._trace._export(self, self.inputs(), strict=False, pre_dispatch=False)
            with suppress(Exception), patch.object(torch.compiler, "is_compiling", bool):  # as they compute elsewhere
                return torch.export.export(self, self.inputs(), strict=False)
            raise

    def arguments(self, task: Task, batch: Any) -> list[Tensor] | None:
        """The inputs for another batch; None for one of another shape, or with another string or number."""
        given = self._reached(task, batch) if self.alone else batch
        return tensors_in(given) if alike(self.given, given) else None

    def _reached(self, task: Task, batch: Any) -> Any:
        """What the task calls the network with."""

        def stop(_: nn.Module, args: Any, kwargs: Any) -> None:
            raise _Reached((args, kwargs))

        with self.net.register_forward_pre_hook(stop, with_kwargs=True):
            try:
                task.predictions(self.net, mapped(batch, copied))
            except _Reached as reached:
                return reached.args[0]


class _Reached(BaseException):
    """A task has called its network, with these arguments."""


def recorded(net: nn.Module, task: Task, batch: Any) -> Called:
    """What to trace: the call of the network, with those of its outputs that the task uses; or the whole task, if it
    calls the network several times, or parts of it.
    """
    whole = Called(net, lambda given: predicted(net, task, given), batch)
    if isinstance(net, torch.jit.ScriptModule):  # which takes no hooks
        return whole
    given: list[Any] = []
    answers: list[Any] = []

    def start(_: nn.Module, args: Any, kwargs: Any) -> None:
        torch.set_grad_enabled(False)  # only what the task makes of the outputs matters
        given.append(mapped((args, kwargs), copied))
        around.inside = True

    def note(_: nn.Module, args: Any, output: Any) -> Any:
        around.inside = False
        torch.set_grad_enabled(True)
        with torch._C.DisableTorchFunction():  # the only use of what it computed that is none
            answer = mapped(output, _leaf)
        answers.append(answer)
        return answer

    hooks = net.register_forward_pre_hook(start, with_kwargs=True), net.register_forward_hook(note)
    made = None
    with suppress(Exception), hooks[0], hooks[1], computing(), torch.enable_grad(), _Around(net) as around:
        made = predicted(net, task, mapped(batch, copied))
    if made is None:  # it asks for gradients by its inputs, say, to which what `note` returns has no path
        with computing(), torch.no_grad():
            predicted(net, task, mapped(batch, copied))  # or it fails by itself
        return whole
    total = sum([tensor.sum() for tensor in made if tensor.requires_grad], torch.zeros((), device="cpu"))
    if len(answers) != 1 or not tensors_in(answers[0]) or around.writes or any(map(around.owns, made)):
        return whole
    leaves, blind = tensors_in(answers[0]), not total.requires_grad
    used = [k for k, leaf in enumerate(leaves) if blind or not leaf.requires_grad or _reaches(total, leaf)]
    spare = [k for k in range(len(leaves)) if k not in used]
    if spare and _matters(spare, answers[0], net, task, batch):
        alone = [k for k in spare if _matters([k], answers[0], net, task, batch)]
        used = sorted([*used, *(alone or spare)])
    return Called(net, lambda given: net(*given[0], **given[1]), given[0], len(leaves), used)


def scripted_parts(net: nn.Module) -> dict[str, nn.Module]:
    """The modules of torch.jit in a network: which operations they compute cannot be seen."""
    return {name: part for name, part in net.named_modules() if isinstance(part, torch.jit.ScriptModule)}


def predicted(net: nn.Module, task: Task, batch: Any) -> list[Tensor]:
    """The tensors in what a task predicts, and in its targets, which a network may make as well."""
    outputs, targets = task.predictions(net, batch)
    return outputs_in(outputs) + outputs_in(targets)


class _Around(TorchFunctionMode):
    """Sees what is made of a network's own tensors, and of what it computes but does not return: it may keep auxiliary
    losses, say. And whether its own tensors are written to outside of a call, as averages are.
    """

    inside = writes = False

    def __init__(self, net: nn.Module):
        super().__init__()
        self.own = {id(tensor): ref(tensor) for tensor in (*net.parameters(), *named_statistics(net).values())}

    def owns(self, item: Any) -> bool:
        return id(item) in self.own and self.own[id(item)]() is item

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        owned = any(map(self.owns, tree_leaves((args, kwargs))))
        if self.inside or owned:
            self.own |= {id(item): ref(item) for item in tree_leaves(found) if isinstance(item, Tensor)}
        self.writes |= owned and not self.inside and bool(IN_PLACE.match(getattr(function, "__name__", "")))
        return found


def _matters(places: Sequence[int], answer: Any, net: nn.Module, task: Task, batch: Any) -> bool:
    """Whether a task returns something else, or fails, with other values of these outputs of its network, which no
    gradient reaches: it may use them by argmax, by a threshold or detached.
    """

    def found(change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        count = iter(range(len(tensors_in(answer))))

        def changed(item: Any) -> Any:
            return change(item) if isinstance(item, Tensor) and next(count) in places else copied(item)

        with computing(), torch.no_grad(), patch.dict(vars(net), forward=lambda *_, **__: mapped(answer, changed)):
            return predicted(net, task, mapped(batch, copied))

    def other(number: int, t: Tensor) -> Tensor:
        if number < 2:
            return torch.full_like(t, (-1e3, 1e3)[number])
        return torch.randn(t.shape, generator=draw, device="cpu").to(t) * 10.0 ** (number % 4)

    draw, before = torch.Generator().manual_seed(0), found(torch.clone)
    with suppress(Exception):
        return not all(_equal(before, found(partial(other, number))) for number in range(TRIES))
    return True


def _equal(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    """Also where both are NaN."""
    return len(one) == len(two) and all(
        mine.shape == yours.shape and torch.allclose(mine, yours, rtol=0, atol=0, equal_nan=True)
        for mine, yours in zip(one, two, strict=True)
    )


def outputs_in(output: Any) -> list[Tensor]:
    """The tensors in an output of a task, also those of objects that no batch is made of, such as a distribution, of
    modules, and of what functions refer to: a loss may use all of them.
    """
    found = tensors_in(output)
    known = {*map(id, found)}
    plain = dict(output) if isinstance(output, Mapping) else output
    inside = Contents([plain, *map(_captured, tree_leaves(plain))]).tensors.values()
    return found + [tensor for tensor in inside if id(tensor) not in known]


def _captured(item: Any) -> Any:
    """What a function refers to."""
    if isinstance(item, partial):
        return [item.args, item.keywords, _captured(item.func)]
    if isinstance(item, MethodType):
        return item.__self__
    return [*getclosurevars(item).nonlocals.values()] if isinstance(item, FunctionType) else None


def _leaf(item: Any) -> Any:
    """A copy of a tensor, to which a gradient can lead."""
    return item.detach().clone().requires_grad_(item.is_floating_point()) if isinstance(item, Tensor) else item


def _reaches(total: Tensor, leaf: Tensor) -> bool:
    """Whether a sum depends on this."""
    return torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)[0] is not None


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
def _blind() -> Iterator[None]:
    """Transformers look whether a mask is causal, to compute the same faster, and distributions whether they can have
    their arguments; a graph must not depend on values.
    """
    with (
        patch.object(transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True),
        patch.object(Distribution, "_validate_args", False),
    ):
        yield
