"""Train the bends of a curve so that the loss is low all along it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ..batches import Batches
from ..crew import Crew
from ..errors import ThalwegError
from ..evaluation.question import Facts, asked, curve_question
from ..modes import Mode
from ..store.runs import CURVE, Run, opened
from ..tasks import Task
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from ..weightspace.weights import BLOCK, inner_products
from .engine import OptimizerFactory, kernels, rows
from .loop import Settings, train
from .motion import Motion
from .question import training_question
from .schedules import Schedule

MIDDLES = tuple((k + 0.5) / 512 for k in range(512))  # the t that stand for the whole curve in the arc-length loss
OTHER_STREAM = 0x7E41  # t must not be what a task draws from torch's own generator under the same seed
MEMORY = 0.95  # of the running mean of the loss, which lowers the variance of that loss's gradient


def connect(
    module: nn.Module,
    curve: Curve,
    task: Task,
    batches: Batches,
    *,
    epochs: int,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    optimizer: OptimizerFactory | None = None,
    clip: float | None = None,
    seed: int = 0,
    loss: Literal["uniform", "arclength"] = "uniform",
    same_t: bool = False,
    mode: Mode | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Curve:
    """Train the bends of a curve and give the trained curve; its ends, and the curve passed in, stay as they are.

    >>> import thalweg as tw
    >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> batches = [(x, x.sum(1, keepdim=True))]
    >>> module = nn.Linear(3, 1)
    >>> ends = [tw.Weights.of(nn.Linear(3, 1)) for _ in range(2)]
    >>> curve = tw.connect(module, tw.Bezier(*ends), tw.regression(), batches, epochs=50, lr=0.02)
    >>> curve.start is ends[0]
    True

    module: any network of the ends' kind; only its form matters, and the device it is on.
    curve: where to start; its bends lie on the straight line at first.
    loss: "uniform", the mean over t, loss (2) of the paper, or "arclength", the mean over the curve's length, loss (1).
    same_t: where several processes train it together (`crew.join`), one t for all of them in a step, not one each.
    weight_decay: acts at the point phi(t) of the curve.
    The other arguments are those of `fit`.
    """
    if loss not in ("uniform", "arclength"):
        raise ThalwegError(f"loss must be 'uniform' or 'arclength'; got {loss!r}")
    _check_trainable(curve)
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, mode or Mode(), progress)

    def question() -> Facts:
        moving = [bend.vector for bend in curve.bends]
        trained = training_question(settings, module, curve.start, task, batches, moving)
        return {**trained, **curve_question(curve), "loss": loss, "same_t": same_t}

    about = asked(run, question)  # before the training probe is made, so that two never lie in memory at once
    motion = _motion(Probe(module, curve.start, settings.mode), curve, settings.seed, loss, settings.mode)
    motion.stand(same_t or Crew.present.size == 1)
    with opened(run, "connect", about, CURVE) as held:
        if Crew.present.first_does(lambda: held is not None and (held.folder / CURVE).is_file()):
            made = Crew.present.first_does(lambda: type(curve).load(held.folder / CURVE))  # type: ignore[union-attr]
            return made.to(curve.start.vector.device)
        train(motion, task, batches, settings, f"connecting ({type(curve).__name__})", run=held)
        found = motion.snapshot()
        if held is not None:
            held.finish(lambda folder: found.save(folder / CURVE))
    return found


class Bends(Motion):
    """The bends move; the probe stands at phi(t) for one t per step, drawn from U(0, 1)."""

    def __init__(self, probe: Probe, curve: Curve, seed: int = 0):
        self.probe, self.curve, self.controls = probe, curve, len(curve.points)
        self.points = rows(len(curve.points), probe.layout.size, like=probe.point)
        for row, point in zip(self.points, curve.points, strict=True):
            row.copy_(probe.native(point.vector))
        self.hold(self.points[1:-1], torch.zeros_like(self.points[1:-1]))
        self.generator = torch.Generator().manual_seed(seed + OTHER_STREAM)

    def stand(self, shared: bool) -> None:
        """At one point, or every process at one of its own."""
        self.shared = shared

    def uniform(self) -> float:
        """One for each process that stands elsewhere, so that all know where the others' come from."""
        each = 1 if self.shared else Crew.present.size
        drawn = [float(torch.rand((), generator=self.generator, dtype=torch.float64)) for _ in range(each)]
        return drawn[Crew.present.rank % each]

    def draw(self) -> Sequence[float]:
        self.t = self.uniform()
        return self.curve.checked_coefficients(self.t).tolist()

    def place(self, controls: Tensor) -> None:
        """Write phi(t) into the probe in one pass over the control points."""
        self.coefficients = controls
        if self.points.is_cuda and self.points.dtype == torch.float32 and kernels():
            kernels().combine(self.points, controls, self.probe.point)
        else:
            torch.mv(self.points.T, controls.to(self.points.dtype), out=self.probe.point)
        self.probe.moved()

    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        torch.outer(self.coefficients[1:-1].to(self.points.dtype), self.probe.grad, out=self.gradient)

    def decay(self, weight_decay: float) -> None:
        rates = weight_decay * self.coefficients[1:-1].to(self.gradient.dtype)
        for stretch in self.probe.decayed:
            for piece in pieces(stretch):
                self.gradient[:, piece].addr_(rates, self.probe.point[piece].to(self.gradient))

    def state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])

    def snapshot(self) -> Curve:
        return self.curve.with_bends([self.probe.canonical(vector).to(self.curve.start.vector) for vector in self.vectors])


