"""Train the bends of a curve so that the loss is low all along it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from torch import nn

from ..batches import Batches
from ..errors import ThalwegError
from ..runtime.compute import Call, Compute, StoredResult
from ..store.files import CURVE
from ..tasks import Task
from ..weightspace.curves import Curve
from ..weightspace.probe import probe_at
from .loop import Observer, OnEpoch, Settings, train
from .sgd import OptimizerFactory, Schedule

if TYPE_CHECKING:
    from ..store.runs import Run
    from .walk_methods import Method

CurveLoss = Literal["uniform", "arclength"]


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
    schedule: "Schedule | Method | None" = None,
    optimizer: OptimizerFactory | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    decay_at: Literal["bends", "phi"] = "bends",
    seed: int = 0,
    loss: CurveLoss = "uniform",
    same_t: bool = False,
    compute: Compute | None = None,
    run: "Run | str | Path | None" = None,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
) -> Curve:
    """Train the bends of a curve so that the loss is low all along it.

    Examples:
        >>> import torch, thalweg as tw
        >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        >>> batches = [(x, x.sum(1, keepdim=True))]
        >>> module = nn.Linear(3, 1)
        >>> ends = [tw.Weights.of(nn.Linear(3, 1)) for _ in range(2)]
        >>> curve = tw.connect(module, tw.Bezier(*ends), tw.regression(), batches, epochs=50, lr=0.02)
        >>> curve.start is ends[0]
        True

    Args:
        module: A network of the same architecture as the ends. Its weights are ignored and never changed; training runs
            on its device.
        curve: Where to start. Its bends lie on the straight line at first.
        task: The loss to minimise.
        batches: The training data, an iterable of batches with a length.
        epochs: Passes over `batches`.
        lr: The learning rate, decayed as in the paper's code unless `schedule` is given. If neither is, the rate is the
            optimizer's own, which stays constant. A step moves phi(t) c(t)² times as far as it would move a
            network, where c is the coefficient of the bend: on average 2/15 for a Bezier curve with one bend, 1/3 for
            such a chain. A rate that suits a network is therefore not too high, and may be too low for few epochs.
        momentum: Momentum of the default SGD.
        weight_decay: L2 penalty, applied at the point phi(t) of the curve; see `optimizer` for decay of the bends.
        schedule: Maps the iteration, counted from 1, to a learning rate, and replaces `lr`; or `WarmupCosine(lr_max,
            warmup)`, which without `lr_max` scales `lr` or the optimizer's own rate.
        optimizer: A torch optimizer class, a partial of one, or a function of named parameters, a list of pairs, that
            returns an optimizer or parameter groups for SGD; SGD with momentum by default. The learning rate is that of
            the first group; others keep the ratio of their own rate to it. It may have a weight decay of its own
            instead of `weight_decay`; see `decay_at`.
        clip: Clip the gradient of the data loss with respect to the bends to this norm.
        accumulate: Batches per update, whose gradients are averaged over all their examples or tokens before they are
            clipped; all see the same t. Iterations, which schedules and cycles count, are updates.
        decay_at: Where the optimizer's own weight decay acts: on the bends, as torch would have it, or at phi(t),
            passed to each bend in proportion to its coefficient; decoupled if the optimizer's is.
        seed: Seed of the sampled t, shuffling, augmentation and dropout. The caller's random state is left untouched.
        loss: "uniform" minimises the mean over t, equation (2) of the paper; "arclength" the mean over the length of
            the curve, equation (1).
        same_t: With several processes, use the same t in all of them in a step, instead of one each.
        compute: How to compute; see `Compute`.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
        on_epoch: Called after every epoch with a dict: `epoch`, `iteration`, `loss` and `t` (means over iterations),
            `rate` and `seconds`. Nothing that it draws affects the training, and a resumed run calls it for the epochs
            that remain. Of several processes, the first calls it.

    Returns:
        The trained curve. The one passed in is left as it was.

    Raises:
        ThalwegError: If the curve has nothing to train, or does not fit the network.
        Diverged: If the loss stops being finite.
    """
    if loss not in get_args(CurveLoss):
        raise ThalwegError(f"loss must be {' or '.join(map(repr, get_args(CurveLoss)))}; got {loss!r}")
    if not isinstance(curve, Curve):
        raise ThalwegError(f"connect trains a curve, such as Bezier(a, b); got {type(curve).__name__}")
    if not curve.bends:
        raise ThalwegError("a Segment has nothing to train: scan it, or connect a Bezier or a PolyChain instead")
    for t in (0.0, 1.0):
        curve.checked_coefficients(t)
    settings = Settings(
        epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, on_epoch, accumulate, decay_at
    )
    call = Call.of(compute, progress)

    def trained(held: "Run | None") -> Curve:
        trainable = call.bends(probe_at(module, curve.start, call.compute, share=True), curve, settings.seed, loss)
        trainable.same_t = same_t
        train(trainable, task, batches, settings, call, f"connecting ({type(curve).__name__})", Observer(), run=held)
        return trainable.snapshot()

    return call.resumed(
        run,
        "connect",
        {
            "settings": settings,
            "module": module,
            "task": task,
            "batches": batches,
            "curve": curve,
            "loss": loss,
            "same_t": same_t,
            "compute": call.compute,
        },
        StoredResult.of(CURVE, type(curve)),
        trained,
    ).to(curve.start.vector.device)
