"""Models as the libraries make them, tiny, each with data it can learn in seconds and settings that do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning
import peft
import torch
import transformers
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from without_torchvision import import_timm

import thalweg as tw
from thalweg.integrations.transformers import own_loss

timm = import_timm()
WORDS, LENGTH = 16, 12


@dataclass(frozen=True)
class Kind:
    """A model with its task, its batches, and what to train with."""

    make: Callable[[], nn.Module]
    batches: Callable[[], list[Any]]
    task: Callable[[nn.Module], tw.Task] = lambda model: tw.classification()
    epochs: int = 15
    lr: float = 1e-2

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make()

    def settings(self, times: int = 1) -> dict[str, Any]:
        return {"epochs": times * self.epochs, "lr": self.lr, "optimizer": torch.optim.Adam}


class Block(nn.Module):
    """Two convolutions around a shortcut, named as in torchvision."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.downsample(x))


class ResNet(nn.Module):
    """A residual network in the style of torchvision, which cannot be installed beside every CPU torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = (
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.layer1, self.layer2 = nn.Sequential(Block(8, 8, 1)), nn.Sequential(Block(8, 16, 2))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(WORDS, 16),
            nn.LSTM(16, 24, 2, batch_first=True),
            nn.Linear(24, WORDS),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class TwoHeads(nn.Module):
    """Two inputs; two outputs, a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 24), nn.Linear(2, 24, bias=False)
        self.middle, self.label, self.value = nn.Linear(24, 24), nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, left: Tensor, *, right: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.middle(F.relu(self.left(left) + self.right(right))))
        return {"label": self.label(x), "value": self.value(x)[:, 0]}


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def timm_resnet() -> nn.Module:
    kind = timm.models.resnet
    return kind.ResNet(
        kind.BasicBlock,
        [1, 1, 1, 1],
        channels=(8, 8, 16, 16),
        stem_width=8,
        in_chans=1,
        num_classes=10,
        drop_path_rate=0.1,
    )


def timm_transformer() -> nn.Module:
    form = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, drop_path_rate=0.1, **form)


def bert(hidden_size: int = 24, intermediate_size: int = 48) -> nn.Module:
    form = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=2, **form)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    form = {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=WORDS, **form)
    return transformers.GPT2LMHeadModel(config)


def lora() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = bert()
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["query", "key", "value", "dense"])
    return peft.get_peft_model(base, config)


def digits(size: int = 8) -> list[Any]:
    images = load_digits()
    x, y = torch.tensor(images.images[:512] / 16 - 0.3).float()[:, None], torch.tensor(images.target[:512]).long()
    return list(zip(F.interpolate(x, size=size).split(64), y.split(64), strict=True))


def sentences() -> list[Any]:
    """Whether a word of the first half of the vocabulary outnumbers those of the second; padded at the end."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(2, WORDS, (384, LENGTH), generator=g)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (384, 1), generator=g)
    mask = (torch.arange(LENGTH) < lengths).long()
    low = ((tokens < 2 + WORDS // 2) * mask).sum(1)
    labels = (2 * low > lengths[:, 0]).long()
    columns = {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}
    return [{name: column[i : i + 48] for name, column in columns.items()} for i in range(0, 384, 48)]


def stories() -> Tensor:
    """Each word says which comes next, most of the time."""
    g = torch.Generator().manual_seed(0)
    following = torch.randint(WORDS, (WORDS, 2), generator=g)
    tokens = torch.randint(WORDS, (192, LENGTH + 1), generator=g)
    for i in range(1, LENGTH + 1):
        choice = (torch.rand(192, generator=g) < 0.2).long()
        tokens[:, i] = following[tokens[:, i - 1], choice]
    return tokens


def pieces() -> list[Any]:
    """As a language model of one's own takes them: tokens, and the tokens that follow."""
    return [(part[:, :-1], part[:, 1:]) for part in stories().split(48)]


def texts() -> list[Any]:
    """As transformers takes them: labels are the tokens again, with -100 where they do not count."""
    parts = [part[:, :-1] for part in stories().split(48)]
    return [{"input_ids": part, "labels": part.clone().index_fill_(1, torch.tensor([3]), -100)} for part in parts]


@dataclass
class Pair:
    """A batch of somebody's own kind."""

    left: Tensor
    right: Tensor
    label: Tensor
    value: Tensor


def pairs() -> list[Any]:
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(256, 3, generator=g), torch.randn(256, 2, generator=g)
    label = (left[:, 0] * right[:, 0] > 0).long() + (left[:, 1] * right[:, 1] > 0).long()
    columns = (left, right, label, torch.sin(2 * left[:, 2]) * right[:, 0])
    return [Pair(*(column[i : i + 64] for column in columns)) for i in range(0, 256, 64)]


def two_losses(outputs: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
    logits, missed = outputs
    return F.cross_entropy(logits, label, reduction="none") + missed.square()


def two_answers(net: Any, batch: Pair) -> tuple[tuple[Tensor, Tensor], Tensor]:
    out = net(batch.left, right=batch.right)
    return (out["label"], out["value"] - batch.value), batch.label


KINDS = {
    "torchvision-style": Kind(ResNet, digits, epochs=20),
    "timm, batch norm, stochastic depth": Kind(timm_resnet, partial(digits, 16)),
    "timm, layer norm, stochastic depth": Kind(timm_transformer, digits, epochs=25, lr=5e-3),
    "transformers, encoder": Kind(bert, sentences, own_loss, lr=3e-3),
    "transformers, causal, tied": Kind(gpt2, texts, own_loss, epochs=25, lr=3e-3),
    "peft, LoRA": Kind(lora, sentences, own_loss, epochs=20, lr=5e-3),
    "lightning": Kind(Lit, digits),
    "LSTM": Kind(LSTM, pieces, lambda model: tw.language_modelling(padding=False), epochs=40),
    "several inputs and outputs": Kind(TwoHeads, pairs, lambda model: tw.Task(two_losses, two_answers), epochs=100),
}
