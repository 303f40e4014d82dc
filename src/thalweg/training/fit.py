"""Train one network."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..batches import Batches
from ..errors import ThalwegError, number_list, whole_number
from ..runtime.compute import Call, Compute, StoredResult
from ..store import files
from ..tasks import Task
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.probe import probe_at
from ..weightspace.weights import Weights
from .loop import Observer, OnEpoch, Settings, train
from .sgd import OptimizerFactory, Schedule
from .step import Network

if TYPE_CHECKING:
    from ..runtime.accelerated import Accelerated
    from ..store.runs import Run
    from .walk_methods import Method


def fit(
    module: nn.Module,
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
    seed: int = 0,
    keep: Collection[int] = (),
    compute: Compute | None = None,
    run: "Run | str | Path | None" = None,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
) -> Weights:
    """Train a network and return its weights; the module itself is left as it was.

    Examples:
        >>> import torch, thalweg as tw
        >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
        >>> weights = tw.fit(nn.Linear(1, 1), tw.regression(), [(x, 3 * x + 1)], epochs=200, lr=0.1)
        >>> [round(value, 3) for value in weights.vector.tolist()]
        [3.0, 1.0]

    Args:
        module: The network. Training starts from its weights, on its device.
        task: The loss to minimise.
        batches: The training data, an iterable of batches with a length.
        epochs: Passes over `batches`.
        lr: The learning rate, decayed as in the paper's code unless `schedule` is given. If neither is, the rate is the
            optimizer's own, which stays constant.
        momentum: Momentum of the default SGD.
        weight_decay: L2 penalty: adds `weight_decay * weights` to the gradient.
        schedule: Maps the iteration, counted from 1, to a learning rate, and replaces `lr`; or `WarmupCosine(lr_max,
            warmup)`, which without `lr_max` scales `lr` or the optimizer's own rate.
        optimizer: A torch optimizer class, a partial of one, or a function of named parameters, a list of pairs, that
            returns an optimizer or parameter groups for SGD; SGD with momentum by default. The learning rate is that of
            the first group; others keep the ratio of their own rate to it. It may have a weight decay of its own
            instead of `weight_decay`.
        clip: Clip the gradient of the data loss to this norm.
        accumulate: Batches per update, whose gradients are averaged over all their examples or tokens before they are
            clipped. Iterations, which schedules and cycles count, are updates.
        seed: Seed of shuffling, augmentation and dropout. The caller's random state is left untouched.
        keep: Epochs after which to keep a checkpoint (weights and optimizer state) in `.kept[epoch]` of the result.
        compute: How to compute; see `Compute`.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
        on_epoch: Called after every epoch with a dict: `epoch`, `iteration`, `loss` (its mean over iterations), `rate`,
            and `seconds`. Random numbers that it draws do not affect the training. A resumed run calls it for the
            remaining epochs; with several processes, only rank 0 calls it.

    Returns:
        The trained weights.

    Raises:
        Diverged: If the loss stops being finite.

    Warns:
        Stalled: If the network still predicts the same for every input after a tenth of the training.
    """
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, on_epoch, accumulate)
    call = Call.of(compute, progress)
    keep, epochs = number_list(keep, "keep", whole_number), settings.epochs
    if odd := [epoch for epoch in keep if not 1 <= epoch <= epochs]:
        raise ThalwegError(f"keep must list epochs from 1 to {epochs}, the length of the run; got {odd[0]!r}")

    def trained(held: "Run | None") -> Weights:
        keeper, trainable = _Keeper(keep, held, call), Network(probe_at(module, None, call.compute, share=True))
        train(trainable, task, batches, settings, call, "training", keeper, run=held)
        return replace(
            trainable.probe.weights({"by": "fit", "epochs": epochs, "seed": settings.seed}), kept=keeper.kept
        )

    def load(folder: Path) -> Weights:
        return replace(Weights.load(folder / files.WEIGHTS), kept=_load_kept(folder, keep))

    common = {"settings": settings, "module": module, "task": task, "batches": batches, "compute": call.compute}
    stored = StoredResult(files.WEIGHTS, load, lambda made, folder: replace(made, kept={}).save(folder / files.WEIGHTS))
    return call.resumed(run, "fit", {**common, "keep": keep}, stored, trained).to(next(module.parameters()).device)


class _Keeper(Observer):
    """Keeps the requested epochs, with the optimizer state."""

    def __init__(self, epochs: Collection[int], run: "Run | None", call: Call):
        self.epochs, self.run, self.call = epochs, run, call
        self.kept: dict[int, Checkpoint] = {}

    def begin(self, step: "Accelerated", steps: int) -> None:
        self.step = step

    def after_epoch(self, epoch: int) -> None:
        if epoch in self.epochs:
            self.kept[epoch] = self.step.checkpoint(epoch)
            if self.run is not None:
                self.kept[epoch].save(_kept_file(self.run.folder, epoch), apart=True)

    def state(self) -> dict[str, Any]:
        return {"kept": sorted(self.kept)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        folder = self.run.folder if self.run is not None else Path()
        self.kept = self.call.processes.once(lambda: _load_kept(folder, state["kept"]))


def _load_kept(folder: Path, epochs: Collection[int]) -> dict[int, Checkpoint]:
    return {epoch: Checkpoint.load(_kept_file(folder, epoch)) for epoch in sorted(epochs)}


def _kept_file(folder: Path, epoch: int) -> Path:
    return files.no_link(folder / f"kept-{epoch:d}.safetensors")
