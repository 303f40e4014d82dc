"""The networks, curves and walks that the entries share: each is trained once, in its own folder."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError
from ..evaluation.scan import scan
from ..results import Scan, Walk
from ..runtime.compute import Compute
from ..runtime.interleave import at_once
from ..runtime.rng import seeded
from ..store.runs import LOG, Run
from ..tasks import Task, classification
from ..training.connect import connect
from ..training.fit import fit
from ..training.walk import walk
from ..training.walk_methods import FGE, Snapshot
from ..weightspace.curves import Bezier, Curve, PolyChain
from ..weightspace.layout import batch_norms
from ..weightspace.weights import Weights
from . import data as sets
from . import models
from .data import DeviceBatches
from .recipes import Preset, Recipe

READERS: dict[str, Callable[..., Any]] = {"mnist": sets.mnist, "cifar10": sets.cifar10, "cifar100": sets.cifar100}
STAGES = (0, 1)
DONE = "finished"  # an empty file in the folder of a finished run
KINDS: dict[str, type[Curve]] = {"bezier": Bezier, "polychain": PolyChain}


@dataclass(frozen=True)
class Need:
    """Something that has to be trained: a network, a Snapshot run, a curve, or an FGE walk, with its seed."""

    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"

    @property
    def stage(self) -> int:
        """Needs of one stage can be trained interleaved; walks and curves need the networks of the previous stage."""
        return 0 if self.kind in ("network", "snapshot") else 1


class Experiment:
    """Trains what is needed for one recipe at one scale, under `folder`.

    Without data (`given`), random images are used at smoke scale.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        scale: Preset,
        given: Path | None = None,
        device: str = "cpu",
        compute: Compute | None = None,
        progress: bool | None = None,
        download: bool = False,
        make: Callable[[], nn.Module] | None = None,
    ):
        self.recipe, self.scale, self.given, self.download = scale.shrunk(recipe), scale, given, download
        self.folder = folder / scale.name / recipe.name
        self.device, self.compute, self.progress = torch.device(device), compute or Compute(), progress
        self.task: Task = classification()
        self.make = make or partial(_network, recipe.model, recipe.classes, scale.name == "smoke")
        self._made: dict[Need, Any] = {}

    @cached_property
    def images(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Training and test images with their labels, as many as the scale asks for."""
        if self.given is None and self.scale.name == "smoke":
            train, test = (self._drawn(n) for n in (self.scale.images, self.scale.tests))
        else:
            train, test = READERS[self.recipe.data](sets.find_data(self.given), download=self.download)
        images, tests = self.scale.images, self.scale.tests
        return (train[0][:images], train[1][:images]), (test[0][:tests], test[1][:tests])

    def _drawn(self, count: int | None) -> tuple[Tensor, Tensor]:
        shape = (1, 28, 28) if self.recipe.data == "mnist" else (3, 32, 32)
        with seeded(0):
            return torch.randint(256, (count or 1, *shape), dtype=torch.uint8), torch.randint(
                self.recipe.classes, (count or 1,)
            )

    def _batches(self, pair: tuple[Tensor, Tensor], **settings: Any) -> DeviceBatches:
        mean, std = self.recipe.colours
        return DeviceBatches(*pair, self.recipe.batch, mean=mean, std=std, device=self.device, **settings)

    @cached_property
    def train(self) -> DeviceBatches:
        return self._batches(self.images[0], shuffle=True, crop=self.recipe.crop, flip=self.recipe.flip)

    @cached_property
    def clean(self) -> DeviceBatches:
        return self.train.clean()

    @cached_property
    def test(self) -> DeviceBatches:
        return self._batches(self.images[1])

    def model(self, seed: int) -> nn.Module:
        with seeded(seed):
            return self.make().to(self.device)

    @cached_property
    def form(self) -> nn.Module:
        """A network of the same architecture; its weights do not matter."""
        return self.model(0)

    @property
    def settings(self) -> dict[str, Any]:
        return {"weight_decay": self.recipe.weight_decay, "compute": self.compute, "progress": self.progress}

    def rates(self, lr: float) -> dict[str, Any]:
        """Arguments to train a network or a curve whose recipe has the rate `lr`."""
        return {"lr": lr}

    def network(self, seed: int) -> Weights:
        return self.fulfil(Need("network", seed))

    def curve(self, kind: str, seed: int = 0) -> Curve:
        return self.fulfil(Need(kind, seed))

    def fge(self, seed: int) -> Walk:
        return self.fulfil(Need("fge", seed))

    def snapshot(self, seed: int) -> Walk:
        return self.fulfil(Need("snapshot", seed))

    def _fit(self, seed: int) -> Weights:
        """A network trained for the whole budget, keeping the epochs at which FGE branches off."""
        keep = self.recipe.walk.starts if self.recipe.walk else ()
        own: dict[str, Any] = {
            "epochs": self.recipe.epochs,
            "keep": keep,
            "seed": seed,
            "run": self.folder / f"network-{seed}",
        }
        return fit(self.model(seed), self.task, self.train, **own, **self.rates(self.recipe.lr), **self.settings)

    def networks(self, count: int) -> list[Weights]:
        return [self.network(seed) for seed in range(count)]

    def _connect(self, kind: str, seed: int = 0) -> Curve:
        """Between the first two networks; `seed` determines the draws of t and of the data."""
        fresh = KINDS[kind](self.network(0), self.network(1))
        own: dict[str, Any] = {"epochs": self.recipe.curve_epochs, "seed": seed, "run": self.folder / f"{kind}-{seed}"}
        return connect(
            self.form, fresh, self.task, self.train, **own, **self.rates(self.recipe.curve_lr), **self.settings
        )

    def _walk(self, seed: int) -> Walk:
        """FGE from the kept epochs of a network."""
        way = self.recipe.walk
        if way is None:
            raise ThalwegError(f"the paper does not use FGE with {self.recipe.title} on {self.recipe.dataset}")
        kept = self.network(seed).kept
        method = FGE(cycle=way.cycle, lr_max=way.lr_max, lr_min=way.lr_min)
        own: dict[str, Any] = {
            "epochs": way.epochs,
            "start": [kept[epoch] for epoch in way.starts],
            "seed": seed + 1000,
        }
        run, watch = self.folder / f"fge-{seed}", {"test": self.test}
        return walk(self.form, self.task, self.train, method, run=run, watch=watch, **own, **self.settings)

    def _cycle(self, seed: int) -> Walk:
        """Snapshot ensembles over the whole budget, from newly initialised weights."""
        method = Snapshot(cycles=self.recipe.cycles, lr_max=self.recipe.sse_lr)
        own: dict[str, Any] = {
            "epochs": self.recipe.epochs,
            "seed": seed + 2000,
            "run": self.folder / f"snapshot-{seed}",
        }
        return walk(
            self.model(seed + 2000), self.task, self.train, method, watch={"test": self.test}, **own, **self.settings
        )

    def scan(self, name: str, target: Any, **settings: Any) -> Scan:
        """Train and test set at every point; stored under `name`."""
        common: dict[str, Any] = {"bn_batches": self.clean, "run": self.folder / f"scan-{name}", **self.settings}
        data = {"train": self.clean, "test": self.test}
        places = {"points": self.scale.points} if isinstance(target, Curve) else {}
        return scan(self.form, target, self.task, data, **{**places, **common, **settings})

    def described(self) -> dict[str, Any]:
        """All settings of the recipe, stored with results."""
        return asdict(self.recipe)

    def batches_per_point(self) -> int:
        """Forward passes at one point of a scan: for batch-norm statistics, and over both data sets."""
        return (1 + any(True for _ in batch_norms(self.form))) * len(self.clean) + len(self.test)

    def fulfil(self, need: Need) -> Any:
        """Train it, or load it if it exists; loaded results are cached."""
        makers: Mapping[str, Callable[[int], object]] = {
            "network": self._fit,
            "snapshot": self._cycle,
            "fge": self._walk,
            **{kind: partial(self._connect, kind) for kind in KINDS},
        }
        if need not in self._made:
            self._made[need] = makers[need.kind](need.seed)
            (self.folder / need.name / DONE).touch()
        return self._made[need]

    def finished(self, need: Need) -> bool:
        return (self.folder / need.name / DONE).is_file()

    def size_on_disk(self, need: Need) -> int:
        """The expected size on disk: a network with its kept epochs and their momentum, a curve, or the members of a
        walk.
        """
        way = self.recipe.walk
        vectors = {
            "network": 1 + 2 * len(way.starts if way else ()),
            "snapshot": self.recipe.cycles,
            "fge": way.epochs // way.cycle * len(way.starts) if way else 0,
        }
        return 4 * sum(p.numel() for p in self.form.parameters()) * vectors.get(need.kind, 3)

    def seconds(self, need: Need) -> float:
        """The training time from its logs; that of interleaved runs is divided among them."""
        logs = [Run(path.parent).lines(LOG) for path in (self.folder / need.name).rglob(LOG)]
        return sum(entry["seconds"] / entry.get("at_once", 1) for log in logs for entry in log)

    def epochs(self, need: Need) -> int:
        if need.kind in KINDS:
            return self.recipe.curve_epochs
        if need.kind == "fge" and self.recipe.walk:
            return self.recipe.walk.epochs * len(self.recipe.walk.starts)
        return self.recipe.epochs

    def wide(self, factor: float) -> "Experiment":
        """The same with conv3fc3 of another width."""
        if factor == 1 and self.recipe.model == "conv3fc3":
            return self
        assert self.train is not None  # so that the copies share it
        other = copy(self)
        other.__dict__.pop("form", None)
        other._made = {}
        other.folder = self.folder.with_name(f"{self.folder.name}-width-{factor:g}")
        other.make = partial(models.conv3fc3, width=factor, classes=self.recipe.classes)
        return other


Wanted = Sequence[tuple[Experiment, Need]]


def missing(wanted: Wanted) -> list[tuple[Experiment, Need]]:
    """What does not exist yet, each once."""
    once = {(experiment.folder, need): (experiment, need) for experiment, need in wanted}
    return [(experiment, need) for experiment, need in once.values() if not experiment.finished(need)]


def prepare(wanted: Wanted, number: int = 3) -> None:
    """Train everything that does not exist yet; what is independent is interleaved."""
    for stage in STAGES:
        here = [(experiment, need) for experiment, need in missing(wanted) if need.stage == stage]
        if here:
            at_once([partial(experiment.fulfil, need) for experiment, need in here], here[0][0].device, number)


def _network(model: str, classes: int, small: bool) -> nn.Module:
    """The paper's, or a small one that runs the same code quickly: with batch norm if the paper's has it."""
    if not small or model in ("fc", "conv3fc3"):
        return getattr(models, model)(classes=classes)
    return models.conv3fc3(width=0.05, classes=classes) if model == "vgg16" else models.preresnet(11, classes=classes)
