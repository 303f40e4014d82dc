"""One training step, whatever moves: the network itself, or the bends of a curve."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from ..errors import ThalwegError
from ..tasks import Task
from ..weightspace.probe import Probe
from ..weightspace.weights import Checkpoint

OptimizerFactory = Callable[[Sequence[Tensor]], Optimizer]


class Motion(ABC):
    """What moves: flat vectors, from which a step places the probe and to which it hands the gradient."""

    probe: Probe
    vectors: list[Tensor]
    grads: Sequence[Tensor]
    t: float | None = None

    @abstractmethod
    def place(self) -> None:
        """Put the probe where the next gradient is wanted."""

    @abstractmethod
    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        """Turn the probe's gradient into the vectors' gradients."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The result as it stands, copied."""

    def state(self) -> dict[str, Tensor]:
        """What else a run needs to go on."""
        return {}

    def set_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Go on from there; most motions have nothing more."""


class Network(Motion):
    """Plain training: the vector that moves is the probe's own point."""

    def __init__(self, probe: Probe):
        self.probe, self.vectors, self.grads = probe, [probe.point], [probe.grad]

    def place(self) -> None:
        self.probe.moved()

    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        pass

    def snapshot(self) -> Any:
        return self.probe.weights()


class Engine:
    """Runs one step: place, loss, gradient, clip, decay, hand on, update."""

    def __init__(self, motion: Motion, task: Task, optimizer: Optimizer, weight_decay: float, clip: float | None):
        self.motion, self.task, self.optimizer = motion, task, optimizer
        self.weight_decay, self.clip = weight_decay, clip

    def step(self, batch: Any, lr: float) -> Tensor:
        """The mean loss of the batch, before the update."""
        probe = self.motion.probe
        self.motion.place()
        values, _ = self.task.losses(probe.module, batch)
        loss = values.mean()
        probe.backward(loss)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(probe.grad)
            probe.grad.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        if self.weight_decay:
            for stretch in probe.decayed:
                probe.grad[stretch].add_(probe.point[stretch], alpha=self.weight_decay)
        self.motion.hand_on(loss.detach(), self.weight_decay)
        for vector, grad in zip(self.motion.vectors, self.motion.grads, strict=True):
            vector.grad = grad  # again in each step: some optimizers take it away
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return loss.detach()

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
        self.motion.set_state(_below(state, "motion."))
        for k, vector in enumerate(self.motion.vectors):
            vector.copy_(probe.native(state[f"vector.{k}"]))
            self._remember(vector, _below(state, f"optimizer.{k}."))
        for name, buffer in probe.module.named_buffers():
            buffer.copy_(state[f"buffer.{name}"])
        probe.moved()

    def checkpoint(self, epoch: int) -> Checkpoint:
        """Where plain training stands, with the optimizer's state."""
        memory = self._memory(self.motion.vectors[0])
        return Checkpoint(self.motion.probe.weights(), memory, type(self.optimizer).__name__, epoch)

    def restore(self, start: Checkpoint) -> None:
        """Take on the optimizer's state of a checkpoint; the weights are the probe's business."""
        kind = type(self.optimizer).__name__
        if start.kind != kind:
            raise ThalwegError(
                f"the start was kept with the state of {start.kind}, and cannot be gone on from with {kind}: use the same "
                "optimizer, or start from its .weights alone"
            )
        self._remember(self.motion.vectors[0], start.optimizer)

    def _memory(self, vector: Tensor) -> dict[str, Tensor]:
        """What the optimizer knows of a vector, in the order of the layout."""
        known = {key: value for key, value in self.optimizer.state[vector].items() if isinstance(value, Tensor)}
        return {key: self.motion.probe.canonical(v) if v.shape == vector.shape else v.clone() for key, v in known.items()}

    def _remember(self, vector: Tensor, memory: Mapping[str, Tensor]) -> None:
        if memory:
            native = self.motion.probe.native
            self.optimizer.state[vector] = {k: native(v) if v.shape == vector.shape else v.clone() for k, v in memory.items()}


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def make_optimizer(vectors: Sequence[Tensor], momentum: float, factory: OptimizerFactory | None) -> Optimizer:
    """SGD with momentum, or what the user's factory makes of the vectors."""
    if factory is None:
        whole = vectors[0].is_cuda or vectors[0].dtype in (torch.float32, torch.float64)
        return SGD(vectors, lr=0.0, momentum=momentum, fused=whole)  # on the CPU, fused and half precision skip updates
    optimizer = factory(vectors)
    if not isinstance(optimizer, Optimizer):
        raise ThalwegError(f"optimizer= must be a function that turns vectors into a torch optimizer; it gave {optimizer!r}")
    moved = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if sorted(moved) != sorted(map(id, vectors)):
        raise ThalwegError("the optimizer must move exactly the vectors it is given, not a module's own parameters")
    if any(group.get("weight_decay") for group in optimizer.param_groups):
        raise ThalwegError(
            "the optimizer must not decay by itself, since decay acts at the point of the curve: give weight_decay= to the "
            "call and weight_decay=0 to the optimizer"
        )
    return optimizer
