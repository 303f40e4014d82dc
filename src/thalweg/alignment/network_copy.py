"""A private copy of a network in float64, and what it computes for the batches with which symmetries are proven."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import mapped, to_device
from ..errors import ThalwegError, first_line, warn
from ..runtime.rng import seeded
from ..tasks import Task, check_task, describe
from ..weightspace.layout import Layout, named_parameters, named_statistics, unwrapped
from ..weightspace.probe import Probe
from ..weightspace.state import preserved
from ..weightspace.watch import copied, watched
from ..weightspace.weights import Weights
from .calls import Called, outputs_in, predicted
from .examples import first, half_moved, kind_of
from .modes import computing, training
from .noted import steps
from .outputs import CLOSE, STEEP, apart, finite, same_finite, slopes_apart, weighted_sum

LARGE = 10**7  # entries of all tensors that a network computes for two examples; beyond it, one may do
SMALL = 5 * 10**5  # up to this many, a proof takes more examples
MANY = 32  # at most
CHANGED = 0.02  # of the size of outputs, in the network's own precision: more than rounding, in TF32 too


class NetworkCopy:
    """A copy of the user's network in eval mode; its outputs for some examples are what a renumbering must not change.

    Attributes:
        net: The copy.
        tensors: Its trainable parameters and batch-norm statistics.
        batch: What a proof computes with.
        few: What is traced: two examples of the batch, if the network takes them and computes the same with more.
        kind: Of the batch.
        further: Two examples of each other kind of batch.
        trained: Calls in training mode, where those compute something else.
        idle: The parameters and buffers that take no part in any batch, where that is looked at.
        given: The examples of each kind of batch, as they were given.
        entries: Of all tensors that the network computed last.
        made: How many of its outputs are predictions; the others are targets, and outputs of other calls.
        targets: Whether targets are compared, which may be random.
    """

    batch: Any
    few: Any
    kind: str
    entries: int
    made: int
    targets = True

    def __init__(self, module: nn.Module, task: Task, batch: Any, weights: Weights | None = None):
        check_task(task)
        self.task, self.layout = task, Layout.of(module)
        self.probe = Probe(module)
        self.net, self.own = (unwrapped(probe.module) for probe in (Probe(module), self.probe))
        if weights is not None:
            self.layout.check(weights.layout, "the network", "a")
            weights.load_into(self.net)
        for parameter in self.net.parameters():
            parameter.grad = None
        self.net.double().eval()
        parameters = named_parameters(self.net)
        moving = {name: parameters[name] for name in self.layout.names} | named_statistics(self.net)
        self.tensors = {name: tensor for name, tensor in moving.items() if tensor.is_floating_point()}
        self.further: list[Any] = []
        self.trained: list[Called] = []
        self.idle: set[str] = set()
        self.given: list[Any] = []
        outputs = self._fit(batch)
        if not finite(outputs[: self.made]):
            raise ThalwegError(
                "renumbering is proven by outputs that stay the same, and for this batch none is a finite number: give "
                "a batch with examples, without NaN, and a network with finite weights"
            )
        again = self.outputs(seed=1)
        self.targets = apart(outputs[self.made :], again[self.made :]) <= CLOSE
        if apart(outputs[: self.made], again[: self.made]) > CLOSE:
            raise ThalwegError(
                "a network must compute the same in eval mode whenever it is called, so that renumbering can be "
                "proven, and this one does not; it draws random numbers or changes when it is called: turn that off in "
                "eval mode"
            )

    def converted(self, batch: Any) -> Any:
        """The batch in float64, where the network is."""
        batch = to_device(batch, next(self.net.parameters()).device)
        return mapped(batch, lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t)

    def _prepared(self, batch: Any) -> Any:
        """The same, after the network was called with the batch as it is: caches outside of it, of positions, say, must
        not be filled in float64. Refuse a network that uses the original there, into which gradients would go.
        """
        for mode in (nullcontext, training):
            try:
                with seeded(0), torch.no_grad(), preserved(self.own), mode(self.own.eval()):
                    given = mapped(to_device(batch, self.probe.device), copied)
                    watched(self.probe, partial(self.task.predictions, self.own, given))
            except ThalwegError:
                raise
            except Exception:  # it may fail in this mode, or need an autocast
                continue
        return self.converted(batch)

    def _fit(self, batch: Any) -> list[Tensor]:
        """The outputs for what a proof computes with: two examples of the batch, or all of it where the task does not
        take them; more, where that costs little, since a unit may be inactive on two; one, where that is much faster
        and the network computes each example alone.
        """
        self.kind = kind_of(first(batch, 2))
        outputs = self._fitting(self._few(batch), batch)
        self.few, entries = self.batch, max(self.entries, 1)
        examples = 1 if entries > LARGE else max(2, min(2 * SMALL // entries, MANY))
        if examples != 2 and kind_of(self.given[0]) == self.kind:
            with suppress(Exception):
                found = self._taken(first(batch, examples))
                same = [two[: len(own)] if own.ndim else two for two, own in zip(outputs, found, strict=True)]
                if finite(found[: self.made]) and (examples > 2 or apart(same, found) <= CLOSE):
                    return found
            self.batch = self.few
        return outputs

    def _few(self, batch: Any) -> Any:
        """Two examples of a batch, or many where the network computes something else with them."""
        few, many = first(batch, 2), first(batch, MANY)
        with suppress(Exception):
            return few if self._steps(many) <= self._steps(few) else many
        return few

    def _steps(self, batch: Any) -> set[Any]:
        given = to_device(batch, next(self.own.parameters()).device)
        with seeded(0), torch.no_grad(), preserved(self.own):
            return steps(self.own.eval(), self.task, mapped(given, copied))

    def _fitting(self, *batches: Any) -> list[Tensor]:
        """The outputs for the first batch that the network takes."""
        for batch in batches:
            try:
                found = self._taken(batch)
                self.given.append(batch)
                return found
            except Exception as error:  # whatever a network says about a batch that is too small, or of another kind
                failure = error
        if isinstance(failure, ThalwegError):
            raise failure
        why = f"{type(failure).__name__}: {first_line(failure)}"
        listed = isinstance(batches[-1], list) and all(isinstance(item, tuple | list | dict) for item in batches[-1])
        advice = "if this is a list of batches, give one of them" if listed else "check the batch and the task"
        with suppress(Exception):
            self._steps(batches[0])
            advice = (
                "it works in the network's own precision, so some layer does not compute in float64; choose an "
                "implementation of it that does, such as experts_implementation='batched_mm' in transformers"
            )
        raise ThalwegError(
            f"the network must take the batch, in float64, as its task calls it; it failed with {why}: {advice}"
        ) from failure

    def _taken(self, batch: Any) -> list[Tensor]:
        """The outputs for a batch, of which half of the examples are moved from their values, if the network takes
        that: zeros in them, as of a first state, could hide errors, as those of weights could.
        """
        self.batch = usual = self._prepared(batch)
        found = self.outputs()
        with suppress(Exception):
            self.batch = half_moved(usual)
            moved_outputs = self.outputs()
            if same_finite(found, moved_outputs):
                return moved_outputs
        self.batch = usual
        return found

    def outputs(self, seed: int = 0) -> list[Tensor]:
        """The task's outputs for the batch and those of other kinds, and in training where that is something else."""
        batch = mapped(self.batch, copied)
        with computing(seed) as computed, torch.no_grad():
            predictions, targets = self.task.predictions(self.net, batch)
            found = outputs_in(predictions)
            self.made, self.entries = len(found), computed.entries
            found += outputs_in(targets) if self.targets else []
            for other in self.further:
                found += predicted(self.net, self.task, mapped(other, copied))
            for called in self.trained:
                with training(self.net, called.every):
                    found += called(*called.inputs())
                    moving = {id(tensor) for tensor in self.tensors.values()}
                    found += [buffer.clone() for buffer in self.net.buffers() if id(buffer) not in moving]
        if not self.made:
            raise ThalwegError(
                f"renumbering is proven by the outputs of the task, and its predict returned {describe(predictions)}, "
                "in which no tensor was found: return tensors, or a tuple or dict of them"
            )
        return [tensor.detach().clone() for tensor in found]

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of a sum of all outputs by name; none where they are random or cannot be computed."""
        return self._gradients(self._mode) if self._mode else {}

    @cached_property
    def _mode(self) -> Callable[[nn.Module], Any] | None:
        """The one for gradients: training, with as many parts as draw no random numbers."""
        for mode in (training, partial(training, every=False), nullcontext):
            with suppress(Exception):
                if slopes_apart(self._gradients(mode), self._gradients(mode, seed=1)) <= STEEP:
                    return mode
        return None

    def _gradients(self, mode: Callable[[nn.Module], Any], seed: int = 0) -> dict[str, Tensor]:
        moving = {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad}
        with computing(seed), torch.enable_grad(), mode(self.net):
            batches = [mapped(batch, copied) for batch in (self.batch, *self.further)]
            weighted_sum([out for batch in batches for out in predicted(self.net, self.task, batch)]).backward()
        found = {name: torch.zeros_like(t) if t.grad is None else t.grad.to_dense() for name, t in moving.items()}
        for parameter in self.net.parameters():
            parameter.grad = None
        return {name: slope.clone(memory_format=torch.contiguous_format) for name, slope in found.items()}

    def warn_if_changed(self, b: Weights, aligned: Weights) -> None:
        """Warn if the network computes something else in its own precision with aligned weights, far beyond what
        rounding b changes: it may branch on the dtype of a tensor.
        """
        few = 4 * torch.finfo(b.vector.dtype).eps
        rounded = replace(b, vector=b.vector * (1 + few))
        far = rounding = 0.0
        with suppress(Exception):  # it may need an autocast, which is not known here
            before, rough, after = map(self._own_outputs, (b, rounded, aligned))
            far, rounding = apart(before, after, 4 * few), apart(before, rough)
        if far > max(CHANGED, 100 * rounding):
            warn(
                f"the outputs of the aligned network differ from those of b by {far:.2g} of their size in the "
                "network's own precision, though not in float64: what it computes seems to depend on the dtype of its "
                "tensors; give groups by hand, without those of such layers"
            )

    def _own_outputs(self, weights: Weights) -> list[Tensor]:
        weights.load_into(self.own)
        given = to_device(self.given, next(self.own.parameters()).device)
        with seeded(0), torch.no_grad(), preserved(self.own):
            found = [out for batch in given for out in predicted(self.own.eval(), self.task, mapped(batch, copied))]
            return [tensor.detach().clone() for tensor in found]  # some may be parameters

    def examples_of(self, batch: Any) -> Any:
        """Two examples of another batch, or all of it where the network does not take them."""
        usual = self.batch
        try:
            self._fitting(self._few(batch), batch)
            return self.batch
        finally:
            self.batch = usual
