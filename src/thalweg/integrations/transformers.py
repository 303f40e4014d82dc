"""transformers: the loss a model computes itself, and a walk inside its `Trainer`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, compiler, nn
from torch.nn import functional as F
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import ThalwegError
from ..tasks import IGNORED, Net, Number, Task
from ..training.sgd import rates
from ..training.walk_methods import Method
from ..training.walk_scheduler import collect
from ..weightspace.weights import Weights

# of `loss_type`: labels are the tokens, as a rule shifted by the model itself
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
        model: A model of the same architecture, or a peft model. Tokens labelled -100 are ignored. Of a language model,
            perplexity is exp of `data_loss`.
    """
    tokens = _Tokens(model)

    def predict(net: Net, batch: Any) -> tuple[Answer, Tensor]:
        labels = _labels(batch)
        if labels.is_floating_point():
            answer = net(**batch)
            return Answer(answer.loss, answer.logits.reshape(labels.shape)), labels
        # without any label that counts, a mean would be NaN, and stay NaN when it is weighted by 0
        answer = net(**{**batch, "labels": labels.where((tokens.counted(labels) != IGNORED).any(), 0)})
        if labels.ndim < 2:
            return Answer(answer.loss, answer.logits), labels
        tokens.look(answer.loss, answer.logits, labels)
        return Answer(answer.loss, tokens.predicting(answer.logits, labels)), tokens.counted(labels).flatten()

    def size(batch: Any) -> Number:
        labels = _labels(batch)
        return len(labels) if labels.is_floating_point() else (tokens.counted(labels) != IGNORED).sum()

    return Task(lambda answer, labels: answer.loss, predict, size=size)


def _labels(batch: Any) -> Tensor:
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor):
        raise ThalwegError(
            "the loss that a model computes itself needs batches that are dicts with a tensor of 'labels'; got "
            + (f"{sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__)
            + ": add them, or use Task(loss, predict, size=) for a loss from other targets"
        )
    return labels


class _Tokens:
    """Which labels the loss of a model is the mean over: all but the first where it predicts the next token, unless
    prompts come before it.
    """

    def __init__(self, model: nn.Module):
        encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        self.ahead = 1 if not encodes and getattr(model, "loss_type", None) in AHEAD else 0
        self.prompts, self.looked = 0, False

    def counted(self, labels: Tensor) -> Tensor:
        return labels[:, max(self.ahead - self.prompts, 0) :] if labels.ndim > 1 else labels

    def predicting(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The logits of these labels."""
        count = self.counted(labels).shape[1]
        return logits[:, logits.shape[1] - count - self.ahead :][:, :count]

    @torch.no_grad()
    def look(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Find out, at the first batch with labels that count, whether the model predicts the next token: some models
        called causal predict the token itself, and only one of the two gives the model's own loss.
        """
        if self.looked or compiler.is_compiling() or logits.ndim != 3 or logits.shape[1] < labels.shape[1]:
            return
        self.prompts, usual, off = logits.shape[1] - labels.shape[1], self.ahead, list[float]()
        for self.ahead in (usual, 1 - usual):
            pairs = zip(self.predicting(logits, labels), self.counted(labels), strict=True)
            each = [F.cross_entropy(one.float(), own, reduction="sum") for one, own in pairs]  # with little memory
            off.append(float(sum(each) / (self.counted(labels) != IGNORED).sum() - loss))
        self.looked = isfinite(off[0])
        self.ahead = 1 - usual if abs(off[1]) < min(abs(off[0]), 1e-4 * abs(float(loss))) else usual


@dataclass(frozen=True)
class Answer:
    """The loss that a model has computed, and its logits for the labels."""

    loss: Tensor
    each: Tensor

    @property
    def logits(self) -> Tensor:
        """One row for each label; copied only on demand, which training does not need."""
        return self.each if self.each.ndim < 3 else self.each.flatten(0, 1)


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
