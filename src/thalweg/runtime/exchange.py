"""What ranks all-reduce in every step, in one message."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..batches import tensors_in
from ..error_notes import explained
from ..errors import ThalwegError
from ..store.files import digest
from ..training.motion import Bends
from ..training.step import Step
from ..weightspace.layout import batch_norms
from ..weightspace.probe import Probe
from .distributed import Ranks

STATISTICS = ("running_mean", "running_var")
LOOK = 4  # steps between checks for requests on a device where checking synchronizes


class Exchange:
    """All-reduces the gradient of the whole batch; batch-norm statistics, which parameters were reached, the loss, and
    requests to save or stop travel in the same message, so that all ranks stay equal.

    Args:
        gradient: Each rank's own before, the same on all ranks after.
        others: Tensors for which the same holds.
    """

    def __init__(self, ranks: Ranks, probe: Probe, gradient: Tensor, others: Sequence[Tensor] = ()):
        self.ranks, self.probe, self.gradient, self.others = ranks, probe, gradient, others
        dtype, device = torch.promote_types(gradient.dtype, torch.float32), gradient.device
        self.reached = torch.zeros(len(probe.layout.names), dtype=dtype, device=device)
        sizes = [part.numel() for part in self._parts()]
        self.message = torch.empty(sum(sizes) + 4, dtype=dtype, device=device)
        *self.pieces, self.last, self.wishes = self.message.split([*sizes, 2, 2])
        self.wanted = (False, False)

    def _parts(self) -> list[Tensor]:
        """Looked up each time, since a network may replace its statistics by other tensors."""
        statistics = [layer.get_buffer(name) for _, layer in batch_norms(self.probe.module) for name in STATISTICS]
        return [self.gradient, *self.others, *statistics, self.reached]

    def wish(self, stop: bool, save: bool) -> None:
        """What this rank would like to do after the step."""
        self.wanted = stop, save

    def granted(self, step: int) -> tuple[bool, bool]:
        """What any rank asked for; the same on all ranks."""
        if self.message.is_cuda and step % LOOK:
            return False, False
        first, second = (bool(value) for value in self.wishes.tolist())
        return first, second

    def __call__(self, loss: Tensor, number: int) -> Tensor:
        """The mean loss of the whole batch, of which this rank has `number` examples."""
        parts = self._parts()
        self.reached.fill_(1)
        for k in (k for k, name in enumerate(self.probe.layout.names) if name in self.probe.unreached):
            self.reached[k] = 0
        for piece, part in zip(self.pieces, parts, strict=True):
            piece.copy_(part.reshape(-1))
        self.last[0], self.last[1] = loss, 1.0
        self.message.mul_(number) if number else self.message.zero_()
        self.wishes.copy_(torch.tensor(self.wanted))
        self.ranks.all_reduce(self.message)
        self.message[:-2].div_(self.last[1].clone())
        for piece, part in zip(self.pieces, parts, strict=True):
            part.copy_(piece.reshape(part.shape))
        if self.probe.unreached:
            names = zip(self.probe.layout.names, self.reached.tolist(), strict=True)
            self.probe.remember_reached({name for name, share in names if not share} & self.probe.unreached)
        return self.last[0].to(loss.dtype, copy=True)  # the next step writes here


class DistributedStep:
    """A step of all ranks together: each has its part of the batch, and all make the same update.

    Ranks at the same point all-reduce the gradient there; ranks with a t of their own all-reduce the gradients of the
    bends, including weight decay. The random numbers of a step follow from the seed, the rank and `done`, the number of
    steps.
    """

    def __init__(self, step: Step, ranks: Ranks, seed: int):
        self.step, self.ranks, self.seed, self.done = step, ranks, seed, 0
        motion = step.motion
        step.partial, step.decays_early = True, step.decays_early or not motion.same_t
        if isinstance(motion, Bends) and not motion.same_t:
            motion.uniform = partial(self._own, motion.uniform)  # type: ignore[method-assign]
        gradient = step.probe.grad if motion.same_t else motion.gradient
        self.exchange = Exchange(ranks, step.probe, gradient, motion.averaged)
        self.normalised = any(batch_norms(step.probe.module))

    def _own(self, uniform: Callable[[], float]) -> float:
        """Every rank draws for all, so that each knows where the others are."""
        return [uniform() for _ in range(self.ranks.size)][self.ranks.rank]

    def __call__(self, batch: Any, lr: float) -> Tensor:
        step, motion = self.step, self.step.motion
        part, counts = self.ranks.share(batch)
        self._check(part)
        with self.ranks.apart(self.seed, self.done), explained(step.probe.module, part):
            loss = step.forward(part, step.draw())
            step.probe.backward(loss)
            loss, number = loss.detach(), step.number * counts
            if motion.same_t:
                loss = self.exchange(loss, number)
            step.chain_rule(loss)
            if not motion.same_t:
                loss = self.exchange(loss, number)
            step.update(lr)
        self.done += 1
        return loss

    def _check(self, part: Any) -> None:
        if self.normalised and max(len(tensor) for tensor in tensors_in(part) if tensor.ndim) == 1:
            raise ThalwegError(
                f"batch norm cannot learn from the single example that rank {self.ranks.rank} has of a batch: use "
                "larger batches, and leave out a short last one (drop_last=True)"
            )

    def check_buffers(self) -> None:
        """Batch-norm statistics are averaged over ranks; all other buffers must be equal by themselves."""
        buffers = self.step.probe.weights().bare().buffers
        found = {name: digest("buffer", {name: buffer}, "")[:8] for name, buffer in buffers.items()}
        self.ranks.agree({f"after an epoch, the buffer '{name}'": short for name, short in found.items()})
