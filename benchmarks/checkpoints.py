"""What saving the state of a run costs: VGG-16 with momentum, trained with and without a run folder.

    python benchmarks/checkpoints.py [--saves N]

Prints the seconds of one save, and its share of training time at one save a minute.
"""

import argparse
import platform
import statistics
import tempfile
import time

import torch

import thalweg as tw
from thalweg.runtime.accelerated import Accelerated
from thalweg.runtime.compute import Compute, Context
from thalweg.store.runs import Run
from thalweg.training.checkpoint import TrainingProgress
from thalweg.training.loop import Observer
from thalweg.training.sgd import make_optimizer
from thalweg.training.step import Network, Step
from thalweg.weightspace.probe import Probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--saves", type=int, default=9, help="how often to save")
    saves = parser.parse_args().saves
    trainable = Network(Probe(tw.models.vgg16()))
    plain = Step(trainable, tw.classification(), make_optimizer(trainable.vectors, 0.9), 5e-4)
    step = Accelerated(plain, Context(), Compute())
    batch = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    times = []
    with tempfile.TemporaryDirectory() as folder:
        progress = TrainingProgress(
            Run(folder), plain, Observer(), [batch], lambda: iter([batch]), Context(), step.optimizer
        )
        for _ in progress.rest_of_epoch():
            progress.count(step(batch, 1e-3))
        for _ in range(saves):
            start = time.perf_counter()
            progress.save()
            times.append(time.perf_counter() - start)
        size = sum(path.stat().st_size for path in Run(folder).folder.rglob("*"))
    seconds = statistics.median(times)
    print(
        f"torch {torch.__version__}, {platform.machine()}: {size / 2**20:.0f} MiB in {seconds:.2f} s (median of "
        f"{saves})"
    )
    print(f"one save a minute: {100 * seconds / 60:.2f} % of training time")


if __name__ == "__main__":
    main()
