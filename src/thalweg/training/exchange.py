"""What the processes of a run tell each other in every step, in one message."""

import torch
from torch import Tensor

from ..crew import Crew
from ..weightspace.probe import Probe


class Exchange:
    """Makes everybody's gradient that of the whole batch; batch-norm statistics, which parameters were reached, and the loss
    travel with it, so that all processes stay the same.

    gradient: where each process has its own before, and all have the same after.
    """

    def __init__(self, crew: Crew, probe: Probe, gradient: Tensor):
        self.crew, self.probe = crew, probe
        statistics = [buffer for buffer in probe.module.buffers() if buffer.is_floating_point()]
        self.reached = torch.zeros(len(probe.layout.names), dtype=gradient.dtype, device=gradient.device)
        self.parts = [gradient, *statistics, self.reached]
        sizes = [part.numel() for part in self.parts]
        self.message = torch.empty(sum(sizes) + 2, dtype=gradient.dtype, device=gradient.device)
        *self.pieces, self.last = self.message.split([*sizes, 2])

    def __call__(self, loss: Tensor, number: int) -> Tensor:
        """The mean loss of the whole batch, of which `number` examples are this process's."""
        self.reached.fill_(1)
        for k in (k for k, name in enumerate(self.probe.layout.names) if name in self.probe.unreached):
            self.reached[k] = 0
        for piece, part in zip(self.pieces, self.parts, strict=True):
            piece.copy_(part.reshape(-1))
        self.last[0], self.last[1] = loss, 1.0
        self.message.mul_(number)
        self.crew.add(self.message)
        self.message.div_(self.last[1].clone())
        for piece, part in zip(self.pieces, self.parts, strict=True):
            part.copy_(piece.reshape(part.shape))
        if self.probe.unreached:
            names = zip(self.probe.layout.names, self.reached.tolist(), strict=True)
            self.probe.remember_reached({name for name, share in names if not share} & self.probe.unreached)
        return self.last[0].clone()
