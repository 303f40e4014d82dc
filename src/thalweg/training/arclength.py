"""The arc-length loss, equation (1) of the paper: the mean over the length of the curve."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from ..weightspace.weights import inner_products
from .step import Bends

MIDDLES = tuple((k + 0.5) / 512 for k in range(512))  # the values of t that represent the whole curve
SMOOTHING = 0.95  # of the running mean of the loss, a baseline that lowers the variance of the gradient


class ArclengthBends(Bends):
    """Equation (1): t is drawn from q(t), proportional to the speed, and the gradient includes that of q.

    The integral over t is a sum over the midpoints of equal cells, so q is a distribution over finitely many t. The
    gradient for bend i is c_i grad L + (L - m) sum_j (d_i d_j / s^2 - E_q[d_i d_j / s^2]) w_j, with d the derivatives
    of the coefficients, s the speed, and m any number that does not depend on t. All of it stays on the device.
    """

    linear = False

    def __init__(self, probe: Probe, curve: Curve, seed: int = 0, grid: Sequence[float] = MIDDLES):
        super().__init__(probe, curve, seed)
        self.position_size = 1
        self.grid = torch.tensor(grid, dtype=torch.float64, device="cpu").to(probe.device)
        self.rates = torch.stack(
            [torch.as_tensor(curve.derivatives(t), dtype=torch.float64, device="cpu") for t in grid]
        ).to(probe.device)
        self.table = torch.stack([curve.checked_coefficients(t) for t in grid]).to(probe.device)
        self.grid_t = torch.zeros_like(self.grid[0])
        self.mean = torch.full((), torch.nan, dtype=self.points.dtype, device=probe.device)  # of the loss; none yet
        self.averaged = (self.mean,)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"mean": self.mean}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        super().set_state(state)
        self.mean.copy_(state["mean"])

    def draw(self) -> Sequence[float]:
        return [self.uniform()]

    def set_point(self, position: Tensor) -> None:
        self.measure()
        pick = torch.searchsorted(self.q.cumsum(0), position * self.q.sum())
        self.set_grid_point(pick.clamp(max=len(self.grid) - 1))

    def measure(self) -> None:
        """q, and what each t of the grid contributes to the gradient, for the curve as it is now."""
        inner, rates = inner_products(list(self.points), self.probe.layout), self.rates
        squares = ((rates[:, 1:] @ inner) * rates[:, 1:]).sum(1).clamp_min(1e-30)
        self.q = squares.sqrt() / squares.sqrt().sum()
        scores = rates[:, :, None] * rates[:, None, :] / squares[:, None, None]
        self.scores = scores - torch.einsum("t,tij->ij", self.q, scores)

    def set_grid_point(self, index: Tensor) -> None:
        """Place the network at a t of the grid; `index` is a tensor of one element."""
        self.grid_t.copy_(self.grid[index][0])
        self.t = self.grid_t
        self.score = self.scores[index][0, 1:-1].to(self.points.dtype)
        self.write_phi(self.table[index][0])

    def chain_rule(self, loss: Tensor, weight_decay: float) -> None:
        super().chain_rule(loss, weight_decay)
        value = loss + 0.5 * weight_decay * self.probe.layout.total(self.probe.point.square().sum())
        mean = torch.where(self.mean.isnan(), value, self.mean)
        self.gradient.addmm_(self.score * (value - mean), self.points)
        self.mean.copy_(SMOOTHING * mean + (1 - SMOOTHING) * value)
