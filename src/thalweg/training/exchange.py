"""What the processes of a run tell each other in every step, in one message."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..crew import Crew
from ..weightspace.modules import batch_norms
from ..weightspace.probe import Probe

STATISTICS = ("running_mean", "running_var")
LOOK = 4  # steps after which wishes are looked at where looking waits for the device


class Exchange:
    """Makes everybody's gradient that of the whole batch; batch-norm statistics, which parameters were reached, the loss, and
    who wants to save or to stop travel with it, so that all processes stay the same.

    gradient: where each process has its own before, and all have the same after; `others`: tensors of which the same holds.
    """

    def __init__(self, crew: Crew, probe: Probe, gradient: Tensor, others: Sequence[Tensor] = ()):
        self.crew, self.probe, self.gradient, self.others = crew, probe, gradient, others
        dtype, device = torch.promote_types(gradient.dtype, torch.float32), gradient.device
        self.reached = torch.zeros(len(probe.layout.names), dtype=dtype, device=device)
        sizes = [part.numel() for part in self._parts()]
        self.message = torch.empty(sum(sizes) + 4, dtype=dtype, device=device)
        *self.pieces, self.last, self.wishes = self.message.split([*sizes, 2, 2])
        self.wanted = (False, False)

    def _parts(self) -> list[Tensor]:
        """Looked up each time, since a network may put other tensors in the place of its statistics."""
        statistics = [layer.get_buffer(name) for _, layer in batch_norms(self.probe.module) for name in STATISTICS]
        return [self.gradient, *self.others, *statistics, self.reached]

    def wish(self, stop: bool, save: bool) -> None:
        """What this process would like to do after the step."""
        self.wanted = stop, save

    def granted(self, step: int) -> tuple[bool, bool]:
        """What somebody wished for, the same in all processes."""
        if self.message.is_cuda and step % LOOK:
            return False, False
        first, second = (bool(value) for value in self.wishes.tolist())
        return first, second

    def __call__(self, loss: Tensor, number: int) -> Tensor:
        """The mean loss of the whole batch, of which `number` examples are this process's."""
        parts = self._parts()
        self.reached.fill_(1)
        for k in (k for k, name in enumerate(self.probe.layout.names) if name in self.probe.unreached):
            self.reached[k] = 0
        for piece, part in zip(self.pieces, parts, strict=True):
            piece.copy_(part.reshape(-1))
        self.last[0], self.last[1] = loss, 1.0
        self.message.mul_(number) if number else self.message.zero_()
        self.wishes.copy_(torch.tensor(self.wanted))
        self.crew.add(self.message)
        self.message[:-2].div_(self.last[1].clone())
        for piece, part in zip(self.pieces, parts, strict=True):
            part.copy_(piece.reshape(part.shape))
        if self.probe.unreached:
            names = zip(self.probe.layout.names, self.reached.tolist(), strict=True)
            self.probe.remember_reached({name for name, share in names if not share} & self.probe.unreached)
        return self.last[0].to(loss.dtype, copy=True)  # the next step writes here
