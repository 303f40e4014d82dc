"""The list of entries: what each shows, and what it needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import ThalwegError
from . import curve_comparisons, curve_entries, ensemble_entries, imagenet, penn_treebank
from .curve_entries import CURVES, NETWORKS, POLYCHAIN, Outcome
from .experiment import Experiment, Measurements, Need
from .recipes import RECIPES, SCALES, Recipe, changed

Pair = tuple[str, str]
VGG: tuple[Pair, ...] = (("cifar100", "vgg16"), ("cifar10", "vgg16"))
RESNET: tuple[Pair, ...] = (("cifar100", "resnet_bottleneck164"),)
PRERESNET: tuple[Pair, ...] = (("cifar100", "preresnet164"),)


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []


@dataclass(frozen=True)
class Entry:
    """One table or figure of the paper.

    Args:
        name: Its name on the command line; its figure, if it has one, is drawn by `FIGURES` in `drawing.py`.
        shows: What it shows.
        where: Where in the paper.
        run: Makes its rows and claims from what was trained; given the experiment, the folder of results and the
            number of seeds.
        pairs: The pairs of data set and network that it has in the paper.
        needs: What has to be trained first.
        each: What has to be trained for every seed.
        parts: Needs in other experiments, for a number of seeds.
        points: What is measured, for a number of seeds.
        more: Further costs.
        networks: The networks it can be run with, if not with all.
    """

    name: str
    shows: str
    where: str
    run: Callable[[Experiment, Path, int], Outcome]
    pairs: tuple[Pair, ...]
    needs: list[Need] = field(default_factory=list)
    each: tuple[str, ...] = ()
    parts: Callable[[Experiment, int], list[tuple[Experiment, Need]]] = lambda experiment, seeds: []
    points: Callable[[Experiment, int], Measurements] = lambda experiment, seeds: []
    more: str = ""
    networks: tuple[str, ...] = ()

    def wanted(self, experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
        for_seeds = (Need(kind, seed) for kind in self.each for seed in range(seeds))
        return [*((experiment, need) for need in (*self.needs, *for_seeds)), *self.parts(experiment, seeds)]

    def fits(self, pair: Pair) -> bool:
        """Whether it can be run with that network on that data set."""
        data, model = pair
        if self.name in ("ptb", "imagenet"):
            return data == self.name
        walks = "fge" in (*self.each, *(need.kind for need in self.needs))
        known = pair in RECIPES and (RECIPES[pair].walk is not None or not walks)
        return known and model in (self.networks or (model,))

    def chosen(self, data: str | None, model: str | None) -> list[Pair]:
        """Its own pairs, or all pairs of the names given, which are separated by commas."""
        if data is None and model is None:
            return list(self.pairs)
        own_sets, own_networks = zip(*self.pairs, strict=True)
        sets, networks = _names(data) or dict.fromkeys(own_sets), _names(model) or dict.fromkeys(own_networks)
        found = [pair for pair in product(sets, networks) if self.fits(pair)]
        if not found:
            raise ThalwegError(
                f"'{self.name}' cannot be run with {', '.join(networks)} on {', '.join(sets)}: see `thalweg paper list`"
            )
        return found


THIRD, FGE_WALK, RUNS = Need("network", 2), Need("fge", 0), ("network", "snapshot", "fge")
ENTRIES = {
    entry.name: entry
    for entry in [
        Entry(
            "curves",
            "Single, Segment, Bezier, PolyChain: length, loss and errors along them",
            "table of curves",
            curve_entries.curves,
            (
                ("mnist", "fc"),
                *(("cifar10", name) for name in ("conv3fc3", "vgg16", "resnet158", "wrn28_10")),
                VGG[0],
                *RESNET,
            ),
            CURVES,
            points=curve_entries.scanned,
        ),
        Entry(
            "planes",
            "train loss and test error in the planes of three optima and of both curves",
            "figures 1 and surfaces",
            curve_entries.planes,
            (*RESNET, *VGG[1:]),
            [*CURVES, THIRD],
            points=curve_entries.scanned_planes,
        ),
        Entry(
            "profile",
            "loss and error against t",
            "figure 2 and supplement",
            curve_entries.profile,
            RESNET,
            CURVES,
            points=curve_entries.scanned,
        ),
        Entry(
            "pair-ensemble",
            "error of the ensemble of phi(0) and phi(t)",
            "figure 2, right",
            ensemble_entries.pair_ensemble,
            RESNET,
            POLYCHAIN,
            points=lambda own, seeds: ensemble_entries.to_put_together(own, "polychain", "segment"),
        ),
        Entry(
            "two-bends",
            "two chains between the same networks",
            "section on curve finding",
            curve_entries.two_bends,
            VGG[1:],
            [*POLYCHAIN, Need("polychain", 1)],
            points=lambda own, seeds: [
                *own.to_scan("polychain", "polychain-1"),
                *own.to_scan("single", points=2),
            ],
        ),
        Entry(
            "chain-losses",
            "a chain trained with loss (1), over its length, and with loss (2), over t",
            "text",
            curve_comparisons.chain_losses,
            VGG[1:],
            [*POLYCHAIN, curve_comparisons.OVER_LENGTH],
            points=lambda own, seeds: own.to_scan("polychain", "polychain-arclength"),
        ),
        Entry(
            "curve-ensemble",
            "points of a chain ensembled, before and after temperature scaling",
            "supplement",
            ensemble_entries.curve_ensemble,
            RESNET,
            [*POLYCHAIN, THIRD],
            points=lambda own, seeds: [
                *own.to_scan("segment", "polychain"),
                *ensemble_entries.to_put_together(own, "polychain"),
            ],
        ),
        Entry(
            "width",
            "worst loss on a curve and its length against the width of the network",
            "supplement",
            curve_comparisons.width,
            (("cifar10", "conv3fc3"),),
            parts=curve_comparisons.of_all_widths,
            points=curve_comparisons.scanned_widths,
            networks=("conv3fc3",),
        ),
        Entry(
            "trivial",
            "the path through the origin that keeps accuracy and raises the loss",
            "supplement",
            curve_entries.trivial,
            (("mnist", "fc"),),
            NETWORKS,
            points=lambda own, seeds: own.to_scan("trivial", points=own.scale.points - 1),  # all but the origin
            networks=("fc", "conv3fc3", "vgg16"),
        ),
        Entry(
            "aligned",
            "lines and curves of different lengths between networks as they are and aligned; pairs of seeds",
            "not in the paper",
            curve_comparisons.aligned,
            (VGG[0], *(("cifar10", name) for name in ("vgg16_bn", "preresnet20", "wrn16_4"))),
            parts=curve_comparisons.of_all_pairs,
            points=curve_comparisons.scanned_pairs,
            more="the aligned curves of networks that the paper does not have, as many as plain ones",
        ),
        Entry(
            "ensembles",
            "independent networks, Snapshot and FGE at budgets 1B, 2B, 3B",
            "table of ensembles",
            ensemble_entries.ensembles,
            tuple(product(("cifar100", "cifar10"), ("vgg16", "preresnet164", "wrn28_10"))),
            each=RUNS,
        ),
        Entry(
            "fge-trace",
            "learning rate, error and distance along FGE; error against epochs of FGE and SSE",
            "figure 3",
            ensemble_entries.fge_trace,
            PRERESNET,
            each=RUNS,
        ),
        Entry(
            "diversity",
            "how two independent networks differ, those of one FGE walk, and those of one SSE run",
            "text",
            ensemble_entries.diversity,
            PRERESNET,
            [*NETWORKS, Need("snapshot", 0), FGE_WALK],
        ),
        Entry(
            "fge-path",
            "loss and error along the chain through FGE's members",
            "supplement, last figure",
            ensemble_entries.fge_path,
            PRERESNET,
            [NETWORKS[0], FGE_WALK],
            points=lambda own, seeds: (
                own.to_scan("fge-path", points=8 * own.recipe.walk.pieces + 1) if own.recipe.walk else []
            ),
        ),
        Entry(
            "ptb",
            "perplexity along a Segment and a Bezier curve between LSTMs",
            "table of PTB",
            penn_treebank.perplexity,
            (("ptb", "lstm-large"),),
            penn_treebank.NEEDS,
            points=penn_treebank.scanned,
        ),
        Entry(
            "imagenet",
            "FGE for five epochs from a pretrained ResNet-50",
            "section ImageNet",
            imagenet.fge_from_pretrained,
            (("imagenet", "resnet50"),),
            more="five epochs of ResNet-50 on ImageNet, and four passes over its validation set",
        ),
        Entry(
            "cost",
            "a curve step against a plain step",
            "supplement",
            curve_entries.cost,
            VGG[:1],
            more="half a minute of steps",
        ),
    ]
}


def find_recipe(data: str, model: str, changes: Sequence[str] = ()) -> Recipe:
    """How a network on a data set is trained, with changes such as "weight_decay=1e-4"."""
    recipes = RECIPES | penn_treebank.RECIPES | imagenet.RECIPES
    if (data, model) not in recipes:
        known = ", ".join(f"{model} on {data}" for data, model in recipes)
        raise ThalwegError(f"there are recipes for {known}; got {model} on {data}")
    if changes and data == "imagenet":
        raise ThalwegError(f"--set changes recipes for networks trained from scratch; got {model} on {data}")
    return changed(recipes[data, model], changes)


def open_experiment(
    folder: Path, data: str, model: str, scale: str, changes: Sequence[str] = (), **settings: Any
) -> Experiment:
    """The experiment for a network on a data set."""
    kinds: Any = {"ptb": penn_treebank.TextExperiment, "imagenet": imagenet.ImageExperiment}
    return kinds.get(data, Experiment)(folder, find_recipe(data, model, changes), SCALES[scale], **settings)


def listed_seeds(text: str) -> tuple[int, list[int]]:
    """How many seeds, and which, if they are listed; a comma makes a list of one.

    >>> listed_seeds("3"), listed_seeds("0,2,5"), listed_seeds("3,")
    ((3, []), (3, [0, 2, 5]), (1, [3]))
    """
    words = _names(text.removesuffix(","))
    if not words or not all(word.isdecimal() for word in words) or len({*words}) < len(words) or text == "0":
        raise ThalwegError(f"--seeds is how many, such as 3, or a list of different ones, such as 0,1,3; got '{text}'")
    return (len(words), list(map(int, words))) if "," in text else (int(words[0]), [])


def find_entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise ThalwegError(f"the paper's entries are {', '.join(ENTRIES)}; got '{name}'")
    return ENTRIES[name]
