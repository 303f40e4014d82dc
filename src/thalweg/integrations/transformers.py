"""A walk inside a transformers `Trainer`."""

from math import ceil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..training.methods import Method
from ..training.own_loop import collect
from ..weightspace.weights import Weights


class WalkCallback(TrainerCallback):
    """Sets the learning rate of a method in every step and collects networks: `Trainer(callbacks=[WalkCallback(FGE(...))])`.

    Afterwards `members` holds the collected `Weights`. The trainer's own scheduler is overruled. Whenever the trainer saves a
    checkpoint, the networks collected so far are saved beside it, and a resumed training goes on with them.
    """

    def __init__(self, method: Method):
        self.method = method
        self.members: list[Weights] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        steps = ceil(len(kwargs["train_dataloader"]) / args.gradient_accumulation_steps)
        self.plan = self.method.plan(steps, ceil(state.max_steps / steps))
        if state.global_step and not self.members:
            saved = (self._file(args, i) for i in range(1, state.global_step + 1) if self.plan.collects(i))
            self.members = [Weights.load(path) for path in saved if path.is_file()]

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for member in self.members:
            path = self._file(args, member.made["iteration"])
            if not path.is_file():
                member.save(path, apart=True)

    def _file(self, args: TrainingArguments, i: int) -> Path:
        return Path(args.output_dir or ".") / "thalweg" / f"collected-{i}.safetensors"

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for group in kwargs["optimizer"].param_groups:
            group["lr"] = self.plan.rate(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.plan.collects(state.global_step):
            self.members.append(collect(kwargs["model"], state.global_step))
