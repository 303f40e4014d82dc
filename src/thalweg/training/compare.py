"""Ensembles at equal cost: several methods, each within one, two, three training budgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..batches import Batches, count
from ..errors import ThalwegError, during, number_list, real_number, whole_number
from ..evaluation.ensemble_comparison import EnsembleComparison
from ..evaluation.fingerprint import Facts, bn_fingerprint, measured_fingerprint
from ..results import Comparison
from ..runtime.compute import Call, Compute, StoredResult
from ..runtime.interleave import at_once
from ..runtime.rng import seeded
from ..store import facts, files
from ..store.runs import Run
from ..tasks import Task
from ..weightspace.batchnorm import update_bn
from ..weightspace.layout import batch_norms
from ..weightspace.weights import Weights, average
from .fingerprint import method_table, training_fingerprint
from .fit import fit
from .loop import Settings
from .walk import walk
from .walk_methods import FGE, SWA, Method, Plan, Snapshot


@dataclass(frozen=True)
class Independent:
    """Independent networks, each trained for the whole budget."""

    title: ClassVar[str] = "Independent networks"
    starts: ClassVar[tuple[float, ...]] = ()


Contender = Independent | Method
TIMING = "timing.json"
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
    held_out: Batches | None = None,
    lr: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip: float | None = None,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Give each ensembling method the same training budget and score the ensembles.

    Training that several methods share runs once, and is charged to each of them as if it ran alone. Every ensemble is
    also scored as one network, the mean of its weights. With `Independent` among the methods, ensembles are compared
    with one network, example by example, and with the number of independent networks of the same calibrated NLL.

    Args:
        make: Maps a seed to a newly initialised network.
        task: The loss to minimise.
        train: The training data.
        test: The data to score the ensembles on.
        methods: `Independent()`, `Snapshot(...)`, `FGE(...)` or `SWA(...)`. A bare class uses the paper's settings,
            scaled to `lr`.
        budget: Epochs of one run.
        multiples: Multiples of the budget to report; k times the budget pools the first k runs.
        seeds: One run each. With more than the largest multiple, ensembles are also compared with that many independent
            networks.
        bn_batches: Batches as in training, augmentation included. Averages of networks with batch norm, as SWA's, need
            them.
        held_out: Other data, to fit the temperatures of the calibrated scores; as in `Ensemble.report`.
        lr: Learning rate of the plain run, from which FGE and SWA branch off at their `starts`.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty.
        clip: Clip the gradient of the data loss to this norm.
        compute: How to compute; see `Compute`. On a CUDA GPU, the runs of three seeds are interleaved.
        run: A folder that stores the state of the run. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
    """
    lr = real_number(lr, "lr")
    settings = Settings(whole_number(budget, "budget", least=1), lr, momentum, weight_decay, None, None, clip, 0)
    multiples, seeds = number_list(multiples, "multiples", whole_number), number_list(seeds, "seeds", whole_number)
    contenders = [_with_paper_settings(method, lr) for method in methods]
    _check(contenders, multiples, seeds)
    call = Call.of(compute, progress)
    runner = _Runner(make, task, train, bn_batches, settings, contenders, call, count(train))
    module = runner.fresh(seeds[0])
    runner.check(module)

    comparison = EnsembleComparison(module, task, test, held_out, bn_batches, progress)

    def fingerprint() -> Facts:
        data = {"test": test} if held_out is None else {"test": test, "held out": held_out}
        return {
            **runner.fingerprint(module, seeds),
            **{"multiples": list(multiples)},
            **measured_fingerprint(module, Weights.of(module), task, data, call.compute),
        }

    def compared(_: Run | None) -> Comparison:
        comparison.check()
        jobs = [partial(runner.run, seed, Run.of(run, f"seed-{seed}")) for seed in seeds]
        pools = [*zip(*at_once(jobs, next(module.parameters()).device), strict=True)]
        independent = next((each for each in contenders if isinstance(each, Independent)), None)
        one = [] if independent is None else comparison.alone(pools[contenders.index(independent)])
        every = range(1, len(seeds) + 1)  # numbers of independent networks, to interpolate between
        entries: dict[str, dict[str, Any]] = {}
        for contender, pool in zip(contenders, pools, strict=True):
            name = type(contender).__name__
            entries[str(contender) if name in entries else name] = {
                "title": contender.title,
                "settings": str(contender),
                "epochs": runner.cost(contender),
                "members": len(pool[0]),
                **comparison.entry(pool, every if contender is independent else multiples, one),
            }
        return Comparison(settings.epochs, multiples, seeds, entries, comparison.milliseconds(pools[0][0][0]))

    return call.resumed(run, "compare", fingerprint, StoredResult(files.COMPARISON, _load, _save), compared)


def _save(found: Comparison, folder: Path) -> None:
    """The time in a file of its own: everything else is the same in every run."""
    files.save_json(folder / TIMING, "timing", {"milliseconds": found.milliseconds})
    replace(found, milliseconds=None).save(folder / files.COMPARISON)


def _load(folder: Path) -> Comparison:
    found, timing = Comparison.load(folder / files.COMPARISON), folder / TIMING
    if not timing.is_file():  # files of older versions have none
        return found
    with files.reading(timing):
        return replace(found, milliseconds=float(files.load_json(timing, "timing")["milliseconds"]))


def _check(contenders: Sequence[Contender], multiples: Sequence[int], seeds: Sequence[int]) -> None:
    different = len(set(seeds)) == len(seeds) and len(set(map(str, contenders))) == len(contenders)
    if not contenders or not multiples or not different or max(multiples) > len(seeds) or min(multiples) < 1:
        raise ThalwegError(
            "compare needs different methods, and as many different seeds as the largest multiple; got methods "
            f"{', '.join(map(str, contenders)) or 'none'}, seeds {tuple(seeds)} and multiples {tuple(multiples)}"
        )


