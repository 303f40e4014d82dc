"""The entry ptb: perplexity along the straight line and a Bezier curve between two LSTMs on Penn Treebank."""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..evaluation.scan import scan
from ..reporting.result import Claim
from ..results import Scan
from ..runtime.rng import seeded
from ..store.runs import LOG, Run
from ..tasks import language_modelling
from ..training.optimizers import Schedule
from ..weightspace.curves import Curve, Segment
from .claims import TWENTIETH
from .curve_entries import NETWORKS, Outcome, keep
from .data import TokenBatches, find_data, ptb
from .experiment import Experiment, Need
from .models import Lstm, lstm
from .published import row_of
from .recipes import Preset, Recipe

STEPS = 35  # words of a sequence; the recipes' rates and clips are for losses summed over them, ours are means
FASTER = 4  # learning rate of a curve relative to a network's: phi(0.5) then moves as far in a step as a network would
NEEDS = [*NETWORKS, Need("bezier", 0)]


@dataclass(frozen=True)
class Words:
    """A recipe of Zaremba et al.: the rate is constant for `stay` epochs, then divided by `fall` in each; gradients are
    clipped.

    Attributes:
        reported: The perplexities they report, on the training set with dropout, and on the two others.
    """

    size: str
    epochs: int
    stay: int
    fall: float
    clip: float
    reported: dict[str, float]

    def schedule(self, lr: float, steps: int) -> Schedule:
        return lambda i: lr * self.fall ** -max(0, (i - 1) // steps + 1 - self.stay)


SIZES = {
    "lstm-large": Words("large", 55, 14, 1.15, 10.0, {"train": 37.9, "valid": 82.6, "test": 78.3}),
    "lstm-medium": Words("medium", 39, 6, 1.25, 5.0, {"train": 48.5, "valid": 86.2, "test": 82.1}),
}
ALL: dict[str, Any] = {
    "weight_decay": 0.0,
    "lr": STEPS,
    "curve_lr": FASTER * STEPS,
    "batch": 20,
    "crop": 0,
    "flip": False,
}
RECIPES = {
    name: Recipe("ptb", name, "PTB", f"{words.size} LSTM", epochs=words.epochs, curve_epochs=words.epochs, **ALL)
    for name, words in SIZES.items()
}


class TextExperiment(Experiment):
    """A experiment for language models; perplexity is exp of their loss."""

    def __init__(self, folder: Path, recipe: Recipe, scale: Preset, given: Path | None = None, **settings: Any):
        super().__init__(folder, recipe, scale, given, **settings)
        self.words = SIZES[recipe.model]
        self.recipe = replace(self.recipe, batch=recipe.batch)
        self.task = language_modelling(padding=False)
        self.make = self._network

    def _network(self) -> nn.Module:
        if self.scale.name == "smoke":
            return Lstm(16, words=self.vocabulary, batch=self.recipe.batch)
        return lstm(self.words.size, words=self.vocabulary, batch=self.recipe.batch)  # type: ignore[arg-type]

    @cached_property
    def tokens(self) -> dict[str, Tensor]:
        if self.given is None and self.scale.name == "smoke":
            with seeded(0):
                return {name: torch.randint(50, (20 * STEPS * 2 + 20,)) for name in ("train", "valid", "test")}
        found = ptb(find_data(self.given), download=self.download)
        return {"train": found.train, "valid": found.valid, "test": found.test}

    @property
    def vocabulary(self) -> int:
        return int(self.tokens["train"].max()) + 1

    def _read(self, name: str) -> TokenBatches:
        few = self.tokens[name] if self.scale.name == "full" else self.tokens[name][: 20 * STEPS * 2 + 20]
        return TokenBatches(few, self.recipe.batch, STEPS, device=self.device)

    @cached_property
    def train(self) -> Any:
        return self._read("train")

    @cached_property
    def data(self) -> dict[str, TokenBatches]:
        return {name: self._read(name) for name in ("train", "valid", "test")}

    def rates(self, lr: float) -> dict[str, Any]:
        return {"momentum": 0.0, "schedule": self.words.schedule(lr, len(self.train)), "clip": self.words.clip / STEPS}

    def described(self) -> dict[str, Any]:
        return super().described() | asdict(self.words)

    def batches_per_point(self) -> int:
        return sum(len(batches) for batches in self.data.values())

    def in_training(self, need: Need) -> float:
        """Perplexity over the last epoch of training, with dropout, at random t: what papers call train."""
        return math.exp(Run(self.folder / need.name).lines(LOG)[-1]["loss"])

    def scan(self, name: str, target: Any, **settings: Any) -> Scan:
        common: dict[str, Any] = {
            "run": self.folder / f"scan-{name}",
            "compute": self.compute,
            "progress": self.progress,
        }
        points = min(self.scale.points, 31)  # the paper does not say how many; each is slow
        return scan(
            self.form, target, self.task, self.data, points=points if isinstance(target, Curve) else None, **common
        )


def perplexity(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    assert isinstance(experiment, TextExperiment)
    a, b = experiment.networks(2)
    targets = {"single": [a, b], "segment": Segment(a, b), "bezier": experiment.curve("bezier")}
    scans = {name: experiment.scan(name, target) for name, target in targets.items()}
    rows = []
    for name, found in scans.items():
        paper = row_of("ptb", curve=name) if experiment.words.size == "large" else {}
        row: dict[str, Any] = {"curve": name}
        for data in ("train", "valid", "test"):
            values = torch.tensor(found.values[data]["data_loss"]).exp()
            for key, value in (("min", values.min()), ("max", values.max())):
                row[f"{data}_{key}"] = float(value)
                row |= {f"{data}_{key} (paper)": paper[f"{data}_{key}"]} if paper else {}
        rows.append(row)
    alone = [experiment.in_training(need) for need in NETWORKS]
    rows[0] |= {"train with dropout": f"{min(alone):.1f} to {max(alone):.1f}"}
    rows[2] |= {"train with dropout": f"{experiment.in_training(Need('bezier', 0)):.1f} on average"}
    keep(scans, out)
    return rows, judged({row["curve"]: row for row in rows}, max(alone), experiment.words.reported)


def judged(found: dict[str, dict[str, Any]], in_training: float, reported: dict[str, float]) -> list[Claim]:
    single, line, curve = (found[name] for name in ("single", "segment", "bezier"))
    sets = ("valid", "test")
    ends = {data: single[f"{data}_max"] for data in sets} | {"train": in_training}
    near = "; ".join(f"{data} {value:.1f}, there {reported[data]:.1f}" for data, value in ends.items())
    rise = {data: curve[f"{data}_max"] / single[f"{data}_max"] for data in ("train", *sets)}
    wall = {data: line[f"{data}_max"] / single[f"{data}_max"] for data in sets}
    text = "at most " + ", ".join(f"{factor:.2f} times the ends' on {data}" for data, factor in rise.items())
    alone, bent = (row_of("ptb", curve=name) for name in ("single", "bezier"))
    paper = max(round(bent[f"{data}_max"] / alone[f"{data}_max"], 2) for data in sets)
    return [
        Claim(
            "the ends are as good as the recipe's authors report: perplexity at most a twentieth above theirs",
            all(ends[data] <= (1 + TWENTIETH) * reported[data] for data in sets),
            f"{near}, with dropout",
        ),
        Claim("the straight line does not keep it", min(wall.values()) > 2, f"{line['test_max']:.1f} on the test set"),
        Claim(
            f"the curve does, nearly: at most {paper:.2f} times on valid and test",
            max(rise[d] for d in sets) <= paper,
            text,
        ),
        Claim("and on the training set wholly, within a twentieth", rise["train"] <= 1 + TWENTIETH, text),
    ]
