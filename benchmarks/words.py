"""Steps of the paper's LSTMs on Penn Treebank: one network, two interleaved, along a curve; and a batch of a scan.

python benchmarks/words.py DATA [--steps 200] [--networks lstm-medium:fp32 lstm-large:fp32 lstm-large:bf16]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import thalweg as tw
from thalweg.paper.data import TokenBatches
from thalweg.paper.penn_treebank import RECIPES, STEPS, TextExperiment
from thalweg.paper.recipes import SCALES

USUAL = ["lstm-medium:fp32", "lstm-large:fp32", "lstm-large:bf16"]


def seconds(work: Callable[[], Any]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def time_all(name: str, precision: str, data: Path, steps: int) -> dict[str, float]:
    """Milliseconds, from the difference of a longer and a shorter run, after one that warms up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compute = tw.Compute(precision, False)  # type: ignore[arg-type]
    experiment = TextExperiment(
        Path(), RECIPES["ptb", name], SCALES["full"], data, device=device, compute=compute, progress=False
    )
    few = TokenBatches(experiment.tokens["train"][: 20 * (STEPS * steps + 1)], 20, STEPS, device=device)
    networks, common = [experiment.model(seed) for seed in range(2)], {**experiment.rates(STEPS), **experiment.settings}
    ends = [tw.Weights.of(network) for network in networks]

    def fit(epochs: int, k: int) -> tw.Weights:
        return tw.fit(networks[k], experiment.task, few, epochs=epochs, seed=k, **common)

    def both(epochs: int) -> list[tw.Weights]:
        return tw.together(partial(fit, epochs, 0), partial(fit, epochs, 1))

    def curve(epochs: int) -> tw.Curve:
        return tw.connect(networks[0], tw.Bezier(*ends), experiment.task, few, epochs=epochs, **common)

    def scan(times: int) -> tw.Scan:
        return tw.scan(networks[0], ends[:1] * times, experiment.task, {"train": few}, compute=compute, progress=False)

    jobs = {"plain step": partial(fit, k=0), "step of each of two": both, "curve step": curve, "scanned batch": scan}
    found = {}
    for what, job in jobs.items():
        job(1)
        one, four = (seconds(partial(job, times)) for times in (1, 4))
        found[what] = 1000 * (four - one) / 3 / steps
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--networks", nargs="+", default=USUAL)
    settings = parser.parse_args()
    for each in settings.networks:
        found = time_all(*each.split(":"), settings.data, settings.steps)
        print(each, ", ".join(f"{what} {value:.2f} ms" for what, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
