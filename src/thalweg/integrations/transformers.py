"""A walk inside a transformers `Trainer`."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..training.methods import Method
from ..training.own_loop import collect
from ..weightspace.weights import Weights


class WalkCallback(TrainerCallback):
    """Sets the learning rate of a method in every step and collects networks: `Trainer(callbacks=[WalkCallback(FGE(...))])`.

    Afterwards `members` holds the collected `Weights`. The trainer's own scheduler is overruled.
    """

    def __init__(self, method: Method):
        self.method = method
        self.members: list[Weights] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        epochs = max(1, round(args.num_train_epochs)) if args.max_steps <= 0 else 1
        self.plan = self.method.plan(-(-state.max_steps // epochs), epochs)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for group in kwargs["optimizer"].param_groups:
            group["lr"] = self.plan.rate(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.plan.collects(state.global_step):
            self.members.append(collect(kwargs["model"], state.global_step))
