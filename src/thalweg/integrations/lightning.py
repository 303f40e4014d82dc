"""A walk inside a Lightning `Trainer`."""

from math import ceil
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from ..errors import ThalwegError
from ..training.walk_methods import Method
from ..training.walk_scheduler import Collector, WalkScheduler
from ..weightspace.weights import Weights


class WalkCallback(Callback):
    """Sets the learning rate of a method in every step and collects networks:
    `Trainer(callbacks=[WalkCallback(FGE(...))])`.

    The module must have one optimizer and no scheduler of its own.

    Args:
        method: `FGE`, `Snapshot` or `SWA`.

    Attributes:
        members: The collected `Weights`.
    """

    def __init__(self, method: Method):
        self.method = method
        self.members: list[Weights] = []
        self._waiting: dict[str, Any] | None = None

    def on_train_start(self, trainer: "lightning.Trainer", pl_module: "lightning.LightningModule") -> None:
        if len(trainer.optimizers) != 1 or trainer.lr_scheduler_configs:
            raise ThalwegError(
                "WalkCallback sets the learning rate itself, so the module must configure one optimizer and no "
                f"scheduler; it has {len(trainer.optimizers)} and {len(trainer.lr_scheduler_configs)}"
            )
        steps = ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        epochs = ceil(trainer.estimated_stepping_batches / steps)
        self.scheduler = WalkScheduler(trainer.optimizers[0], self.method, steps=steps, epochs=epochs)
        self.collector = Collector(pl_module, self.scheduler)
        if self._waiting is not None:
            self.scheduler.load_state_dict(self._waiting["scheduler"])
            self.collector.load_state_dict(self._waiting["collector"])
            for group, rate in zip(trainer.optimizers[0].param_groups, self.scheduler.get_last_lr(), strict=True):
                group["lr"] = rate
        self.members = self.collector.members
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: "lightning.Trainer", *args: Any, **kwargs: Any) -> None:
        if trainer.global_step > self._steps:  # not while gradients are accumulated
            self._steps = trainer.global_step
            self.collector.step()
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict(), "collector": self.collector.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._waiting = state_dict
