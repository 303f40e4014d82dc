"""Ensembles at equal cost: several methods, each within one, two, three training budgets."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..batches import Batches, count
from ..errors import ThalwegError, during, number, several, whole
from ..evaluation.ensemble import Ensemble
from ..evaluation.question import Facts, bn_question, data_question, first_pass, measured_question
from ..results import Comparison
from ..runtime.compute import Call, Compute, StoredResult
from ..runtime.interleave import at_once
from ..runtime.rng import seeded
from ..store import facts
from ..store.files import COMPARISON
from ..store.runs import Run
from ..tasks import Task
from ..weightspace.batchnorm import update_bn
from ..weightspace.layout import batch_norms
from ..weightspace.weights import Weights, average
from .fit import fit
from .optimizers import decay
from .question import method_table
from .walk import walk
from .walk_methods import FGE, SWA, Method, Snapshot


@dataclass(frozen=True)
class Independent:
    """Independent networks, each trained for the whole budget."""

    title: ClassVar[str] = "Independent networks"


Contender = Independent | Method
Make = Callable[[int], nn.Module]
OTHER_ORDER = 500_009  # a walk should not see the data in the order of the run it branches off


def compare(
    make: Callable[[int], nn.Module],
    task: Task,
    train: Batches,
    test: Batches,
    methods: Sequence[Contender | type[Contender]],
    *,
    budget: int,
    multiples: Sequence[int] = (1, 2, 3),
    seeds: Sequence[int] = (0, 1, 2),
    bn_batches: Batches | None = None,
    lr: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip: float | None = None,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Give each ensembling method the same training budget and score the ensembles.

    Training that several methods share runs once, and is charged to each of them as if it ran alone.

    Args:
        make: Maps a seed to a newly initialised network.
        task: The loss to minimise.
        train: The training data.
        test: The data to score the ensembles on.
        methods: `Independent()`, `Snapshot(...)`, `FGE(...)` or `SWA(...)`. A bare class uses the paper's settings,
            scaled to `lr`.
        budget: Epochs of one run.
        multiples: Multiples of the budget to report; k times the budget pools the first k runs.
        seeds: One run each.
        bn_batches: Training data without augmentation. SWA's average needs it for networks with batch norm.
        lr: Learning rate of the plain run, from which FGE and SWA branch off at their `starts`.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty.
        clip: Clip the gradient of the data loss to this norm.
        compute: How to compute; see `Compute`. On a CUDA GPU, the runs of three seeds are interleaved.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
    """
    budget, lr = whole(budget, "budget", least=1), number(lr, "lr")
    multiples, seeds = several(multiples, "multiples", whole), several(seeds, "seeds", whole)
    momentum, weight_decay, clip = (
        number(momentum, "momentum"),
        number(weight_decay, "weight_decay"),
        clip and number(clip, "clip"),
    )
    contenders = [_settled(method, lr) for method in methods]
    _check(contenders, multiples, seeds)
    hardness: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay, "clip": clip}
    runner = _Runner(
        task, train, bn_batches, budget, lr, {**hardness, "compute": compute or Compute(), "progress": progress}
    )
    module = runner.fresh(make, seeds[0])
    runner.check(contenders, module)

    def score(runs: Sequence[list[Weights]]) -> dict[str, float]:
        return Ensemble(module, list(chain(*runs))).score(task, test, progress=progress)

    def question() -> Facts:
        own = {**hardness, "seeds": list(seeds), "multiples": list(multiples)}
        tested = measured_question(module, Weights.of(module), task, {"test": test}, runner.compute)
        return {**own, **runner.question(make, contenders, seeds), **tested}

    def compared(_: Run | None) -> Comparison:
        jobs = [partial(runner.run, make, contenders, seed, Run.of(run, f"seed-{seed}")) for seed in seeds]
        found = at_once(jobs, next(module.parameters()).device)
        entries: dict[str, dict[str, Any]] = {}
        for contender, pool in zip(contenders, zip(*found, strict=True), strict=True):
            spent = {"epochs": runner.cost(contender), "members": len(pool[0])}
            cost = {"title": contender.title, "settings": str(contender), **spent}
            scores = {
                "runs": [score([run]) for run in pool],
                "pooled": {str(k): score(pool[:k]) for k in multiples if k > 1},
            }
            name = type(contender).__name__
            entries[str(contender) if name in entries else name] = {**cost, **scores}
        return Comparison(budget, multiples, seeds, entries)

    return Call(runner.compute).resumed(run, "compare", question, StoredResult.of(COMPARISON, Comparison), compared)


def _check(contenders: Sequence[Contender], multiples: Sequence[int], seeds: Sequence[int]) -> None:
    different = len(set(seeds)) == len(seeds) and len(set(map(str, contenders))) == len(contenders)
    if not contenders or not multiples or not different or max(multiples) > len(seeds) or min(multiples) < 1:
        raise ThalwegError(
            "compare needs different methods, and as many different seeds as the largest multiple; got methods "
            f"{', '.join(map(str, contenders)) or 'none'}, seeds {tuple(seeds)} and multiples {tuple(multiples)}"
        )


