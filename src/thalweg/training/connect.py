"""Train the bends of a curve so that the loss is low all along it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from ..batches import Batches
from ..errors import ThalwegError
from ..runtime.compute import Call, Compute, StoredResult
from ..store.files import CURVE
from ..tasks import Task
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from .arclength import ArclengthBends
from .loop import Settings, train
from .motion import Bends, UniformBends
from .optimizers import OptimizerFactory, Schedule

if TYPE_CHECKING:
    from ..store.runs import Run


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
    compute: Compute | None = None,
    run: "Run | str | Path | None" = None,
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
    same_t: where several processes train it together (`distributed`), one t for all of them in a step, not one each.
    weight_decay: acts at the point phi(t) of the curve.
    The other arguments are those of `fit`.
    """
    if loss not in ("uniform", "arclength"):
        raise ThalwegError(f"loss must be 'uniform' or 'arclength'; got {loss!r}")
    _check_trainable(curve)
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed)
    call = Call(compute or Compute(), progress)

    def trained(held: "Run | None") -> Curve:
        motion = _bends(Probe(module, curve.start, call.compute), curve, settings.seed, loss, call)
        motion.same_t = same_t
        train(motion, task, batches, settings, call, f"connecting ({type(curve).__name__})", run=held)
        return motion.snapshot()

    arguments = {"settings": settings, "module": module, "task": task, "batches": batches, "curve": curve}
    arguments |= {"loss": loss, "same_t": same_t, "compute": call.compute}
    file = StoredResult(CURVE, lambda folder: type(curve).load(folder / CURVE), lambda made, folder: made.save(folder / CURVE))
    return call.resumed(run, "connect", arguments, file, trained).to(curve.start.vector.device)


def _bends(probe: Probe, curve: Curve, seed: int, loss: str, call: Call) -> Bends:
    half = probe.layout.dtype in (torch.float16, torch.bfloat16)
    if loss == "uniform":
        return call.streamed(probe, curve, seed) if call.compute.stream or half else UniformBends(probe, curve, seed)
    if call.compute.stream:
        raise ThalwegError("the arc-length loss needs the whole curve on the network's device: use 'uniform', or no stream")
    if half:
        raise ThalwegError(
            f"the arc-length loss would lose small steps in {probe.layout.dtype}: use 'uniform', or a float32 network"
        )
    return ArclengthBends(probe, curve, seed)


def _check_trainable(curve: Curve) -> None:
    if not isinstance(curve, Curve):
        raise ThalwegError(f"connect trains a curve, such as Bezier(a, b); got {type(curve).__name__}")
    if not curve.bends:
        raise ThalwegError("a Segment has nothing to train: scan it, or connect a Bezier or a PolyChain instead")
    for t in (0.0, 1.0):
        curve.checked_coefficients(t)