class StreamedBends(Bends):
    """The same with the control points somewhere else than the probe, or in another precision: phi(t) and the gradient go from
    the one to the other piece by piece. The ends stay as they came; the bends and what the optimizer keeps of them are at least
    in float32, since a small step would be lost in less.

    device: where the control points are to lie.
    """

    fusible = False

    def __init__(self, probe: Probe, curve: Curve, seed: int, device: torch.device):
        self.probe, self.curve, self.controls = probe, curve, len(curve.points)
        self.recordable = device == probe.device
        self.ends = [self._in_order(end.vector).to(device) for end in (curve.start, curve.end)]
        wide = torch.promote_types(probe.layout.dtype, torch.float32)
        bends = torch.empty(len(curve.bends), probe.layout.size, dtype=wide, device=device)
        for row, bend in zip(bends, curve.bends, strict=True):
            row.copy_(self._in_order(bend.vector))
        self.hold(bends, torch.zeros_like(bends))
        self.generator = torch.Generator().manual_seed(seed + OTHER_STREAM)

    def place(self, controls: Tensor) -> None:
        self.coefficients = controls.to(self.block)
        for piece in pieces(slice(0, self.probe.layout.size)):
            total = self.coefficients[1:-1] @ self.block[:, piece]
            for end, c in zip(self.ends, (self.coefficients[0], self.coefficients[-1]), strict=True):
                total.add_(end[piece].to(total) * c)
            self.probe.point[piece].copy_(total)
        self.probe.moved()

    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        for piece in pieces(slice(0, self.probe.layout.size)):
            torch.outer(self.coefficients[1:-1], self.probe.grad[piece].to(self.block), out=self.gradient[:, piece])

    def _in_order(self, vector: Tensor) -> Tensor:
        return vector if self.probe.in_order else self.probe.native(vector)


