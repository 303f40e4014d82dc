"""What a curve step costs over a plain step of the same network, on this machine.

    python benchmarks/steps.py [--pairs N]

Plain and curve steps alternate, so that both see the same machine load; a ratio is the median over pairs.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import thalweg as tw
from thalweg.runtime.accelerated import Accelerated
from thalweg.runtime.compute import Compute, Context
from thalweg.training.sgd import make_optimizer
from thalweg.training.step import Network, Step, Trainable, UniformBends
from thalweg.weightspace.probe import Probe

BATCH, WORDS, LENGTH = 128, 1000, 35


class Transformer(nn.Module):
    """A language model of four layers with LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.output = nn.Linear(128, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.layers(self.embedding(tokens)))


class Lstm(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, 256), nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.embedding(tokens))[0])


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))


def words() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(WORDS, (32, LENGTH)), torch.randint(WORDS, (32, LENGTH))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], object], tw.Task]] = {
    "VGG-16": (tw.models.vgg16, images, tw.classification()),
    "PreResNet-20": (lambda: tw.models.preresnet(20), images, tw.classification()),
    "transformer": (Transformer, words, tw.language_modelling()),
    "LSTM": (Lstm, words, tw.language_modelling()),
}


def step(trainable: Trainable, task: tw.Task) -> Accelerated:
    trainable.probe.module.train()
    plain = Step(trainable, task, make_optimizer(trainable.vectors, 0.9), 5e-4)
    return Accelerated(plain, Context(), Compute())


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(
    make: Callable[[], nn.Module], draw: Callable[[], object], task: tw.Task, pairs: int
) -> tuple[float, float, list[float]]:
    """Median seconds of a plain and of a curve step, and the ratio of each pair."""
    module = make()
    curve = tw.Bezier(tw.Weights.of(module), tw.Weights.of(make()))
    plain, bent = step(Network(Probe(module)), task), step(UniformBends(Probe(module, curve.start), curve), task)
    batch = draw()
    times = []
    for pair in range(pairs + 2):
        steps = [("plain", plain), ("curve", bent)]
        found = {name: timed(lambda own=own: own(batch, 1e-3)) for name, own in (steps if pair % 2 else steps[::-1])}
        times.append((found["plain"], found["curve"]))
    times = times[2:]
    return (*(statistics.median(column) for column in zip(*times, strict=True)), [b / a for a, b in times])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="how many pairs of steps to time, at least 2")
    pairs = parser.parse_args().pairs
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, {pairs} pairs")
    for name, network in NETWORKS.items():
        torch.manual_seed(0)
        plain, curve, ratios = compare(*network, pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        times = f"plain {1e3 * plain:7.1f} ms   curve {1e3 * curve:7.1f} ms"
        print(f"{name:14s} {times}   ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