@dataclass
class _Runner:
    """Runs every method once per seed; shared epochs are trained once."""

    make: Callable[[int], nn.Module]
    task: Task
    train: Batches
    bn_batches: Batches | None
    settings: Settings
    contenders: Sequence[Contender]
    call: Call
    steps: int  # updates of one epoch

    def fingerprint(self, module: nn.Module, seeds: Sequence[int]) -> Facts:
        """What would be trained, which must be the same when a comparison is resumed."""
        points = [Weights.of(self.fresh(seed)) for seed in seeds]
        digests, names = [point.digest() for point in points], [f"the fresh network of seed {seed}" for seed in seeds]
        compute, processes, budget = self.call.compute, self.call.processes, self.settings.epochs
        plans = [(each, self._plan(each, budget)) for each in self.contenders]
        return {
            **training_fingerprint(self.settings, module, points[0], self.task, self.train, compute, processes),
            **{"budget": budget, "methods": len(plans), "seeds": list(seeds)},
            **{f"method {k}'s": method_table(*planned) for k, planned in enumerate(plans, start=1)},
            **bn_fingerprint(self.bn_batches),
            "the networks": facts.sequence(digests, "the comparison", "seed", names),
        }

    def _plan(self, contender: Contender, budget: int) -> Plan | None:
        """The schedule of each of its walks."""
        return contender.plan(self.steps, _branches(contender, budget)[1]) if isinstance(contender, Method) else None

    def fresh(self, seed: int) -> nn.Module:
        with during(f"making the network of seed {seed}"), seeded(seed):
            made = None if isinstance(self.make, nn.Module) else self.make(seed)
        if not isinstance(made, nn.Module):
            raise ThalwegError(
                "compare needs a function that makes a torch.nn.Module from a seed; got "
                f"{type(self.make if made is None else made).__name__}"
            )
        return made

    def check(self, module: nn.Module) -> None:
        """Raise before training, not after, if a method does not fit the budget, and say which budget all would fit."""
        budget = self.settings.epochs
        for contender in self.contenders:
            if problem := self._problem(contender, budget):
                others = range(budget + 1, 10 * budget + 100)
                works = next((n for n in others if not any(self._problem(each, n) for each in self.contenders)), None)
                advice = f"; a budget of {works} epochs works for all of these methods" if works else ""
                raise ThalwegError(f"{contender} does not fit into a budget of {budget} epochs: {problem}{advice}")
            if isinstance(contender, SWA) and self.bn_batches is None and any(batch_norms(module)):
                raise ThalwegError(
                    "SWA's average has no batch-norm statistics of its own: set bn_batches= to the training batches"
                )

    def _problem(self, contender: Contender, budget: int) -> str:
        """Why a method does not fit a budget; empty if it does."""
        if 0 in _branches(contender, budget)[0]:
            return "it would branch off before its first epoch"
        try:
            self._plan(contender, budget)
        except ThalwegError as error:
            return str(error)
        return ""

    def cost(self, contender: Contender) -> int:
        """The epochs that a method would need by itself."""
        starts, epochs = _branches(contender, self.settings.epochs)
        return max(starts, default=0) + max(len(starts), 1) * epochs

    def run(self, seed: int, run: Run | None) -> list[list[Weights]]:
        module, budget = self.fresh(seed), self.settings.epochs
        starts = {epoch for contender in self.contenders for epoch in _branches(contender, budget)[0]}
        alone = any(isinstance(contender, Independent) for contender in self.contenders)
        epochs, schedule = budget if alone else max(starts, default=0), self.settings.rate(self.steps)
        trained = (
            None
            if epochs == 0
            else fit(
                module,
                self.task,
                self.train,
                epochs=epochs,
                schedule=schedule,
                momentum=self.settings.momentum,
                weight_decay=self.settings.weight_decay,
                clip=self.settings.clip,
                keep=sorted(starts),
                seed=seed,
                compute=self.call.compute,
                run=run and run.child("plain"),
                progress=self.call.progress,
            )
        )
        return [
            self._members(contender, module, trained, seed, run and run.child(f"method-{k}"))
            for k, contender in enumerate(self.contenders, start=1)
        ]

    def _members(
        self, contender: Contender, module: nn.Module, trained: Weights | None, seed: int, run: Run | None
    ) -> list[Weights]:
        if isinstance(contender, Independent):
            assert trained is not None
            return [trained.to("cpu")]
        starts, epochs = _branches(contender, self.settings.epochs)
        start = [trained.kept[epoch] for epoch in starts] if trained and starts else None
        walked = walk(
            module,
            self.task,
            self.train,
            contender,
            epochs=epochs,
            start=start,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            clip=self.settings.clip,
            seed=seed + OTHER_ORDER,
            compute=self.call.compute,
            run=run,
            progress=self.call.progress,
        )
        members = list(walked.members)
        if not isinstance(contender, SWA):
            return members
        mean = average(members)
        return [mean if self.bn_batches is None else update_bn(module, mean, self.bn_batches, self.task).to("cpu")]


def _branches(contender: Contender, budget: int) -> tuple[list[int], int]:
    """The epochs at which it branches off the plain run, if any, and the epochs of each of its walks."""
    starts = [round(share * budget) for share in contender.starts]
    return starts, (budget - max(starts, default=0)) // max(len(starts), 1)


def _with_paper_settings(method: Contender | type[Contender], lr: float) -> Contender:
    """The method itself, or of a bare class one with the paper's settings for VGG-16, relative to the learning rate of
    the plain run.
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