class ArclengthBends(Bends):
    """Loss (1): t is drawn from q(t), proportional to the speed, and the gradient goes through q as well.

    The integral over t is a sum over the middles of equal cells, so q is a distribution over finitely many t. The
    gradient for bend i is c_i grad L + (L - m) sum_j (d_i d_j / s^2 - E_q[d_i d_j / s^2]) w_j, with d the derivatives
    of the coefficients, s the speed, and m any number that does not depend on t. All of it stays on the device.
    """

    fusible = False

    def __init__(self, probe: Probe, curve: Curve, seed: int = 0, grid: Sequence[float] = MIDDLES):
        super().__init__(probe, curve, seed)
        self.controls = 1
        self.grid = torch.tensor(grid, dtype=torch.float64).to(probe.device)
        self.rates = torch.stack([torch.as_tensor(curve.derivatives(t), dtype=torch.float64) for t in grid]).to(probe.device)
        self.table = torch.stack([curve.checked_coefficients(t) for t in grid]).to(probe.device)
        self.place_on_grid = torch.zeros_like(self.grid[0])
        self.mean = torch.full((), torch.nan, dtype=self.points.dtype, device=probe.device)  # of the loss; none yet

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"mean": self.mean}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        super().set_state(state)
        self.mean.copy_(state["mean"])

    def stand(self, shared: bool) -> None:
        super().stand(shared)
        self.averaged = () if shared else (self.mean,)

    def draw(self) -> Sequence[float]:
        return [self.uniform()]

    def place(self, controls: Tensor) -> None:
        self.measure()
        pick = torch.searchsorted(self.q.cumsum(0), controls * self.q.sum())
        self.stand_at(pick.clamp(max=len(self.grid) - 1))

    def measure(self) -> None:
        """q, and what each t of the grid adds to the gradient, for the curve as it is now."""
        inner, rates = inner_products(list(self.points)), self.rates
        squares = ((rates[:, 1:] @ inner) * rates[:, 1:]).sum(1).clamp_min(1e-30)
        self.q = squares.sqrt() / squares.sqrt().sum()
        scores = rates[:, :, None] * rates[:, None, :] / squares[:, None, None]
        self.scores = scores - torch.einsum("t,tij->ij", self.q, scores)

    def stand_at(self, index: Tensor) -> None:
        """index: of the grid, as a tensor of one element."""
        self.place_on_grid.copy_(self.grid[index][0])
        self.t = self.place_on_grid
        self.score = self.scores[index][0, 1:-1].to(self.points.dtype)
        super().place(self.table[index][0])

    def hand_on(self, loss: Tensor, weight_decay: float) -> None:
        super().hand_on(loss, weight_decay)
        value = loss + 0.5 * weight_decay * self.probe.point.square().sum()
        mean = torch.where(self.mean.isnan(), value, self.mean)
        self.gradient.addmm_(self.score * (value - mean), self.points)
        self.mean.copy_(MEMORY * mean + (1 - MEMORY) * value)


def pieces(stretch: slice) -> Iterator[slice]:
    """Of at most BLOCK entries each, so that a copy of one is small."""
    return (slice(start, min(start + BLOCK, stretch.stop)) for start in range(stretch.start, stretch.stop, BLOCK))


def _motion(probe: Probe, curve: Curve, seed: int, loss: str, mode: Mode) -> Bends:
    if loss == "arclength" and mode.stream:
        raise ThalwegError("the arc-length loss needs the whole curve on the network's device: use 'uniform', or no stream")
    half = probe.layout.dtype in (torch.float16, torch.bfloat16)
    if loss == "arclength" and half:
        raise ThalwegError(
            f"the arc-length loss would lose small steps in {probe.layout.dtype}: use 'uniform', or a float32 network"
        )
    if loss == "arclength":
        return ArclengthBends(probe, curve, seed)
    if mode.stream or half:
        return StreamedBends(probe, curve, seed, torch.device("cpu") if mode.stream else probe.device)
    return Bends(probe, curve, seed)


def _check_trainable(curve: Curve) -> None:
    if not isinstance(curve, Curve):
        raise ThalwegError(f"connect trains a curve, such as Bezier(a, b); got {type(curve).__name__}")
    if not curve.bends:
        raise ThalwegError("a Segment has nothing to train: scan it, or connect a Bezier or a PolyChain instead")
    for t in (0.0, 1.0):
        curve.checked_coefficients(t)