class _Runner:
    """Runs every method once per seed; shared epochs are trained once."""

    def __init__(
        self, task: Task, train: Batches, bn_batches: Batches | None, budget: int, lr: float, common: dict[str, Any]
    ):
        self.task, self.train, self.bn_batches, self.budget, self.common = task, train, bn_batches, budget, common
        self.lr, self.steps, self.compute = lr, count(train), common["compute"]

    def question(self, make: Make, contenders: Sequence[Contender], seeds: Sequence[int]) -> Facts:
        """What would be trained, which must be the same when a comparison is resumed."""
        points = [Weights.of(self.fresh(make, seed)) for seed in seeds]
        data, first = data_question(self.train, "the training data")
        names = [f"the fresh network of seed {seed}" for seed in seeds]
        module = self.fresh(make, seeds[0])
        return {
            **{"methods": len(contenders), "budget": self.budget, "lr": self.lr, "precision": self.compute.precision},
            **{f"method {k}'s": self._table(contender) for k, contender in enumerate(contenders, start=1)},
            **data,
            **bn_question(self.bn_batches),
            **first_pass(module, points[0], self.task, first, self.compute, "the first batch", trains=True),
            "the networks": facts.sequence([point.digest() for point in points], "the comparison", "seed", names),
        }

    def _table(self, contender: Contender) -> facts.Fact:
        if not isinstance(contender, Method):
            return facts.table({"class": type(contender).__name__})
        return method_table(contender, contender.plan(self.steps, self.walk_epochs(contender)))

    def fresh(self, make: Make, seed: int) -> nn.Module:
        with during(f"making the network of seed {seed}"), seeded(seed):
            made = None if isinstance(make, nn.Module) else make(seed)
        if not isinstance(made, nn.Module):
            got = type(make if made is None else made).__name__
            raise ThalwegError(f"compare makes its networks with a function, seed -> torch.nn.Module; got {got}")
        return made

    def check(self, contenders: Sequence[Contender], module: nn.Module) -> None:
        """Raise before training, not after, if a method does not fit the budget, and say which budget all would fit."""
        for contender in contenders:
            if problem := self._problem(contender, self.budget):
                others = range(self.budget + 1, 10 * self.budget + 100)
                works = next((n for n in others if not any(self._problem(each, n) for each in contenders)), None)
                advice = f"; a budget of {works} epochs works for all of these methods" if works else ""
                raise ThalwegError(f"{contender} does not fit into a budget of {self.budget} epochs: {problem}{advice}")
            if isinstance(contender, SWA) and self.bn_batches is None and any(batch_norms(module)):
                raise ThalwegError(
                    "SWA's average has no batch-norm statistics of its own: give bn_batches=, the training batches"
                )

    def _problem(self, contender: Contender, budget: int) -> str:
        """Why a method does not fit a budget; empty if it does."""
        twin = copy(self)
        twin.budget = budget
        if 0 in twin.starts(contender):
            return "it would branch off before its first epoch"
        try:
            if isinstance(contender, Method):
                contender.plan(twin.steps, twin.walk_epochs(contender))
        except ThalwegError as error:
            return str(error)
        return ""

    def run(self, make: Make, contenders: Sequence[Contender], seed: int, run: Run | None) -> list[list[Weights]]:
        module = self.fresh(make, seed)
        starts = {epoch for contender in contenders for epoch in self.starts(contender)}
        whole = any(isinstance(contender, Independent) for contender in contenders)
        length = self.budget if whole else max(starts, default=0)
        rates = {"schedule": decay(self.lr, self.budget, self.steps), "keep": sorted(starts), "seed": seed}
        own: dict[str, Any] = {"epochs": length, "run": run and run.child("plain"), **rates, **self.common}
        trained = fit(module, self.task, self.train, **own) if length else None
        parts = [(contender, run and run.child(f"method-{k}")) for k, contender in enumerate(contenders, start=1)]
        return [self._members(contender, module, trained, seed, part) for contender, part in parts]

    def starts(self, contender: Contender) -> list[int]:
        return [round(share * self.budget) for share in getattr(contender, "starts", ())]

    def walk_epochs(self, contender: Contender) -> int:
        starts = self.starts(contender)
        return (self.budget - max(starts)) // len(starts) if starts else self.budget

    def cost(self, contender: Contender) -> int:
        """The epochs it would need alone."""
        starts = self.starts(contender)
        return max(starts) + len(starts) * self.walk_epochs(contender) if starts else self.budget

    def _members(
        self, contender: Contender, module: nn.Module, trained: Weights | None, seed: int, run: Run | None
    ) -> list[Weights]:
        if isinstance(contender, Independent):
            assert trained is not None
            return [trained.to("cpu")]
        start = [trained.kept[epoch] for epoch in self.starts(contender)] if trained else []
        own: dict[str, Any] = {
            "epochs": self.walk_epochs(contender),
            "start": start or None,
            "seed": seed + OTHER_ORDER,
        }
        members = list(walk(module, self.task, self.train, contender, run=run, **own, **self.common).members)
        if not isinstance(contender, SWA):
            return members
        mean = average(members)
        return [mean if self.bn_batches is None else update_bn(module, mean, self.bn_batches, self.task).to("cpu")]


def _settled(method: Contender | type[Contender], lr: float) -> Contender:
    """An instance as it is; a class with the paper's settings for VGG-16, relative to the learning rate of the plain
    run.
    """
    if isinstance(method, Independent | Method):
        return method
    defaults: dict[Any, Callable[[], Contender]] = {
        Independent: Independent,
        Snapshot: lambda: Snapshot(cycles=5, lr_max=lr),
        FGE: lambda: FGE(cycle=2, lr_max=lr / 5, lr_min=lr / 100),
        SWA: lambda: SWA(lr=lr / 5),
    }
    if method not in defaults:
        raise ThalwegError(f"methods are Independent, Snapshot, FGE, SWA or instances of them; got {method!r}")
    return defaults[method]()
