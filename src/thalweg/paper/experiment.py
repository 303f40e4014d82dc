"""The networks, curves and walks that the entries share: each is trained once, in its own folder."""

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from math import log
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch import Tensor, nn

import thalweg as tw

from ..bench import Bench
from ..loading import Inputs
from ..runtime.interleave import at_once
from ..runtime.rng import seeded
from ..store.files import SCAN
from ..store.runs import LOG, Run
from ..training.stalled import LEARNT
from ..weightspace.layout import batch_norms
from .recipes import Preset, Recipe, changed

T = TypeVar("T")
DONE = "finished"  # an empty file in the folder of a finished run
MEASURED = 1000  # images in a batch of a scan
KINDS: dict[str, Callable[[tw.Weights, tw.Weights], tw.Curve]] = {"bezier": tw.Bezier, "polychain": tw.PolyChain}


@dataclass(frozen=True)
class Need:
    """Something that has to be trained: a network, a Snapshot run, a curve, or an FGE walk.

    Attributes:
        seed: Its seed; in an experiment that lists seeds, its place in that list.
        aligned_by: What the second network of a curve is aligned by, "weights" or "activations"; "" if it is not.
        epochs: How long a curve is trained; 0 for as long as the recipe says.
        lr_factor: The learning rate of a curve, relative to that of the recipe.
        loss: What a curve minimises; see `connect`.
    """

    kind: str
    seed: int
    aligned_by: str = ""
    epochs: int = 0
    lr_factor: int = 1
    loss: Literal["uniform", "arclength"] = "uniform"

    @property
    def stage(self) -> int:
        """Needs of one stage can be trained interleaved; walks and curves need the networks of the previous stage."""
        return 0 if self.kind in ("network", "snapshot") else 1


class CommonArguments(TypedDict):
    """Arguments of every call that trains or measures."""

    weight_decay: float
    compute: tw.Compute
    progress: bool | None


class RateArguments(TypedDict, total=False):
    """Arguments of `fit` and `connect`."""

    lr: float
    schedule: Callable[[int], float]
    momentum: float
    clip: float


class Unusable(tw.ThalwegError):
    """Something was trained, and did not learn or diverged: what needs it cannot be made."""


