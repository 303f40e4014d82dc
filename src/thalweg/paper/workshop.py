"""The networks, curves and walks that the entries share: each is made once, in a folder of its own, and found there again."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import data as sets
from .. import models
from ..data import DeviceBatches
from ..errors import ThalwegError
from ..evaluation.results import Scan
from ..evaluation.scan import scan
from ..modes import Mode
from ..randomness import seeded
from ..tasks import Task, classification
from ..training.connect import connect
from ..training.fit import fit
from ..training.methods import FGE, Snapshot
from ..training.walk import Walk, walk
from ..turns import at_once
from ..weightspace.curves import Bezier, Curve, PolyChain
from ..weightspace.weights import Weights
from .recipes import Recipe, Scale

READERS: dict[str, Callable[..., Any]] = {"mnist": sets.mnist, "cifar10": sets.cifar10, "cifar100": sets.cifar100}
DONE = "finished"  # an empty file in the folder of a run that came to its end
KINDS: dict[str, type[Curve]] = {"bezier": Bezier, "polychain": PolyChain}


@dataclass(frozen=True)
class Need:
    """Something that has to be trained: a network, a Snapshot run, a curve, or an FGE walk; `seed` is whose.

    stage: what can be trained at once; walks and curves need the networks of the stage before.
    """

    kind: str
    seed: int

    @property
    def stage(self) -> int:
        return 0 if self.kind in ("network", "snapshot") else 1


class Workshop:
    """Makes what is needed for one recipe at one scale, under `folder`.

    given: where the data lie; at smoke scale images are drawn at random where there are none.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        scale: Scale,
        given: Path | None = None,
        device: str = "cpu",
        mode: Mode | None = None,
        progress: bool | None = None,
        download: bool = False,
        make: Callable[[], nn.Module] | None = None,
    ):
        self.recipe, self.scale, self.given, self.download = scale.shrunk(recipe), scale, given, download
        self.folder = folder / scale.name / recipe.name
        self.device, self.mode, self.progress = torch.device(device), mode or Mode(), progress
        self.task: Task = classification()
        self.make = make or (lambda: getattr(models, recipe.model)(classes=recipe.classes))

    @cached_property
    def images(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Training and test images with their labels, as many as the scale asks for."""
        try:
            if self.given is None:
                raise ThalwegError("no folder with data was named: give --data, or set THALWEG_DATA")
            train, test = READERS[self.recipe.data](self.given, download=self.download)
        except ThalwegError:
            if self.scale.name == "full":
                raise
            train, test = (self._drawn(n) for n in (self.scale.images, self.scale.tests))
        return _first(train, self.scale.images), _first(test, self.scale.tests)

    def _drawn(self, count: int | None) -> tuple[Tensor, Tensor]:
        shape = (1, 28, 28) if self.recipe.data == "mnist" else (3, 32, 32)
        with seeded(0):
            return torch.randint(256, (count or 1, *shape), dtype=torch.uint8), torch.randint(self.recipe.classes, (count or 1,))

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
        """Any network of that kind, for its form alone."""
        return self.model(0)

    @property
    def settings(self) -> dict[str, Any]:
        return {"weight_decay": self.recipe.weight_decay, "mode": self.mode, "progress": self.progress}

    def network(self, seed: int) -> Weights:
        """A network trained for the whole budget, with the epochs kept at which FGE leaves it."""
        keep = self.recipe.walk.starts if self.recipe.walk else ()
        own: dict[str, Any] = {"epochs": self.recipe.epochs, "lr": self.recipe.lr, "keep": keep, "seed": seed}
        run = self.folder / f"network-{seed}"
        return fit(self.model(seed), self.task, self.train, run=run, **own, **self.settings)

    def networks(self, count: int) -> list[Weights]:
        return [self.network(seed) for seed in range(count)]

    def curve(self, kind: str, seed: int = 0) -> Curve:
        """Between the first two networks; `seed` decides the draws of t and of the data."""
        fresh = KINDS[kind](self.network(0), self.network(1))
        own: dict[str, Any] = {"epochs": self.recipe.curve_epochs, "lr": self.recipe.curve_lr, "seed": seed}
        run = self.folder / f"{kind}-{seed}"
        return connect(self.form, fresh, self.task, self.train, run=run, **own, **self.settings)

    def fge(self, seed: int) -> Walk:
        """FGE from the kept epochs of a network."""
        way = self.recipe.walk
        if way is None:
            raise ThalwegError(f"the paper does not use FGE with {self.recipe.title} on {self.recipe.dataset}")
        kept = self.network(seed).kept
        method = FGE(cycle=way.cycle, lr_max=way.lr_max, lr_min=way.lr_min)
        own: dict[str, Any] = {"epochs": way.epochs, "start": [kept[epoch] for epoch in way.starts], "seed": seed + 1000}
        run, watch = self.folder / f"fge-{seed}", {"test": self.test}
        return walk(self.form, self.task, self.train, method, run=run, watch=watch, **own, **self.settings)

    def snapshot(self, seed: int) -> Walk:
        """Snapshot ensembles over the whole budget, from fresh weights."""
        method = Snapshot(cycles=self.recipe.cycles, lr_max=self.recipe.sse_lr)
        own: dict[str, Any] = {"epochs": self.recipe.epochs, "seed": seed + 2000, "run": self.folder / f"snapshot-{seed}"}
        return walk(self.model(seed + 2000), self.task, self.train, method, watch={"test": self.test}, **own, **self.settings)

    def scan(self, name: str, target: Any, **settings: Any) -> Scan:
        """Train and test set at every point; kept under `name`."""
        common: dict[str, Any] = {"refresh": self.clean, "run": self.folder / f"scan-{name}", **self.settings}
        data = {"train": self.clean, "test": self.test}
        return scan(self.form, target, self.task, data, **{"points": self.scale.points, **common, **settings})

    def fulfil(self, need: Need) -> object:
        makers: Mapping[str, Callable[[int], object]] = {
            "network": self.network,
            "snapshot": self.snapshot,
            "fge": self.fge,
            **{kind: lambda seed, kind=kind: self.curve(kind, seed) for kind in KINDS},  # type: ignore[misc]
        }
        return makers[need.kind](need.seed)

    def finished(self, need: Need) -> bool:
        return (self.folder / f"{need.kind}-{need.seed}" / DONE).is_file()

    def epochs(self, need: Need) -> int:
        if need.kind in KINDS:
            return self.recipe.curve_epochs
        if need.kind == "fge" and self.recipe.walk:
            return self.recipe.walk.epochs * len(self.recipe.walk.starts)
        return self.recipe.epochs

    def wide(self, factor: float) -> "Workshop":
        """The same with conv3fc3 of another width."""
        other = copy(self)
        other.__dict__.pop("form", None)
        other.folder = self.folder.with_name(f"{self.folder.name}-width-{factor:g}")
        other.make = partial(models.conv3fc3, width=factor, classes=self.recipe.classes)
        return other


Wanted = Sequence[tuple[Workshop, Need]]


def missing(wanted: Wanted) -> list[tuple[Workshop, Need]]:
    """What is not there yet, each thing once."""
    once = {(shop.folder, need): (shop, need) for shop, need in wanted}
    return [(shop, need) for shop, need in once.values() if not shop.finished(need)]


def prepare(wanted: Wanted, number: int = 3) -> None:
    """Train everything that is not there yet, what does not depend on each other at once."""
    for stage in (0, 1):
        here = [(shop, need) for shop, need in missing(wanted) if need.stage == stage]
        if here:
            at_once([partial(shop.fulfil, need) for shop, need in here], here[0][0].device, number)
        for shop, need in here:
            (shop.folder / f"{need.kind}-{need.seed}" / DONE).touch()


def _first(pair: tuple[Tensor, Tensor], count: int | None) -> tuple[Tensor, Tensor]:
    return (pair[0][:count], pair[1][:count])
