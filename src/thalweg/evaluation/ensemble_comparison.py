"""What ensembles of several runs are worth and cost, next to one network each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import nan
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import ThalwegError
from ..tasks import Task
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights
from .ensemble import Ensemble, megabytes, predictions

Runs = Sequence[Sequence[Weights]]  # the networks of each run
Examples = dict[str, Tensor]  # score -> its value for each example
SAME = "temperatures were fitted on the test data, so that calibrated scores are too good: give other held-out data"


class ExampleScores(NamedTuple):
    """The scores of an ensemble, those of each example, and why some are missing."""

    means: dict[str, float]
    examples: Examples
    why_none: str


@dataclass(frozen=True)
class EnsembleComparison:
    """Scores ensembles on one data set, each next to one network.

    Args:
        module: A network of the same architecture.
        task: The task.
        test: The data to score on.
        held_out: Other data, to fit temperatures; without them each half of `test` has those fitted on the other.
        bn_batches: Batches as in training, augmentation included, for the averages of networks with batch norm.
        progress: Whether to show progress bars.
    """

    module: nn.Module
    task: Task
    test: Batches
    held_out: Batches | None
    bn_batches: Batches | None
    progress: bool | None

    def check(self) -> None:
        """Raise before anything is trained if networks cannot be scored on these data, or temperatures not fitted."""
        self._score([Weights.of(self.module)])

    def alone(self, runs: Runs) -> list[Examples]:
        """The scores of each example by the first network of each run, to compare others with."""
        return [self._score(run[:1]).examples for run in runs]

    def entry(self, runs: Runs, multiples: Sequence[int], one: Sequence[Examples]) -> dict[str, Any]:
        """Scores, differences to one network, and megabytes of the ensembles of a method, and those of their averages.

        Args:
            runs: The networks of each run.
            multiples: How many of the first runs to pool.
            one: The scores of each example by one network of each run, if there is such a network.
        """
        try:
            averaged: dict[str, Any] = {"averaged": self._pools(runs, multiples, one, self._average)}
        except ThalwegError as error:
            averaged = {"not averaged": str(error)}
        return {
            **self._pools(runs, multiples, one, self._score),
            **averaged,
            **({"not held out": SAME} if self.held_out is self.test else {}),
            "megabytes": {
                **{str(k): megabytes([*chain(*runs[:k])]) for k in multiples},
                "averaged": megabytes(runs[0][:1]),
            },
        }

    def milliseconds(self, member: Weights, passes: int = 3) -> float:
        """The time of one network for one example, in batches as they come; the median of a few passes."""
        probe, times = Probe(self.module), []
        for _ in range(passes):
            began = perf_counter()
            _, targets = predictions(probe, member, self.task, self.test)
            times.append(perf_counter() - began)
        return 1000 * median(times) / len(targets)

    def _pools(
        self,
        runs: Runs,
        multiples: Sequence[int],
        one: Sequence[Examples],
        score: Callable[[Sequence[Weights]], ExampleScores],
    ) -> dict[str, Any]:
        each = [score(run) for run in runs]
        pooled = {k: score([*chain(*runs[:k])]) for k in multiples if k > 1}
        found = {1: each, **{k: [scores] for k, scores in pooled.items()}}
        whys = {k: scores.why_none for k, own in found.items() for scores in own if scores.why_none}
        where = f"at {' and '.join(f'{k}B' for k in whys)}, " if len(whys) < len(found) else ""
        return {
            "runs": [scores.means for scores in each],
            "pooled": {str(k): scores.means for k, scores in pooled.items()},
            "differences": {
                str(k): paired([scores.examples for scores in own], one) for k, own in found.items() if one
            },
            **({"not calibrated": f"{where}{next(iter(whys.values()))}"} if whys else {}),
        }

    def _score(self, members: Sequence[Weights]) -> ExampleScores:
        found, disagreement = Ensemble(self.module, members).scored(self.task, self.test, self.held_out, self.progress)
        return ExampleScores(found.scores | disagreement, found.examples, found.why_none)

    def _average(self, members: Sequence[Weights]) -> ExampleScores:
        return self._score([Ensemble(self.module, members).average(self.task, self.bn_batches)])


def paired(found: Sequence[Examples], one: Sequence[Examples]) -> dict[str, list[float]]:
    """For each score, the mean difference and its standard error over the examples, which one alone does not have;
    several runs are averaged first.

    >>> ours, theirs = torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> paired([{"error": ours}], [{"error": theirs}])
    {'error': [-0.25, 0.25]}
    """
    differences = {}
    for name in one[0]:
        if all(name in examples for examples in (*found, *one)):
            ours, theirs = (torch.stack([examples[name] for examples in side]).mean(0) for side in (found, one))
            values = ours - theirs
            spread = float(values.std()) if len(values) > 1 else nan
            differences[name] = [float(values.mean()), spread / len(values) ** 0.5]
    return differences
