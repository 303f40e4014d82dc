"""The control points of a curve on another device than the network, or in another precision."""

from typing import Any

import torch
from torch import Tensor

from ..training.step import Bends, pieces
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe


class StreamedBends(Bends):
    """phi(t) and the gradient are copied between both places piece by piece. The ends keep their precision; the bends
    and their optimizer state are at least in float32, since a smaller type would lose small steps.

    Args:
        where: The device of the control points.
    """

    linear = False

    def __init__(self, probe: Probe, curve: Curve, seed: int, where: torch.device):
        self.where, self.on_device = where, where == probe.device
        super().__init__(probe, curve, seed)

    def load_points(self) -> None:
        self.ends = [self._in_order(end.vector).to(self.where) for end in (self.curve.start, self.curve.end)]
        wide = torch.promote_types(self.probe.layout.dtype, torch.float32)
        bends = torch.empty(len(self.curve.bends), self.probe.layout.size, dtype=wide, device=self.where)
        for row, bend in zip(bends, self.curve.bends, strict=True):
            row.copy_(self._in_order(bend.vector))
        self.set_vectors(bends)

    def set_point(self, position: Tensor) -> None:
        self.coefficients = position.to(self.block)
        for piece in pieces(slice(0, self.probe.layout.size)):
            total = self.coefficients[1:-1] @ self.block[:, piece]
            for end, c in zip(self.ends, (self.coefficients[0], self.coefficients[-1]), strict=True):
                total.add_(end[piece].to(total) * c)
            self.probe.point[piece].copy_(total)
        self.probe.sync_parameters()

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        for piece in pieces(slice(0, self.probe.layout.size)):
            torch.mul(
                self.probe.grad[None, piece].to(self.block), self.coefficients[1:-1, None], out=self.gradient[:, piece]
            )

    def _in_order(self, vector: Tensor) -> Tensor:
        return vector if self.probe.in_layout_order else self.probe.from_layout_order(vector)


def streamed(kind: type[Bends]) -> Any:
    """Bends that draw t as `kind` does, and are moved and updated as streamed ones are."""
    return type(f"Streamed{kind.__name__}", (StreamedBends, kind), {})
