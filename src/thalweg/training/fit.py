"""Train one network."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..batches import Batches
from ..crew import Crew
from ..errors import ThalwegError
from ..evaluation.question import Facts, asked
from ..modes import Mode
from ..store import facts, files
from ..store.runs import WEIGHTS, Run, opened
from ..tasks import Task
from ..values import several, whole
from ..weightspace.probe import Probe
from ..weightspace.weights import Checkpoint, Weights
from .engine import Engine, OptimizerFactory
from .loop import Settings, train
from .motion import Network
from .question import training_question
from .saver import Observer
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
    mode: Mode | None = None,
    run: Run | str | Path | None = None,
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
    schedule: iteration, counted from 1 -> learning rate; in the place of `lr`.
    optimizer: flat vectors -> a torch optimizer without decay of its own; SGD with `momentum` if not given.
    clip: the largest norm that the gradient of the data loss may have, with respect to what is trained.
    seed: decides shuffling, augmentation and dropout; the caller's random state is untouched.
    keep: epochs after which to keep the weights with the optimizer's state, in `.kept[epoch]` of the result.
    mode: how to compute; see `Mode`.
    run: a folder that keeps the state of the run, from which the same call goes on if it was stopped or killed.
    progress: True or False to force or forbid the bar; otherwise it shows on a terminal.
    """
    settings = Settings(epochs, lr, momentum, weight_decay, schedule, optimizer, clip, seed, mode or Mode(), progress)
    keep, epochs = several(keep, "keep", whole), settings.epochs
    odd = [epoch for epoch in keep if not 1 <= epoch <= epochs]
    if odd:
        raise ThalwegError(f"keep names epochs between 1 and {epochs}, the length of the run; got {odd[0]!r}")

    def question() -> Facts:
        start = Weights.of(module)
        own = {"keep": sorted(keep), "the starting network": facts.content(start.digest())}
        return own | training_question(settings, module, start, task, batches)

    about = asked(run, question)  # before the training probe is made, so that two never lie in memory at once
    motion = Network(Probe(module, None, settings.mode))
    with opened(run, "fit", about, WEIGHTS) as held:
        keeper, crew = _Keeper(keep, held), Crew.present
        if crew.first_does(lambda: held is not None and (held.folder / WEIGHTS).is_file()):
            found = crew.first_does(lambda: Weights.load(held.folder / WEIGHTS))  # type: ignore[union-attr]
            return replace(found.to(motion.probe.device), kept=keeper.read(keep))
        train(motion, task, batches, settings, "training", keeper, run=held)
        trained = motion.probe.weights({"by": "fit", "epochs": epochs, "seed": settings.seed})
        if held is not None:
            held.finish(lambda folder: trained.save(folder / WEIGHTS))
    return replace(trained, kept=keeper.kept)


class _Keeper(Observer):
    def __init__(self, epochs: Collection[int], run: Run | None):
        self.epochs, self.run = epochs, run
        self.kept: dict[int, Checkpoint] = {}

    def begin(self, engine: Engine, steps: int) -> None:
        self.engine = engine

    def after_epoch(self, epoch: int) -> None:
        if epoch in self.epochs:
            self.kept[epoch] = self.engine.checkpoint(epoch)
            if self.run is not None:
                self.kept[epoch].save(self._file(epoch), apart=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"kept": sorted(self.kept)}

    def set_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        self.kept = self.read(about["kept"])

    def read(self, epochs: Collection[int]) -> dict[int, Checkpoint]:
        return Crew.present.first_does(lambda: {epoch: Checkpoint.load(self._file(epoch)) for epoch in sorted(epochs)})

    def _file(self, epoch: int) -> Path:
        assert self.run is not None
        return files.no_link(self.run.folder / f"kept-{epoch:d}.safetensors")
