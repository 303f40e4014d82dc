"""What a step costs in shards: of `connect` and `fit`, against plain training under `fully_shard` written by hand.

    torchrun --standalone --nproc-per-node 2 benchmarks/sharded.py [--width 256] [--layers 4] [--tokens 64]

Rounds of whole epochs alternate; the first of each way does not count, and the figure is the median over the others.
On a machine with GPUs each process uses its own, with weights in float32 and matrices multiplied in bfloat16 by
`MixedPrecisionPolicy`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import thalweg as tw

WORDS, LR, DECAY = 1000, 0.01, 1e-4


class Decoder(nn.Module):
    """A language model with tied weights."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, mask, is_causal=True)
        return self.head(self.norm(hidden))


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder(width, layers).to(device())
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32) if torch.cuda.is_available() else MixedPrecisionPolicy()
    )
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten(), reduction="none")


def finished() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def by_hand(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]], rank: int, ranks: int) -> float:
    """Seconds per step of an epoch; the state of the optimizer exists already."""
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=DECAY)
    steps = [tuple(part.chunk(ranks)[rank].to(device()) for part in batch) for batch in (data[0], *data)]
    began = 0.0
    for i, (tokens, targets) in enumerate(steps):
        if i == 1:
            began = finished()
        losses(model(tokens), targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (finished() - began) / len(data)


def of_epochs(train: Callable[..., object], number: int) -> float:
    """Seconds per step of the second of two epochs, with what is done at its end; on rank 0 only."""
    seen: list[float] = []
    train(epochs=2, lr=LR, weight_decay=DECAY, progress=False, on_epoch=lambda entry: seen.append(finished()))
    return (seen[1] - seen[0]) / number if seen else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="in a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences")
    parser.add_argument("--steps", type=int, default=20, help="in an epoch")
    parser.add_argument("--rounds", type=int, default=6, help="of which the first does not count")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun")
    torch.set_num_threads(1)
    data = list(torch.randint(WORDS, (2, arguments.steps, arguments.batch, arguments.tokens)).unbind(1))
    data = [tuple(batch.unbind()) for batch in data]
    with tw.distributed() as ranks:
        data = ranks.once(lambda: data)
        network = tw.sharded(lambda: make(arguments.width, arguments.layers))
        a, task = tw.Weights.of(network), tw.Task(losses)
        curve = tw.Bezier(a, replace(a, vector=a.vector + 0.001 * torch.randn_like(a.vector)))
        ways = {
            "plain, by hand": lambda: by_hand(make(arguments.width, arguments.layers), data, ranks.rank, ranks.size),
            "fit": lambda: of_epochs(lambda **how: tw.fit(network, task, data, **how), len(data)),
            "connect": lambda: of_epochs(lambda **how: tw.connect(network, curve, task, data, **how), len(data)),
        }
        rounds = [{name: way() for name, way in ways.items()} for _ in range(arguments.rounds)][1:]
        if ranks.first:
            size = sum(parameter.numel() for parameter in network.parameters())
            print(f"{size:,} weights, {ranks.size} processes on {device().type}, torch {torch.__version__}")
            for name in ways:
                step = statistics.median(found[name] for found in rounds)
                ratio = statistics.median(found[name] / found["plain, by hand"] for found in rounds)
                print(f"{name:15} {1e3 * step:8.1f} ms a step, {ratio:.2f} of plain")


if __name__ == "__main__":
    main()