class Experiment:
    """Trains networks, curves and walks for one recipe at one scale, under `folder`.

    Without data (`given`), random images are used at smoke scale. With `seeds`, networks and walks have these instead
    of 0, 1, 2, ...; results of several of them are stored in a folder of their own. On a GPU, up to `interleaved`
    training runs at a time are interleaved.
    """

    task = tw.classification()

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        scale: Preset,
        given: Path | None = None,
        device: str = "cpu",
        compute: tw.Compute | None = None,
        progress: bool | None = None,
        download: bool = False,
        seeds: Sequence[int] = (),
        interleaved: int = 3,
    ):
        self.recipe = scale.shrunk(recipe)
        self.scale = scale
        self.folder = folder / scale.name / recipe.folder
        self.given = given
        self.device = torch.device(device)
        self.compute = compute or tw.Compute()
        self.progress = progress
        self.download = download
        self.seeds = tuple(seeds)
        self.interleaved = interleaved
        self._made: dict[Need, Any] = {}
        self._pairs: dict[tuple[int, ...], Experiment] = {}

    @property
    def results(self) -> Path:
        """Where curves, scans and results are stored."""
        return self.folder / f"seeds-{'-'.join(map(str, self.seeds))}" if self.seeds else self.folder

    def folder_of(self, need: Need) -> Path:
        """Where something is trained."""
        if need.kind in KINDS:
            parts = [
                f"{need.kind}-{need.seed}",
                f"-{need.aligned_by or 'plain'}-{need.epochs}" if need.epochs else "",
                f"-x{need.lr_factor}" if need.lr_factor > 1 else "",
                "-arclength" if need.loss == "arclength" else "",
            ]
            return self.results / "".join(parts)
        return self.folder / f"{need.kind}-{self._seed(need)}"

    def _seed(self, need: Need) -> int:
        if self.seeds and need.seed >= len(self.seeds):
            raise tw.ThalwegError(
                f"at least {need.seed + 1} seeds are needed here; got {', '.join(map(str, self.seeds))}: list more"
            )
        return self.seeds[need.seed] if self.seeds and need.kind not in KINDS else need.seed

    @property
    def random_data(self) -> bool:
        """Whether data are random."""
        return self.given is None and self.scale.name == "smoke"

    def _network(self) -> nn.Module:
        """The paper's, or a small one that runs the same code quickly: with batch norm if the paper's has it."""
        model, classes = self.recipe.model, self.recipe.classes
        if self.scale.name == "full" or model in ("fc", "conv3fc3"):
            width = {} if self.recipe.width is None else {"width": self.recipe.width}
            return getattr(tw.models, model)(classes=classes, **width)
        return tw.models.conv3fc3(0.05, classes) if model == "vgg16" else tw.models.preresnet(11, classes)

    @cached_property
    def images(self) -> list[tuple[Tensor, Tensor]]:
        """Training and test images with their labels, as many as the scale asks for."""
        counts = (self.scale.images, self.scale.tests)
        if self.random_data:
            return [self._random(count or 1) for count in counts]
        sets = getattr(tw.data, self.recipe.data)(tw.data.find_data(self.given), download=self.download)
        return [(images[:count], labels[:count]) for (images, labels), count in zip(sets, counts, strict=True)]

    def _random(self, count: int) -> tuple[Tensor, Tensor]:
        shape = (1, 28, 28) if self.recipe.data == "mnist" else (3, 32, 32)
        with seeded(0):
            images = torch.randint(256, (count, *shape), dtype=torch.uint8)
            return images, torch.randint(self.recipe.classes, (count,))

    def batches(self, pair: tuple[Tensor, Tensor], size: int | None = None, **settings: Any) -> tw.data.DeviceBatches:
        """Of images and labels, in batches of the recipe or of another size."""
        mean, std = self.recipe.colours
        return tw.data.DeviceBatches(
            *pair, size or self.recipe.batch, mean=mean, std=std, device=self.device, **settings
        )

    @cached_property
    def train(self) -> Any:
        return self.batches(self.images[0], shuffle=True, crop=self.recipe.crop, flip=self.recipe.flip)

    @cached_property
    def clean(self) -> Any:
        """The training set without augmentation; batch-norm statistics are of `train`, with it."""
        return self.train.clean()

    @cached_property
    def test(self) -> Any:
        return self.batches(self.images[1])

    @cached_property
    def data(self) -> dict[str, Any]:
        """What scans measure, in batches that keep a GPU busier than those of training."""
        return {name: self.batches(pair, MEASURED) for name, pair in zip(("train", "test"), self.images, strict=True)}

    def model(self, seed: int) -> nn.Module:
        with seeded(seed):
            return self._network().to(self.device)

    @cached_property
    def architecture(self) -> nn.Module:
        """A network of the same architecture; its weights do not matter."""
        return self.model(0)

    @property
    def settings(self) -> CommonArguments:
        return {"weight_decay": self.recipe.weight_decay, "compute": self.compute, "progress": self.progress}

    def rates(self, lr: float) -> RateArguments:
        """Arguments to train a network or a curve whose recipe has the rate `lr`."""
        return {"lr": lr}

    def obtain(self, need: Need) -> Any:
        """Train it, or load it if it exists; loaded results are cached."""
        if need not in self._made:
            try:
                self._made[need] = self._trained(need)
            except (tw.Stalled, tw.Diverged) as error:
                raise self._unusable(need, str(error)) from error
            if need.kind == "network":
                self._check_learnt(need)
            (self.folder_of(need) / DONE).touch()
        return self._made[need]

    def _unusable(self, need: Need, why: str) -> Unusable:
        return Unusable(
            f"the {need.kind} of seed {self._seed(need)} ({self.recipe.label}) cannot be used: {why}; list other seeds "
            "with --seeds"
        )

    @property
    def constant_loss(self) -> float:
        """The loss of a network that gives every class the same probability."""
        return log(self.recipe.classes)

    def _check_learnt(self, need: Need) -> None:
        """Refuse an end at the loss of a constant answer, which may have been trained by an earlier version or on
        another machine.
        """
        logged = [entry["loss"] for entry in Run(self.folder_of(need)).lines(LOG)]
        if self.scale.name == "full" and logged and not logged[-1] < (1 - LEARNT) * self.constant_loss:
            self._made.pop(need)
            raise self._unusable(
                need,
                f"its train loss ended at {logged[-1]:.4g}, and that of a constant answer is {self.constant_loss:.4g}",
            )

    def _trained(self, need: Need) -> Any:
        recipe, seed, run = self.recipe, self._seed(need), self.folder_of(need)
        match need.kind:
            case "network":
                return tw.fit(
                    self.model(seed),
                    self.task,
                    self.train,
                    epochs=recipe.epochs,
                    keep=self._branches(),
                    seed=seed,
                    run=run,
                    **self.rates(recipe.lr),
                    **self.settings,
                )
            case "snapshot":  # over the whole budget, from newly initialised weights
                return tw.walk(
                    self.model(seed + 2000),
                    self.task,
                    self.train,
                    tw.Snapshot(cycles=recipe.cycles, lr_max=recipe.sse_lr),
                    epochs=recipe.epochs,
                    watch={"test": self.test},
                    seed=seed + 2000,
                    run=run,
                    **self.settings,
                )
            case "fge":  # from the kept epochs of a network
                fge = recipe.walk
                assert fge is not None  # entries with FGE are for recipes with its settings: `Entry.fits`
                return tw.walk(
                    self.architecture,
                    self.task,
                    self.train,
                    tw.FGE(cycle=fge.cycle, lr_max=fge.lr_max, lr_min=fge.lr_min),
                    epochs=fge.epochs,
                    start=[self.network(need.seed).kept[epoch] for epoch in fge.starts],
                    watch={"test": self.test},
                    seed=seed + 1000,
                    run=run,
                    **self.settings,
                )
            case kind:  # between the first two networks; the seed determines the draws of t and of the data
                return tw.connect(
                    self.architecture,
                    KINDS[kind](*self.ends(need.aligned_by)),
                    self.task,
                    self.train,
                    epochs=need.epochs or recipe.curve_epochs,
                    loss=need.loss,
                    seed=seed,
                    run=run,
                    **self.rates(need.lr_factor * recipe.curve_lr),
                    **self.settings,
                )

    def _branches(self) -> list[int]:
        """The epochs at which FGE branches off, of those that a network has."""
        return [epoch for epoch in (self.recipe.walk.starts if self.recipe.walk else ()) if epoch <= self.recipe.epochs]

    def check(self, need: Need) -> None:
        """Raise if a changed recipe does not allow it, before anything is trained for it."""
        if need.kind == "fge" and self.recipe.walk and len(self._branches()) < len(self.recipe.walk.starts):
            raise tw.ThalwegError(
                f"FGE branches off at epoch {self.recipe.walk.starts[-1]} ({self.recipe.label}), and networks have "
                f"{self.recipe.epochs}: set walk.starts too, as in --set walk.starts={self.recipe.epochs // 2}"
            )

    def network(self, seed: int) -> tw.Weights:
        return self.obtain(Need("network", seed))

    def networks(self, count: int) -> list[tw.Weights]:
        return [self.network(seed) for seed in range(count)]

    def ends(self, aligned_by: Any = "") -> list[tw.Weights]:
        """The first two networks, the second aligned to the first by "weights" or "activations"; "": not aligned."""
        one, two = self.networks(2)
        need = Need("ends", 0, aligned_by)
        if aligned_by and need not in self._made:
            self._made[need] = [one, self._permutation(one, two, aligned_by).apply(two)]
        return self._made.get(need, [one, two])

    def _permutation(self, one: tw.Weights, two: tw.Weights, by: Any) -> tw.Permutation:
        """What aligns the second to the first; stored, since a curve can be resumed between the same ends alone, and
        units that are nearly alike may be matched otherwise on another machine.
        """
        pair = "-".join(end.digest()[:8] for end in (one, two))
        file = self.results / f"permutation-{by}-{pair}.safetensors"
        if not file.is_file():
            tw.align(self.architecture, one, two, self.task, self.clean, by=by).permutation.save(file)
        return tw.Permutation.load(file)

    def curve(self, kind: str, seed: int = 0) -> tw.Curve:
        return tw.Segment(*self.networks(2)) if kind == "segment" else self.obtain(Need(kind, seed))

    def walk(self, kind: str, seed: int = 0) -> tw.Walk:
        return self.obtain(Need(kind, seed))

    def scan(self, name: str, target: Any, **settings: Any) -> tw.Scan:
        """Every data set at every point; stored under `name`."""
        points = {"points": self.scale.points} if isinstance(target, tw.Curve) else {}
        own = {"bn_batches": self.train, "run": self.results / f"scan-{name}", **self.settings, **points, **settings}
        return tw.scan(self.architecture, target, self.task, self.data, **own)

    def scan_curves(self, *kinds: str) -> dict[str, tw.Scan]:
        jobs = [partial(self.scan, kind, self.curve(kind)) for kind in kinds]
        return dict(zip(kinds, self.interleave(jobs), strict=True))

    def interleave(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Interleave training runs and scans on a GPU, as many at a time as were asked for."""
        return at_once(jobs, self.device, self.interleaved)

    def scan_ends(self) -> tw.Scan:
        """The first two networks, with their own batch-norm statistics."""
        return self.scan("single", self.networks(2), bn_batches=None)

    def report(self, members: Sequence[tw.Weights]) -> tw.Report:
        """Their ensemble on the test set."""
        return tw.Ensemble(self.architecture, members).report(self.task, self.test, progress=self.progress)

    def timer(self, compute: tw.Compute, rounds: int) -> Bench:
        """Times steps of its network."""
        return Bench(Inputs(self.architecture, self.task, self.train, self.train, self.data), compute, rounds)

    def to_scan(self, *names: str, points: int | None = None) -> "Measurements":
        """What `scan` stores under these names, as many points as along a curve unless said otherwise."""
        return [(self, f"scan-{name}/{SCAN}", points or self.scale.points) for name in names]

    def batches_per_point(self) -> int:
        """Forward passes at one point of a scan, in batches of training: for batch norm, and over all data sets."""
        return (1 + any(batch_norms(self.architecture))) * len(self.train) + len(self.test)

    def finished(self, need: Need) -> bool:
        return (self.folder_of(need) / DONE).is_file()

    def seconds(self, need: Need) -> float:
        """The training time from its logs; that of interleaved runs is divided among them."""
        return sum(
            entry["seconds"] / entry.get("at_once", 1)
            for path in self.folder_of(need).rglob(LOG)
            for entry in Run(path.parent).lines(LOG)
        )

    def cost(self, need: Need) -> tuple[int, int]:
        """Epochs of training, and the expected size on disk: a network with its kept epochs and their momentum, a
        curve, or the members of a walk.
        """
        recipe, fge = self.recipe, self.recipe.walk
        costs = {
            "network": (recipe.epochs, 1 + 2 * len(self._branches())),
            "snapshot": (recipe.epochs, recipe.cycles),
            "fge": (fge.epochs * len(fge.starts), (fge.pieces + 1) * len(fge.starts)) if fge else (0, 0),
        }
        trained, vectors = costs.get(need.kind, (need.epochs or recipe.curve_epochs, 3))
        return trained, 4 * vectors * sum(p.numel() for p in self.architecture.parameters())

    def with_width(self, factor: float) -> "Experiment":
        """The same with another width."""
        recipe = changed(self.recipe, [f"width={factor}"])
        other = self._copy(recipe=recipe, folder=self.folder.with_name(recipe.folder))
        vars(other).pop("architecture", None)
        return other

    def pairs(self, seeds: int) -> "list[Experiment]":
        """Networks 0 and 1, 2 and 3, and so on, or those listed, two at a time; each pair with its own curves, made
        once.
        """
        listed = self.seeds or range(2 * seeds)
        if len(listed) % 2:
            raise tw.ThalwegError(
                f"pairs of networks are needed here, and seeds {', '.join(map(str, listed))} are {len(listed)}: list "
                "an even number"
            )
        pairs = list(zip(listed[::2], listed[1::2], strict=True))
        self._pairs = {pair: self._copy(seeds=pair) for pair in pairs} | self._pairs
        return [self._pairs[pair] for pair in pairs]

    def _copy(self, **changes: Any) -> "Experiment":
        _ = self.train, self.data  # so that copies share them
        other = copy(self)
        vars(other).update(changes, _made={}, _pairs={})
        return other


Wanted = Sequence[tuple[Experiment, Need]]
# a pattern for where each is stored below the results, and its number of points
Measurements = list[tuple[Experiment, str, int]]


def missing(wanted: Wanted) -> list[tuple[Experiment, Need]]:
    """What does not exist yet, each once."""
    once = {experiment.folder_of(need): (experiment, need) for experiment, need in wanted}
    return [(experiment, need) for experiment, need in once.values() if not experiment.finished(need)]


def prepare(wanted: Wanted) -> None:
    """Train everything that does not exist yet; independent training runs are interleaved, the longest first."""
    for experiment, need in wanted:
        experiment.check(need)
    # a network that has not trained must not be an end
    with warnings.catch_warnings(action="error", category=tw.Stalled):
        for stage in (0, 1):
            here = [(experiment, need) for experiment, need in missing(wanted) if need.stage == stage]
            here.sort(key=lambda item: item[0].cost(item[1])[0], reverse=True)
            if here:
                here[0][0].interleave([partial(experiment.obtain, need) for experiment, need in here])
