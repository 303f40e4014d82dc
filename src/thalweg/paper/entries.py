"""The list of entries: what each shows, what it needs, and how it is run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import ThalwegError
from ..store.runs import versions
from . import imagenet, paths, voting, words
from .drawing import draw
from .recipes import RECIPES, SCALES, Scale, find_recipe
from .result import FILE, Claim, Result
from .workshop import Need, Workshop, prepare

Run = Callable[[Workshop, Path, int], tuple[list[dict[str, Any]], list[Claim]]]


Pair = tuple[str, str]
VGG: tuple[Pair, ...] = (("cifar100", "vgg16"), ("cifar10", "vgg16"))
BOTTLENECK: tuple[Pair, ...] = (("cifar100", "resnet_bottleneck164"),)
PREACTIVATED: tuple[Pair, ...] = (("cifar100", "preresnet164"),)
OF_CURVES = (
    ("mnist", "fc"),
    ("cifar10", "conv3fc3"),
    ("cifar10", "vgg16"),
    ("cifar10", "resnet158"),
    ("cifar10", "wrn28_10"),
    ("cifar100", "vgg16"),
    ("cifar100", "resnet_bottleneck164"),
)
OF_ENSEMBLES = tuple((data, model) for data in ("cifar100", "cifar10") for model in ("vgg16", "preresnet164", "wrn28_10"))


@dataclass(frozen=True)
class Entry:
    """One table or figure of the paper.

    where: it is in the paper. pairs: of data set and network that it has there. needs: what has to be trained first; `each`:
    for every seed; `parts`: in other workshops. points: how many are measured, at a scale. more: what else it costs.
    """

    name: str
    shows: str
    where: str
    run: Run
    pairs: tuple[Pair, ...]
    needs: list[Need] = field(default_factory=list)
    each: tuple[str, ...] = ()
    parts: Callable[[Workshop], list[tuple[Workshop, Need]]] = lambda shop: []
    points: Callable[[Scale], int] = lambda scale: 0
    more: str = ""

    def wanted(self, shop: Workshop, seeds: int) -> list[tuple[Workshop, Need]]:
        every = [Need(kind, seed) for kind in self.each for seed in range(seeds)]
        return [(shop, need) for need in (*self.needs, *every)] + self.parts(shop)

    def fits(self, pair: Pair) -> bool:
        """Whether it can be run with that network on that data set."""
        data, model = pair
        if self.name in ("ptb", "imagenet"):
            return data == self.name
        recipe = RECIPES.get(pair)
        walks = "fge" in self.each or any(need.kind == "fge" for need in self.needs)
        chains = {"width": ("conv3fc3",), "trivial": ("fc", "conv3fc3", "vgg16")}.get(self.name, (model,))
        return recipe is not None and model in chains and (recipe.walk is not None or not walks)

    def chosen(self, data: str | None, model: str | None) -> list[Pair]:
        """Its own pairs, or those made of the names given, separated by commas."""
        if data is None and model is None:
            return list(self.pairs)
        sets = data.split(",") if data else dict.fromkeys(pair[0] for pair in self.pairs)
        networks = model.split(",") if model else dict.fromkeys(pair[1] for pair in self.pairs)
        found = [(one, two) for one in sets for two in networks if self.fits((one, two))]
        if not found:
            raise ThalwegError(f"'{self.name}' cannot be run with {', '.join(networks)} on {', '.join(sets)}: see `paper list`")
        return found


ENTRIES = {
    entry.name: entry
    for entry in [
        Entry(
            "curves",
            "Single, Segment, Bezier, Polychain: length, loss and errors along them",
            "table of curves",
            paths.curves,
            OF_CURVES,
            paths.CURVES,
            points=lambda scale: 3 * scale.points + 2,
        ),
        Entry(
            "planes",
            "train loss and test error in the planes of three optima and of both curves",
            "figures 1 and surfaces",
            paths.planes,
            (*BOTTLENECK, *VGG[1:]),
            [*paths.CURVES, Need("network", 2)],
            points=lambda scale: 3 * scale.grid**2,
        ),
        Entry(
            "profile",
            "loss and error against t",
            "figure 2 and supplement",
            paths.profile,
            BOTTLENECK,
            paths.CURVES,
            points=lambda scale: 3 * scale.points + 2,
        ),
        Entry(
            "pair-ensemble",
            "error of the ensemble of phi(0) and phi(t)",
            "figure 2, right",
            voting.pair_ensemble,
            BOTTLENECK,
            voting.NEEDS["pair-ensemble"],
            points=lambda scale: 2 * scale.members,
        ),
        Entry(
            "two-bends",
            "two chains between the same networks",
            "section on curve finding",
            paths.two_bends,
            VGG[1:],
            [*voting.CHAIN, Need("polychain", 1)],
            points=lambda scale: 2 * scale.points,
        ),
        Entry(
            "curve-ensemble",
            "points of a chain ensembled, before and after temperature scaling",
            "supplement",
            voting.curve_ensemble,
            BOTTLENECK,
            voting.NEEDS["curve-ensemble"],
            points=lambda scale: 2 * scale.points + scale.members,
        ),
        Entry(
            "width",
            "worst loss on a curve and its length against the width of the network",
            "supplement",
            paths.width,
            (("cifar10", "conv3fc3"),),
            parts=paths.of_all_widths,
            points=lambda scale: len(scale.widths) * scale.points,
        ),
        Entry(
            "trivial",
            "the path through the origin that keeps accuracy and raises the loss",
            "supplement",
            paths.trivial,
            (("mnist", "fc"),),
            paths.NETWORKS,
            points=lambda scale: scale.points,
        ),
        Entry(
            "ensembles",
            "independent networks, Snapshot and FGE at budgets 1B, 2B, 3B",
            "table of ensembles",
            voting.ensembles,
            OF_ENSEMBLES,
            each=("network", "snapshot", "fge"),
        ),
        Entry(
            "fge-trace",
            "learning rate, error and distance along FGE; error against epochs of FGE and SSE",
            "figure 3",
            voting.fge_trace,
            PREACTIVATED,
            each=("network", "snapshot", "fge"),
        ),
        Entry(
            "diversity",
            "how networks of one run differ, and independent ones",
            "text",
            voting.diversity,
            PREACTIVATED,
            voting.NEEDS["diversity"],
        ),
        Entry(
            "fge-path",
            "loss and error along the chain through FGE's members",
            "supplement, last figure",
            voting.fge_path,
            PREACTIVATED,
            voting.NEEDS["fge-path"],
            points=lambda scale: 81,
        ),
        Entry(
            "ptb",
            "perplexity along a Segment and a Bezier curve between LSTMs",
            "table of PTB",
            words.perplexity,
            (("ptb", "lstm-large"),),
            words.NEEDS,
            points=lambda scale: 64,
        ),
        Entry(
            "imagenet",
            "FGE for five epochs from a pretrained ResNet-50",
            "section ImageNet",
            imagenet.fge_from_pretrained,
            (("imagenet", "resnet50"),),
            more="five epochs of ResNet-50 on ImageNet, and four passes over its validation set",
        ),
        Entry("cost", "a curve step against a plain step", "supplement", paths.cost, VGG[:1], more="half a minute of steps"),
    ]
}


def open_shop(folder: Path, data: str, model: str, scale: str, **settings: Any) -> Workshop:
    """The workshop for a network on a data set."""
    if scale not in SCALES:
        raise ThalwegError(f"the scales are {', '.join(SCALES)}; got '{scale}'")
    if data == "ptb":
        if model not in words.RECIPES:
            raise ThalwegError(f"on ptb the networks are {', '.join(words.RECIPES)}; got '{model}'")
        return words.WordShop(folder, words.RECIPES[model], SCALES[scale], **settings)
    if data == "imagenet":
        return imagenet.ImageShop(folder, imagenet.RECIPE, SCALES[scale], **settings)
    return Workshop(folder, find_recipe(data, model), SCALES[scale], **settings)


def find_entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise ThalwegError(f"the paper's entries are {', '.join(ENTRIES)}; got '{name}'")
    return ENTRIES[name]


def perform(shop: Workshop, entry: Entry, seeds: int) -> Result:
    """Run one entry; what it needs is trained first if it is not there."""
    began = time.perf_counter()
    prepare(entry.wanted(shop, seeds))
    out = shop.folder / entry.name
    out.mkdir(parents=True, exist_ok=True)
    rows, claims = entry.run(shop, out, seeds)
    machine = torch.cuda.get_device_name(shop.device) if shop.device.type == "cuda" else "CPU"
    about = {"scale": shop.scale.name, "seeds": seeds, "seconds": round(time.perf_counter() - began, 1), "machine": machine}
    about["seconds of training"] = round(sum(owner.seconds(need) for owner, need in entry.wanted(shop, seeds)), 1)
    about |= {
        "recipe": shop.described(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "precision": shop.mode.precision,
    }
    result = Result(entry.name, f"{shop.recipe.title} on {shop.recipe.dataset}", rows, claims, about)
    result.save(out / FILE)
    draw(out)
    return result
