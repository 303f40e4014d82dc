"""The entry ptb: perplexity along the straight line and a Bezier curve between two LSTMs on Penn Treebank."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

import thalweg as tw

from ..reporting.result import PAPER, Claim
from ..runtime.rng import seeded
from ..store.runs import LOG, Run
from .claims import TWENTIETH, row_of
from .curve_entries import NETWORKS, Outcome, keep
from .experiment import Experiment, Measurements, Need, RateArguments
from .recipes import Preset, Recipe

STEPS = 35  # words of a sequence; the recipes' rates and clips are for losses summed over them, ours are means
FASTER = 4  # learning rate of a curve relative to a network's: phi(0.5) then moves as far in a step as a network would
NEEDS = [*NETWORKS, Need("bezier", 0)]
PARTS = ("train", "valid", "test")
NOISY = " with dropout"  # after the name of a column


class ActiveDropout(nn.Dropout):
    """Dropout in evaluation as in training."""

    def train(self, mode: bool = True) -> Self:
        return super().train(True)


@dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """A recipe of Zaremba et al.: the rate is constant for `stay` epochs, then divided by `fall` in each; gradients are
    clipped.

    Attributes:
        reported: The perplexities they report, on the training set with dropout, and on the two others.
    """

    size: Literal["large", "medium"]
    stay: int
    fall: float
    clip: float
    reported: dict[str, float]

    def schedule(self, lr: float, steps: int) -> Callable[[int], float]:
        return lambda i: lr * self.fall ** -max(0, (i - 1) // steps + 1 - self.stay)


LARGE = TextRecipe(
    "ptb",
    "lstm-large",
    "PTB",
    "large LSTM",
    size="large",
    epochs=55,
    lr=float(STEPS),
    weight_decay=0.0,
    curve_epochs=55,
    curve_lr=float(FASTER * STEPS),
    batch=20,
    crop=0,
    flip=False,
    precision="fp32",
    compile=False,  # layers are single calls
    stay=14,
    fall=1.15,
    clip=10.0,
    reported={"train": 37.9, "valid": 82.6, "test": 78.3},
)
MEDIUM = replace(
    LARGE,
    model="lstm-medium",
    title="medium LSTM",
    size="medium",
    epochs=39,
    curve_epochs=39,
    stay=6,
    fall=1.25,
    clip=5.0,
    reported={"train": 48.5, "valid": 86.2, "test": 82.1},
)
RECIPES = {("ptb", recipe.model): recipe for recipe in (LARGE, MEDIUM)}


class TextExperiment(Experiment):
    """An experiment on language models; perplexity is exp of their loss."""

    recipe: TextRecipe
    task = tw.language_modelling(padding=False)
    clean = None  # they have no batch norm

    def __init__(self, folder: Path, recipe: TextRecipe, scale: Preset, given: Path | None = None, **settings: Any):
        few = replace(scale, points=min(scale.points, 31))  # the paper does not say how many; each is slow
        super().__init__(folder, recipe, few, given, **settings)
        self.recipe = replace(self.recipe, batch=recipe.batch)

    def _network(self) -> nn.Module:
        words, batch = int(self.tokens["train"].max()) + 1, self.recipe.batch
        if self.scale.name == "smoke":
            return tw.models.Lstm(16, words=words, batch=batch)
        return tw.models.lstm(self.recipe.size, words=words, batch=batch)

    @cached_property
    def tokens(self) -> dict[str, Tensor]:
        if self.random_data:
            with seeded(0):
                return {name: torch.randint(50, (20 * STEPS * 2 + 20,)) for name in PARTS}
        found = tw.data.ptb(tw.data.find_data(self.given), download=self.download)
        return {name: getattr(found, name) for name in PARTS}

    @cached_property
    def data(self) -> dict[str, Any]:
        few = None if self.scale.name == "full" else 20 * STEPS * 2 + 20
        return {
            name: tw.data.TokenBatches(tokens[:few], batch_size=self.recipe.batch, steps=STEPS, device=self.device)
            for name, tokens in self.tokens.items()
        }

    @property
    def train(self) -> Any:
        return self.data["train"]

    @property
    def constant_loss(self) -> float:
        """The loss of a network that gives every word the same probability."""
        return math.log(int(self.tokens["train"].max()) + 1)

    def batches_per_point(self) -> int:
        return sum(map(len, self.data.values()))

    def rates(self, lr: float) -> RateArguments:
        return {
            "momentum": 0.0,
            "schedule": self.recipe.schedule(lr, len(self.train)),
            "clip": self.recipe.clip / STEPS,
        }

    def scan_with_dropout(self, name: str, target: Any) -> tw.Scan:
        """The training set, with dropout as in training, the same at every point."""
        other = copy(self)
        noisy: Any = self.model(0)  # not a deep copy, which would lose the memory layout that cuDNN needs
        noisy.dropout = ActiveDropout(noisy.dropout.p)
        other.architecture, other.data = noisy, {"train": self.train}
        other.compute = replace(self.compute, graph=False)  # whose first pass would draw other random numbers
        return other.scan(_noisy(name), target)

    def in_training(self, need: Need) -> float:
        """Perplexity over the last epoch of training, with dropout, at random t: what papers call train."""
        return math.exp(Run(self.folder_of(need)).lines(LOG)[-1]["loss"])


def scanned(experiment: Experiment, seeds: int) -> Measurements:
    ends, curves = ("single", _noisy("single")), ("segment", "bezier", _noisy("bezier"))
    return [*experiment.to_scan(*ends, points=2), *experiment.to_scan(*curves)]


def _noisy(name: str) -> str:
    """The name of the scan with dropout."""
    return name + NOISY.replace(" ", "-")


def perplexity(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    assert isinstance(experiment, TextExperiment)
    a, b = experiment.networks(2)
    targets = {"single": [a, b], "segment": tw.Segment(a, b), "bezier": experiment.curve("bezier")}
    scans = {name: experiment.scan(name, target) for name, target in targets.items()}
    rows = {name: _row(name, found, experiment.recipe.size == "large") for name, found in scans.items()}
    alone = [experiment.in_training(need) for need in NETWORKS]
    rows["single"]["train with dropout"] = f"{min(alone):.1f} to {max(alone):.1f}"
    rows["bezier"]["train with dropout"] = f"{experiment.in_training(Need('bezier', 0)):.1f} on average"
    for name in ("single", "bezier"):
        scans[name + NOISY] = noisy = experiment.scan_with_dropout(name, targets[name])
        rows[name] |= {f"{key}{NOISY}": value for key, value in _perplexities(noisy, ("train",)).items()}
    keep(scans, out)
    return [*rows.values()], claims_of_perplexities(rows, max(alone), experiment.recipe.reported)


def _perplexities(found: tw.Scan, parts: Sequence[str]) -> dict[str, float]:
    losses = {part: torch.tensor(found.values[part]["data_loss"]).exp() for part in parts}
    return {f"{part}_{end}": float(getattr(losses[part], end)()) for part in parts for end in ("min", "max")}


def _row(name: str, found: tw.Scan, in_paper: bool) -> dict[str, Any]:
    """The lowest and the highest perplexity on each part."""
    ours = _perplexities(found, PARTS)
    return {"curve": name, **ours, **{key + PAPER: row_of("ptb", curve=name)[key] for key in ours if in_paper}}


def _times(curve: Mapping[str, Any], ends: Mapping[str, Any]) -> dict[str, float]:
    """How many times the highest perplexity of the ends that of a curve is, on each part."""
    return {part: curve[f"{part}_max"] / ends[f"{part}_max"] for part in PARTS}


def claims_of_perplexities(
    found: dict[str, dict[str, Any]], in_training: float, reported: dict[str, float]
) -> list[Claim]:
    single, line, curve = (found[name] for name in ("single", "segment", "bezier"))
    sets = ("valid", "test")
    ends = {data: single[f"{data}_max"] for data in sets} | {"train": in_training}
    wall, rise = _times(line, single), _times(curve, single)
    noisy = curve["train_max" + NOISY] / single["train_max" + NOISY]
    text = "at most " + ", ".join(f"{factor:.2f} times the ends' on {data}" for data, factor in rise.items())
    papers = {name: row_of("ptb", curve=name) for name in found}
    their_wall, their_rise = (_times(papers[name], papers["single"]) for name in ("segment", "bezier"))
    least = (1 - TWENTIETH) * min(their_wall[data] for data in sets)
    most = max(round(their_rise[data], 2) for data in sets)
    return [
        Claim(
            "the ends are as good as the recipe's authors report: perplexity at most a twentieth above theirs",
            all(ends[data] <= (1 + TWENTIETH) * reported[data] for data in sets),
            "; ".join(f"{data} {value:.1f}, there {reported[data]:.1f}" for data, value in ends.items())
            + ", with dropout",
        ),
        Claim(
            f"the straight line does not keep it: it rises to at least {least:.1f} times on valid and test",
            min(wall[data] for data in sets) >= least,
            ", ".join(f"{wall[data]:.1f} times on {data}" for data in sets),
        ),
        Claim(
            f"the curve does, nearly: at most {most:.2f} times on valid and test",
            max(rise[data] for data in sets) <= most,
            text,
        ),
        Claim("and on the training set wholly, within a twentieth", rise["train"] <= 1 + TWENTIETH, text),
        Claim(
            "and there with dropout, as perplexity is measured in training, within a twentieth",
            noisy <= 1 + TWENTIETH,
            f"at most {noisy:.2f} times the ends'",
        ),
    ]
