"""Train one network."""

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from ..batches import Batches
from ..errors import ThalwegError
from ..tasks import Task
from ..weightspace.probe import Probe
from ..weightspace.weights import Checkpoint, Weights
from .engine import Engine, Network, OptimizerFactory
from .loop import Observer, Settings, train
from .schedules import Schedule


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
    progress: bool | None = None,
) -> Weights:
    """Train a network from where it stands and give its weights; the module itself is left as it was.

    >>> import torch, thalweg as tw
    >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> weights = tw.fit(nn.Linear(1, 1), tw.regression(), [(x, 3 * x + 1)], epochs=200, lr=0.1)
    >>> [round(value, 3) for value in weights.vector.tolist()]
    [3.0, 1.0]

    module: where training starts, and on which device it happens.
    batches: an iterable of batches with a length, gone through once per epoch.
    lr: the learning rate, decayed as in the paper's code unless `schedule` says otherwise.
    weight_decay: its part of the gradient is `weight_decay * weights`, of the loss half that times their square.
    schedule: iteration, counted from 1 -> learning rate.
    optimizer: flat vectors -> a torch optimizer without decay of its own; SGD with `momentum` if not given.
    clip: the largest norm the gradient of the data loss may have.
    seed: decides shuffling, augmentation and dropout; the caller's random state is untouched.
    keep: epochs after which to keep the weights with the optimizer's state, in `.kept[epoch]` of the result.
    progress: True or False to force or forbid the bar; otherwise it shows on a terminal.
    """
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, progress)
    odd = [epoch for epoch in keep if epoch not in range(1, epochs + 1)]
    if odd:
        raise ThalwegError(f"keep names epochs between 1 and {epochs}, the length of the run; got {odd[0]!r}")
    keeper, motion = _Keeper(keep), Network(Probe(module))
    train(motion, task, batches, settings, "training", keeper)
    made = {"by": "fit", "epochs": epochs, "seed": seed}
    return replace(motion.probe.weights(made), kept=keeper.kept)


class _Keeper(Observer):
    def __init__(self, epochs: Collection[int]):
        self.epochs = epochs
        self.kept: dict[int, Checkpoint] = {}

    def begin(self, engine: Engine, steps: int) -> None:
        self.engine = engine

    def after_epoch(self, epoch: int) -> None:
        if epoch in self.epochs:
            self.kept[epoch] = self.engine.checkpoint(epoch)
