"""Train one network."""

from torch import nn

from ..batches import Batches
from ..tasks import Task
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights
from .engine import Network, OptimizerFactory
from .loop import Settings, train
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
    progress: True or False to force or forbid the bar; otherwise it shows on a terminal.
    """
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, progress)
    motion = Network(Probe(module))
    train(motion, task, batches, settings, "training")
    return motion.probe.weights()
