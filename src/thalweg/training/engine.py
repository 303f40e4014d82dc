"""One training step, whatever moves."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..crew import Crew
from ..errors import ThalwegError
from ..explaining import during
from ..modes import Mode, say_slower
from ..randomness import undisturbed
from ..replay import Replay, form_of
from ..store.files import below
from ..tasks import Task
from ..text import first_line
from ..weightspace.batchnorm import counted_at_once
from ..weightspace.proof import Watch, check_leaves, prove_copy, watched
from ..weightspace.state import kept
from ..weightspace.weights import Checkpoint
from .exchange import Exchange
from .extra import OptimizerExtra
from .motion import Motion

NUMBER = "#"  # behind the name of what an optimizer keeps as a plain number
OptimizerFactory = Callable[[Sequence[Tensor]], Optimizer]


class Engine:
    """Runs one step: place, loss, gradient, decay, hand on, clip, update.

    mode, steps: how to compute, and how many steps there will be. make: what the batches' source gives -> a batch.
    """

    def __init__(
        self,
        motion: Motion,
        task: Task,
        optimizer: Optimizer,
        weight_decay: float,
        clip: float | None,
        mode: Mode | None = None,
        steps: int = 0,
        make: Callable[[Any], Any] = lambda drawn: drawn,
    ):
        self.motion, self.task, self.optimizer, self.make = motion, task, optimizer, make
        self.weight_decay, self.clip, self.mode = weight_decay, clip, mode or Mode()
        module, device = motion.probe.module, motion.probe.device
        watched = (optimizer, task.loss, task.predict, make)
        records = motion.recordable and self.mode.records(device) and Crew.present.size == 1
        if records and motion.probe.hooked:
            records = False
            say_slower("steps are not captured", "parameters have hooks, which would run only while a step is captured")
        self.replay = Replay(self._work, module, device, records, settle=self._settle, others=watched)
        self.compiles = self.mode.compiles(device, steps)
        self.compiled: Callable[..., tuple[Tensor, int]] | None = None
        self.first_form = ""
        self.watched = False
        self.watch: Watch | None = None  # who looked at the first pass
        self.controls = torch.zeros(1 + motion.controls, dtype=torch.float64, device=device)
        self.rate: float | Tensor = torch.zeros((), device=device) if self.replay.active else 0.0
        self.fused = self._fused() if self.replay.active else None
        if self.replay.active:
            _make_recordable(optimizer)
        self.number, self.counts = 0, True
        gradient = motion.probe.grad if motion.shared else motion.gradient
        told = (Crew.present, motion.probe, gradient, motion.averaged)
        self.exchange = Exchange(*told) if Crew.present.size > 1 else None
        self.extra = OptimizerExtra(optimizer)

    def step(self, drawn: Any, lr: float, counts: bool = True) -> Tensor:
        """The mean loss of the batch, before the update; of all processes, among which this one's part may not count."""
        self.counts = counts
        if self.compiles:
            self._compile(drawn)
        numbers = torch.tensor([lr, *self.motion.draw()], dtype=torch.float64)
        self.controls.copy_(numbers.pin_memory() if self.controls.is_cuda else numbers, non_blocking=True)
        if not self.replay.active:
            self.rate = lr
        loss = self.replay(drawn)
        if self.watch is not None:
            with suppress(torch.OutOfMemoryError), self.motion.probe.kept():
                prove_copy(self.motion.probe, self.watch)
            self.watch = None
        return loss

    def _work(self, drawn: Any) -> Tensor:
        """All of a step that happens on the device."""
        probe = self.motion.probe
        self.motion.place(self.controls[1:])
        compiled = self.compiled if self.compiled is not None and form_of(drawn) == self.first_form else None
        if self.watched:
            loss = self._forward(compiled, drawn)
        else:
            self.watched = True
            self.watch, loss = watched(probe, lambda: self._forward(compiled, drawn))
            if self.watch is not None:
                check_leaves(probe, loss)
                self.watch.check()
        if probe.point.is_cuda and torch.cuda.is_current_stream_capturing():
            self._recorded_update(loss)
        else:
            before = len(probe.unreached)
            probe.backward(loss)
            loss = self._update(loss.detach())
            if len(probe.unreached) < before:
                self.replay.forget()  # recordings know which parameters decay
        return loss.detach()

    def _forward(self, compiled: Callable[..., tuple[Tensor, int]] | None, drawn: Any) -> Tensor:
        module = self.motion.probe.module
        with self.mode.casting(self.controls.device), counted_at_once(module) if self.replay.active else nullcontext():
            loss, self.number = (compiled or _mean_loss)(self.task, module, self.make, drawn)
        return loss

    def _recorded_update(self, loss: Tensor) -> None:
        """Without `.grad`, whose bookkeeping belongs to another stream; if possible in one pass over all that moves."""
        probe = self.motion.probe
        gradients = probe.gradients(loss)
        unused = {name for name, gradient in zip(probe.layout.names, gradients, strict=True) if gradient is None}
        if self.fused is not None and unused <= probe.unreached:
            self.fused(gradients, probe.point)
        else:
            probe.gather(gradients)
            self._update(loss.detach())

    def _settle(self) -> None:
        if self.fused is not None:
            self.fused.settle()

    def _update(self, loss: Tensor) -> Tensor:
        """The loss of all processes; those that stand at one point exchange what they found there, others what follows.

        The gradient of what is trained is clipped before weight decay is added, as in torch; only where processes stand at
        different points is decay a part of what they exchange, and so of what is clipped."""
        apart = self.exchange is not None and not self.motion.shared
        late = self.clip is not None and not apart
        if self.exchange is not None and not apart:
            loss = self.exchange(loss, self.number * self.counts)
        if self.weight_decay and not late:
            self.motion.probe.decay(self.weight_decay)
        self.motion.hand_on(loss, self.weight_decay)
        if self.exchange is not None and apart:
            loss = self.exchange(loss, self.number * self.counts)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self.motion.gradient)
            self.motion.gradient.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        if self.weight_decay and late:
            self.motion.decay(self.weight_decay)
        for vector, grad in zip(self.motion.vectors, self.motion.grads, strict=True):
            vector.grad = grad  # again in each step: some optimizers take it away
        if isinstance(self.rate, Tensor):
            self.rate.copy_(self.controls[0])
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.step()
        return loss

    def _compile(self, drawn: Any) -> None:
        """The second time batches of the first form come, try on one of them whether they can be compiled."""
        form = form_of(drawn)
        if not self.first_form:
            self.first_form = form
        elif form == self.first_form:
            self.compiles = False
            try:
                self.compiled = self._tried(drawn)
            except Exception as error:  # the compiler's own, of many kinds
                say_slower("the network is not compiled", f"{type(error).__name__}: {first_line(error)}")

    def _tried(self, drawn: Any) -> Callable[..., tuple[Tensor, int]]:
        """Once forward and backward, of which nothing may remain, whether it works or not."""
        probe = self.motion.probe
        many = torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=100_000)
        with undisturbed(), kept(probe.module), warnings.catch_warnings(), many:
            warnings.simplefilter("ignore")
            function = _compiled()
            probe.gradients(self._forward(function, drawn))
        return function

    def _fused(self) -> Any:
        """One kernel for the whole update, if it is plain SGD in float32 that is asked for."""
        own, *others = self.optimizer.param_groups
        usual = type(self.optimizer) is SGD and not others and not (own["nesterov"] or own["dampening"] or own["maximize"])
        moving = self.motion.block
        if not usual or self.clip is not None or not self.motion.fusible or moving.dtype != torch.float32 or not kernels():
            return None
        own["fused"], own["foreach"] = True, False  # which takes a rate from the device in steps that are not recorded, too
        momenta = rows(len(moving), moving.shape[1], like=moving) if own["momentum"] else None
        if momenta is not None:
            for vector, momentum in zip(self.motion.vectors, momenta, strict=True):
                self.optimizer.state[vector]["momentum_buffer"] = momentum
        sizes = [slot.numel() for slot in self.motion.probe.slots(self.motion.probe.point)]
        return kernels().Update(moving, momenta, self.controls, own["momentum"], self.weight_decay, sizes)

    def state(self) -> dict[str, Tensor]:
        """Everything that moves, under names: vectors, the optimizer's state, buffers, and what the motion adds."""
        probe, found = self.motion.probe, {f"motion.{key}": value for key, value in self.motion.state().items()}
        for k, vector in enumerate(self.motion.vectors):
            found[f"vector.{k}"] = probe.canonical(vector)
            found |= {f"optimizer.{k}.{key}": value for key, value in self._memory(vector).items()}
        return found | {f"buffer.{name}": buffer for name, buffer in probe.module.named_buffers()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state`."""
        probe = self.motion.probe
        self.motion.set_state(below(state, "motion."))
        for k, vector in enumerate(self.motion.vectors):
            vector.copy_(probe.native(state[f"vector.{k}"]))
            self._remember(vector, below(state, f"optimizer.{k}."))
        for name, value in below(state, "buffer.").items():
            self._set_buffer(name, value)
        probe.moved()

    def _set_buffer(self, name: str, value: Tensor) -> None:
        """In place if possible; one that grew, or that was made in training, has another shape or was not there."""
        parent, _, key = name.rpartition(".")
        part = self.motion.probe.module.get_submodule(parent)
        known = part._buffers.get(key)
        if known is not None and (known.shape, known.dtype) == (value.shape, value.dtype):
            known.copy_(value)
        else:
            part._buffers[key] = value.to(self.motion.probe.device, copy=True)

    def checkpoint(self, epoch: int) -> Checkpoint:
        """Where plain training stands, with the optimizer's state."""
        memory = self._memory(self.motion.vectors[0])
        return Checkpoint(self.motion.probe.weights(), memory, type(self.optimizer).__name__, epoch, self.extra.state())

    def restore(self, start: Checkpoint) -> None:
        """Take on the optimizer's state of a checkpoint; the weights are the probe's business."""
        kind = type(self.optimizer).__name__
        if start.kind != kind:
            raise ThalwegError(
                f"the start was kept with the state of {start.kind}, and cannot be gone on from with {kind}: use the same "
                "optimizer, or start from its .weights alone"
            )
        self._remember(self.motion.vectors[0], start.optimizer)
        self.extra.set_state(start.extra)

    def _memory(self, vector: Tensor) -> dict[str, Tensor]:
        """What the optimizer knows of a vector, in the order of the layout."""
        state = self.optimizer.state[vector].items()
        known = {key: value for key, value in state if isinstance(value, Tensor)}
        known |= {key + NUMBER: torch.tensor(value) for key, value in state if isinstance(value, int | float)}
        return {key: self.motion.probe.canonical(v) if v.shape == vector.shape else v.clone() for key, v in known.items()}

    def _remember(self, vector: Tensor, memory: Mapping[str, Tensor]) -> None:
        """Into the tensors that are there already, which a kernel may know by their address."""
        known = self.optimizer.state[vector]
        for key, value in memory.items():
            if key.endswith(NUMBER):
                known[key.removesuffix(NUMBER)] = value.item()
                continue
            new = self.motion.probe.native(value).to(vector.device) if value.shape == vector.shape else value.clone()
            if isinstance(known.get(key), Tensor):
                known[key].copy_(new)
            else:
                on = self.replay.active or any(group.get("fused") for group in self.optimizer.param_groups)
                known[key] = new.to(vector.device) if on else new


def _mean_loss(task: Task, module: nn.Module, make: Callable[[Any], Any], drawn: Any) -> tuple[Tensor, int]:
    values, number = task.losses(module, make(drawn))
    if number == 0 and Crew.present.size == 1:  # one of several processes may have only padding
        rule = "a task's loss must return one value per example, or per label that counts"
        raise ThalwegError(f"{rule}; got an empty tensor {tuple(values.shape)}: leave such batches out")
    return values.mean() if number else values.sum(), number


@cache
def _compiled() -> Callable[..., tuple[Tensor, int]]:
    """One for all, so that a network of a kind that was compiled before need not be again."""
    return torch.compile(_mean_loss, dynamic=False)


def rows(count: int, size: int, like: Tensor) -> Tensor:
    """Zeros whose rows begin where a card reads fastest."""
    return torch.zeros(count, -(-size // 64) * 64, dtype=like.dtype, device=like.device)[:, :size]


@cache
def kernels() -> Any:
    """Our own kernels, where there is a compiler for them."""
    try:
        from . import kernels as found

        found.combine(torch.ones(1, 64, device="cuda"), torch.ones(1, device="cuda").double(), torch.empty(64, device="cuda"))
    except ImportError:
        return None
    except Exception as error:  # Triton needs a C compiler, and says so in many ways
        say_slower("curves and updates take more passes", f"our kernels cannot be built ({first_line(error)})")
        return None
    return found


def _make_recordable(optimizer: Optimizer) -> None:
    """Some optimizers count their steps on the host unless they are told not to."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    optimizer._warned_capturable_if_run_uncaptured = True


def make_optimizer(vectors: Sequence[Tensor], momentum: float, factory: OptimizerFactory | None) -> Optimizer:
    """SGD with momentum, or what the user's factory makes of the vectors."""
    if factory is None:
        whole = vectors[0].is_cuda or vectors[0].dtype in (torch.float32, torch.float64)
        return SGD(vectors, lr=0.0, momentum=momentum, fused=whole)  # on the CPU, fused and half precision skip updates
    with during("making the optimizer"):
        optimizer = factory(vectors)
    if not isinstance(optimizer, Optimizer):
        raise ThalwegError(f"optimizer= must be a function that turns vectors into a torch optimizer; it gave {optimizer!r}")
    try:
        signature(optimizer.step).bind()
    except TypeError:
        kind = type(optimizer).__name__
        raise ThalwegError(f"the optimizer must take steps without a closure, and {kind} needs one: use another") from None
    moved = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if sorted(moved) != sorted(map(id, vectors)):
        raise ThalwegError("the optimizer must move exactly the vectors it is given, not a module's own parameters")
    if any(group.get("weight_decay") for group in optimizer.param_groups):
        raise ThalwegError(
            "the optimizer must not decay by itself, since decay acts at the point of the curve: give weight_decay= to the "
            "call and weight_decay=0 to the optimizer"
        )
    return optimizer
