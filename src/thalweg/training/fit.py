"""Train one network."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..batches import Batches
from ..errors import ThalwegError, several, whole
from ..runtime.compute import Call, Compute, StoredResult
from ..store import files
from ..store.files import WEIGHTS
from ..tasks import Task
from ..weightspace.checkpoint import Checkpoint
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights
from .loop import Observer, Settings, train
from .motion import Network
from .optimizers import OptimizerFactory, Schedule

if TYPE_CHECKING:
    from ..runtime.accelerated import Accelerated
    from ..runtime.compute import Processes
    from ..store.runs import Run


def fit(
    module: nn.Module,
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
    keep: Collection[int] = (),
    compute: Compute | None = None,
    run: "Run | str | Path | None" = None,
    progress: bool | None = None,
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
        lr: The learning rate, decayed as in the paper's code unless `schedule` is given.
        momentum: Momentum of the default SGD.
        weight_decay: L2 penalty: adds `weight_decay * weights` to the gradient.
        schedule: Maps the iteration, counted from 1, to a learning rate. Replaces `lr`.
        optimizer: Makes a torch optimizer from flat vectors; it must not apply weight decay itself. SGD by default.
        clip: Clip the gradient of the data loss to this norm.
        seed: Seed of shuffling, augmentation and dropout. The caller's random state is left untouched.
        keep: Epochs after which to keep a checkpoint (weights and optimizer state) in `.kept[epoch]` of the result.
        compute: How to compute; see `Compute`.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.

    Returns:
        The trained weights.

    Raises:
        Diverged: If the loss stops being finite.

    Warns:
        Stalled: If the network still answers the same for every input after a tenth of the training.
    """
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed)
    call = Call(compute or Compute(), progress)
    keep, epochs = several(keep, "keep", whole), settings.epochs
    odd = [epoch for epoch in keep if not 1 <= epoch <= epochs]
    if odd:
        raise ThalwegError(f"keep names epochs between 1 and {epochs}, the length of the run; got {odd[0]!r}")

    def trained(held: "Run | None") -> Weights:
        keeper, motion = _Keeper(keep, held, call.processes), Network(Probe(module, None, call.compute))
        train(motion, task, batches, settings, call, "training", keeper, run=held)
        found = motion.probe.weights({"by": "fit", "epochs": epochs, "seed": settings.seed})
        return replace(found, kept=keeper.kept)

    def load(folder: Path) -> Weights:
        kept = {epoch: Checkpoint.load(_kept_file(folder, epoch)) for epoch in sorted(keep)}
        return replace(Weights.load(folder / WEIGHTS), kept=kept)

    arguments = {
        "settings": settings,
        "module": module,
        "task": task,
        "batches": batches,
        "keep": keep,
        "compute": call.compute,
    }
    file = StoredResult(WEIGHTS, load, lambda made, folder: replace(made, kept={}).save(folder / WEIGHTS))
    return call.resumed(run, "fit", arguments, file, trained).to(next(module.parameters()).device)


class _Keeper(Observer):
    """Keeps the requested epochs, with the optimizer state."""

    def __init__(self, epochs: Collection[int], run: "Run | None", processes: "Processes"):
        self.epochs, self.run, self.processes = epochs, run, processes
        self.kept: dict[int, Checkpoint] = {}

    def begin(self, step: "Accelerated", steps: int) -> None:
        self.step = step

    def after_epoch(self, epoch: int) -> None:
        if epoch in self.epochs:
            self.kept[epoch] = self.step.checkpoint(epoch)
            if self.run is not None:
                self.kept[epoch].save(_kept_file(self.run.folder, epoch), apart=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"kept": sorted(self.kept)}

    def set_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        folder = self.run.folder if self.run is not None else Path()
        self.kept = self.processes.once(
            lambda: {e: Checkpoint.load(_kept_file(folder, e)) for e in sorted(about["kept"])}
        )


def _kept_file(folder: Path, epoch: int) -> Path:
    return files.no_link(folder / f"kept-{epoch:d}.safetensors")
