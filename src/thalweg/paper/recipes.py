"""How each network of the paper is trained: with the paper's settings, or else those of its reference code."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal

from ..errors import ThalwegError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class FgeSettings:
    """FGE: the epochs at which it branches off the plain run, how long it walks from each, and its learning rates."""

    starts: tuple[int, ...]
    epochs: int
    cycle: int
    lr_max: float
    lr_min: float

    @property
    def pieces(self) -> int:
        """How many pieces the chain through the networks of one walk has, one collected in the middle of each cycle."""
        return (2 * self.epochs - self.cycle) // (2 * self.cycle)


@dataclass(frozen=True)
class Recipe:
    """One network on one data set.

    Attributes:
        dataset: The name of the data set in texts.
        title: The name of the network in texts.
        in_curves: The network's name in the paper's table of curves, or None.
        in_ensembles: The network's name in the paper's table of ensembles, or None.
        epochs: Of a network, and the budget of an ensemble.
        lr: Of a network.
        weight_decay: Of a network.
        curve_epochs: Of a curve.
        curve_lr: Of a curve.
        cycles: Of Snapshot ensembles.
        sse_lr: The highest learning rate of Snapshot ensembles.
        colours: Mean and standard deviation for normalisation.
        crop: Pixels of padding for random crops.
        flip: Whether to flip half of the images.
        width: Of the hidden linear layers, relative to the paper's; None if the network has no such argument.
        precision: Of training and scans on a GPU; on a CPU it is fp32.
        compile: Whether steps are compiled on a GPU, False where there is nothing to gain; None as in `Compute`.
        grid: Points along each side of a plane.
        changes: Differences from the recipe listed here, such as "lr=0.1"; see `changed`.
    """

    data: str
    model: str
    dataset: str
    title: str
    epochs: int
    lr: float
    weight_decay: float
    curve_epochs: int
    curve_lr: float
    walk: FgeSettings | None = None
    cycles: int = 5
    sse_lr: float = 0.05
    colours: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    batch: int = 128
    crop: int = 4
    flip: bool = True
    in_curves: str | None = None
    in_ensembles: str | None = None
    width: float | None = None
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool | None = None
    grid: int = 21
    changes: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        return 100 if self.data == "cifar100" else 10

    @property
    def name(self) -> str:
        return f"{self.data}-{self.model}"

    @property
    def folder(self) -> str:
        """The name of the folder for everything that is trained by it."""
        return "-".join([self.name, *(change.replace("=", "-") for change in self.changes)])

    @property
    def label(self) -> str:
        """The network, the data set and what was changed, in words."""
        changes = (change.replace("=", " ").replace("_", " ").replace("walk.", "FGE ") for change in self.changes)
        return ", ".join([f"{self.title} on {self.dataset}", *changes])


@dataclass(frozen=True)
class Preset:
    """How much of everything: all of it, or just enough to run every line of the code.

    Attributes:
        images: The number of training images, None for all.
        tests: The number of test images, None for all.
        points: Points along a curve.
        members: Points of a curve that are ensembled.
        widths: Of the experiment on width.
    """

    name: str
    images: int | None
    tests: int | None
    points: int
    members: int
    widths: tuple[float, ...] = (0.03, 0.1, 0.3, 0.5, 0.8, 1.0)  # the paper's are the last four

    def shrunk(self, recipe: Recipe) -> Recipe:
        if self.name == "full":
            return recipe
        walk = recipe.walk and replace(recipe.walk, starts=(2, 3)[: len(recipe.walk.starts)], epochs=2, cycle=1)
        return replace(recipe, epochs=4, curve_epochs=2, walk=walk, cycles=2, batch=16, grid=3)


SCALES = {
    "full": Preset("full", None, None, 121, 50),
    "smoke": Preset("smoke", 64, 32, 5, 4, (0.03, 0.1)),
}
SETTINGS = (  # what `changed` changes
    *("batch", "curve_epochs", "curve_lr", "cycles", "epochs", "lr", "precision", "sse_lr", "weight_decay"),
    *("width", "walk.cycle", "walk.epochs", "walk.lr_max", "walk.lr_min", "walk.starts"),
)


def changed(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """A variant of a recipe, with a folder of its own and a title that says what differs.

    >>> variant = changed(RECIPES["cifar10", "vgg16"], ["walk.epochs=40", "walk.starts=160", "lr=0.05"])
    >>> variant.walk.starts, variant.folder  # the rate is that of the recipe anyway
    ((160,), 'cifar10-vgg16-walk.epochs-40-walk.starts-160')
    >>> variant.label
    'VGG-16 on CIFAR-10, FGE epochs 40, FGE starts 160'
    """
    for change in changes:
        recipe = _with(recipe, *change.partition("=")[::2])
    return recipe


def _with(recipe: Recipe, name: str, text: str) -> Recipe:
    part, _, key = name.rpartition(".")
    owner: Any = (recipe.walk if part else recipe) if name in SETTINGS else None
    before = getattr(owner, key, None)
    if before is None:
        raise ThalwegError(f"--set changes one of {', '.join(SETTINGS)}, if {recipe.label} has it; got '{name}'")
    value = _read(name, text, before)
    if value == before:
        return recipe
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
    others = [change for change in recipe.changes if not change.startswith(f"{name}=")]
    new: Any = {"walk": replace(owner, **{key: value})} if part else {key: value}
    return replace(recipe, **new, changes=tuple(sorted([*others, f"{name}={shown}"])))


def _read(name: str, text: str, before: Any) -> Any:
    """A value of the same type as that of the recipe."""
    kind: Any = type(before[0] if isinstance(before, tuple) else before)
    try:
        values = [kind(word) for word in text.split(",")]
    except ValueError:
        values = []
    if kind is str:
        wanted, fits = "bf16 or fp32", text in ("bf16", "fp32")
    else:
        wanted = f"a {'whole ' if kind is int else ''}number {'of 0 or more' if name == 'weight_decay' else 'above 0'}"
        fits = all(0 < value < inf or (name, value) == ("weight_decay", 0) for value in values)
    if not (values and fits) or (len(values) > 1 and not isinstance(before, tuple)):
        shown = before[0] if isinstance(before, tuple) else before
        raise ThalwegError(f"{name} takes {wanted}, as in --set {name}={shown}; got '{text}'")
    return tuple(values) if isinstance(before, tuple) else values[0]


# title; mean and standard deviation of its pixels
CIFARS = {
    "cifar10": ("CIFAR-10", ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": ("CIFAR-100", ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))),
}


def _both(recipe: Recipe, own_colours: bool = True) -> list[Recipe]:
    """The same network on CIFAR-10 and CIFAR-100, normalised by the data set's own statistics, or by ImageNet's."""
    return [
        replace(recipe, data=data, dataset=title, colours=own if own_colours else IMAGENET)
        for data, (title, own) in CIFARS.items()
    ]


FINE = 61  # grid of planes where a point takes less than a fifth of a second on a GPU
PLAIN = partial(
    Recipe, "cifar10", dataset="CIFAR-10", epochs=200, lr=0.05, weight_decay=5e-4, curve_epochs=200, curve_lr=0.015
)
LIKE_VGG = partial(PLAIN, curve_epochs=600, walk=FgeSettings((120, 156), 22, 2, 1e-2, 5e-4))
WIDE = partial(PLAIN, lr=0.1, curve_lr=0.03, walk=FgeSettings((120, 156), 22, 4, 5e-2, 5e-4), sse_lr=0.1)
RESIDUAL = partial(PLAIN, epochs=150, lr=0.1, weight_decay=3e-4, curve_lr=0.03)
# the decay of the TensorFlow models that the paper links
TENSORFLOW = partial(RESIDUAL, weight_decay=2e-4)
PREACTIVATED = partial(RESIDUAL, walk=FgeSettings((125,), 22, 4, 5e-2, 5e-4), cycles=4, sse_lr=0.1)
# ours, for networks that the paper does not have
SHORT = partial(RESIDUAL, epochs=100, weight_decay=5e-4)
MNIST = Recipe(
    "mnist",
    "fc",
    "MNIST",
    "FC",
    epochs=40,
    lr=0.05,
    weight_decay=1e-4,
    curve_epochs=60,
    curve_lr=0.02,
    colours=((0.1307,), (0.3081,)),
    crop=0,
    flip=False,
    in_curves="FC",
    width=1.0,
    grid=FINE,
)
RECIPES = {
    (recipe.data, recipe.model): recipe
    for recipe in [
        MNIST,
        *_both(PLAIN(model="conv3fc3", title="3conv3fc", grid=FINE, in_curves="3conv3fc", width=1.0), False),
        *_both(LIKE_VGG(model="vgg16", title="VGG-16", grid=FINE, in_curves="VGG-16", in_ensembles="VGG-16"), False),
        *_both(LIKE_VGG(model="vgg16_bn", title="VGG-16 with batch norm"), False),
        *_both(TENSORFLOW(model="resnet158", title="ResNet-158", in_curves="ResNet-158")),
        *_both(TENSORFLOW(model="resnet_bottleneck164", title="ResNet-bottleneck-164", in_curves="ResNet-164")),
        *_both(PREACTIVATED(model="preresnet164", title="PreResNet-164", in_ensembles="ResNet-164")),
        *_both(SHORT(model="preresnet20", title="PreResNet-20")),
        *_both(SHORT(model="wrn16_4", title="WRN-16-4")),
        *_both(WIDE(model="wrn28_10", title="WRN-28-10", in_curves="WRN-28-10", in_ensembles="WRN-28-10")),
    ]
}
