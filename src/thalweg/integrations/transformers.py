"""transformers: the loss a model computes itself, and a walk inside its `Trainer`."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..tasks import IGNORED, Net, Number, Task
from ..training.optimizers import rates
from ..training.own_loop import collect
from ..training.walk_methods import Method
from ..weightspace.weights import Weights

# of `loss_type`: labels are the tokens, shifted by the model itself
AHEAD = ("ForCausalLM", "ForConditionalGeneration", None)


def own_loss(model: nn.Module) -> Task:
    """The loss that a transformers model computes itself from a batch with `labels`, per example or per token.

    Examples:
        >>> import torch, thalweg as tw
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8))
        >>> tokens = torch.randint(9, (4, 6))
        >>> task = own_loss(model)
        >>> int(task.size({"input_ids": tokens, "labels": tokens}))
        20

    Args:
        model: A model of the same architecture, or a peft model. Tokens labelled -100 are ignored.
    """
    encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    ahead = 1 if not encodes and getattr(model, "loss_type", None) in AHEAD else 0

    def predict(net: Net, batch: Any) -> tuple[Answer, Tensor]:
        answer, labels = net(**batch), batch["labels"]
        logits = answer.logits
        if not _per_token(labels):
            return Answer(answer.loss, logits.reshape(labels.shape) if labels.is_floating_point() else logits), labels
        labels = labels[:, ahead:]
        # prompts come before the tokens
        logits = logits[:, logits.shape[1] - labels.shape[1] - ahead :][:, : labels.shape[1]]
        return Answer(answer.loss, logits), labels.flatten()

    def size(batch: Any) -> Number:
        labels = batch["labels"]
        return (labels[:, ahead:] != IGNORED).sum() if _per_token(labels) else len(labels)

    return Task(lambda answer, labels: answer.loss, predict, size=size)


@dataclass(frozen=True)
class Answer:
    """The loss that a model has computed, and its logits for the labels."""

    loss: Tensor
    each: Tensor

    @property
    def logits(self) -> Tensor:
        """One row for each label; copied only where they are asked for, which training does not."""
        return self.each if self.each.ndim < 3 else self.each.flatten(0, 1)


def _per_token(labels: Tensor) -> bool:
    return labels.ndim > 1 and not labels.is_floating_point()


class WalkCallback(TrainerCallback):
    """Sets the learning rate of a method in every step and collects networks:
    `Trainer(callbacks=[WalkCallback(FGE(...))])`.

    The trainer's own scheduler is overruled. Whenever the trainer saves a checkpoint, the networks collected so far are
    saved next to it, and a resumed training continues with them.

    Args:
        method: `FGE`, `Snapshot` or `SWA`.

    Attributes:
        members: The collected `Weights`.
    """

    def __init__(self, method: Method):
        self.method = method
        self.members: list[Weights] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        groups = kwargs["optimizer"].param_groups  # whose own scheduler stored the initial rates
        given = [group.get("initial_lr", group["lr"]) for group in groups]
        for group, rate in zip(groups, rates(self.plan.rate(state.global_step + 1), given), strict=True):
            group["lr"] = rate

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.plan.collects(state.global_step):
            self.members.append(collect(kwargs["model"], state.global_step))
