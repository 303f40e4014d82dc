"""The list of entries: what each shows, what it needs, and how it is run."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..bench import Bench, Timing
from ..errors import ThalwegError
from ..inputs import Inputs
from ..replay import aside
from ..store.runs import versions
from . import imagenet, paths, voting, words
from .recipes import SCALES, find_recipe
from .result import FILE, Claim, Result
from .workshop import Need, Wanted, Workshop, missing, prepare

Run = Callable[[Workshop, Path, int], tuple[list[dict[str, Any]], list[Claim]]]


@dataclass(frozen=True)
class Entry:
    """One table or figure of the paper.

    where: it is in the paper. data, model: whose it is there. needs: what has to be trained first; `each`: for every seed;
    `parts`: in other workshops.
    """

    name: str
    shows: str
    where: str
    run: Run
    needs: list[Need] = field(default_factory=list)
    each: tuple[str, ...] = ()
    parts: Callable[[Workshop], list[tuple[Workshop, Need]]] = lambda shop: []
    data: str = "cifar100"
    model: str = "vgg16"

    def wanted(self, shop: Workshop, seeds: int) -> list[tuple[Workshop, Need]]:
        every = [Need(kind, seed) for kind in self.each for seed in range(seeds)]
        return [(shop, need) for need in (*self.needs, *every)] + self.parts(shop)


ENTRIES = {
    entry.name: entry
    for entry in [
        Entry(
            "curves",
            "Single, Segment, Bezier, Polychain: length, loss and errors along them",
            "table of curves",
            paths.curves,
            paths.CURVES,
        ),
        Entry(
            "planes",
            "train loss and test error in the planes of three optima and of both curves",
            "figures 1 and surfaces",
            paths.planes,
            [*paths.CURVES, Need("network", 2)],
        ),
        Entry("profile", "loss and error against t", "figure 2 and supplement", paths.profile, paths.CURVES),
        Entry(
            "pair-ensemble",
            "error of the ensemble of phi(0) and phi(t)",
            "figure 2, right",
            voting.pair_ensemble,
            voting.NEEDS["pair-ensemble"],
        ),
        Entry(
            "two-bends",
            "two chains between the same networks",
            "section on curve finding",
            paths.two_bends,
            [*voting.CHAIN, Need("polychain", 1)],
            data="cifar10",
        ),
        Entry(
            "curve-ensemble",
            "points of a chain ensembled, before and after temperature scaling",
            "supplement",
            voting.curve_ensemble,
            voting.NEEDS["curve-ensemble"],
        ),
        Entry(
            "width",
            "worst loss on a curve and its length against the width of the network",
            "supplement",
            paths.width,
            parts=paths.of_all_widths,
            data="cifar10",
            model="conv3fc3",
        ),
        Entry(
            "trivial",
            "the path through the origin that keeps accuracy and raises the loss",
            "supplement",
            paths.trivial,
            paths.NETWORKS,
            data="mnist",
            model="fc",
        ),
        Entry(
            "ensembles",
            "independent networks, Snapshot and FGE at budgets 1B, 2B, 3B",
            "table of ensembles",
            voting.ensembles,
            each=("network", "snapshot", "fge"),
        ),
        Entry(
            "fge-trace",
            "learning rate, error and distance along FGE; error against epochs of FGE and SSE",
            "figure 3",
            voting.fge_trace,
            voting.NEEDS["fge-trace"],
        ),
        Entry(
            "diversity",
            "how networks of one run differ, and independent ones",
            "text",
            voting.diversity,
            voting.NEEDS["diversity"],
        ),
        Entry(
            "fge-path",
            "loss and error along the chain through FGE's members",
            "supplement, last figure",
            voting.fge_path,
            voting.NEEDS["fge-path"],
        ),
        Entry(
            "ptb",
            "perplexity along a Segment and a Bezier curve between LSTMs",
            "table of PTB",
            words.perplexity,
            words.NEEDS,
            data="ptb",
            model="lstm-large",
        ),
        Entry(
            "imagenet",
            "FGE for five epochs from a pretrained ResNet-50",
            "section ImageNet",
            imagenet.fge_from_pretrained,
            data="imagenet",
            model="resnet50",
        ),
        Entry("cost", "a curve step against a plain step", "supplement", paths.cost),
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


def price(wanted: Wanted) -> str:
    """What is still to be trained, in a sentence."""
    left = missing(wanted)
    kinds = Counter(need.kind for _, need in left)
    epochs, steps = sum(shop.epochs(need) for shop, need in left), sum(shop.epochs(n) * len(shop.train) for shop, n in left)
    listed = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    before = len({(shop.folder, need) for shop, need in wanted}) - len(left)
    there = f"{before} trained before" if before else ""
    todo = f"to train: {listed}, {epochs} epochs, {steps} steps" if left else "nothing to train"
    return "; ".join(part for part in (todo, there, _duration(left)) if part)


def _duration(left: Wanted) -> str:
    """Roughly how long that takes here, from a few steps of each network; measuring comes on top."""
    if not left or left[0][0].scale.name == "smoke":
        return ""
    pace = {shop.folder: _seconds_per_step(shop) for shop, _ in left}
    seconds = sum(pace[shop.folder] * shop.epochs(need) * len(shop.train) for shop, need in left)
    return f"about {seconds / 60:.0f} minutes here" if seconds > 90 else f"about {seconds:.0f} seconds here"


def _seconds_per_step(shop: Workshop) -> float:
    inputs = Inputs(shop.form, shop.task, shop.train, None, {"train": shop.train})
    timer = Bench(inputs, replace(shop.mode, compile=False), rounds=3)
    with aside(shop.device):
        step = timer.plain()
        return Timing(timer.alternate({"step": lambda: [step() for _ in range(timer.steps)]})["step"]).median / timer.steps


def perform(shop: Workshop, entry: Entry, seeds: int) -> Result:
    """Run one entry; what it needs is trained first if it is not there."""
    began = time.perf_counter()
    prepare(entry.wanted(shop, seeds))
    out = shop.folder / entry.name
    out.mkdir(parents=True, exist_ok=True)
    rows, claims = entry.run(shop, out, seeds)
    machine = torch.cuda.get_device_name(shop.device) if shop.device.type == "cuda" else "CPU"
    about = {"scale": shop.scale.name, "seeds": seeds, "seconds": round(time.perf_counter() - began, 1), "machine": machine}
    about |= {"versions": versions(), "date": time.strftime("%Y-%m-%d"), "precision": shop.mode.precision}
    result = Result(entry.name, f"{shop.recipe.title} on {shop.recipe.dataset}", rows, claims, about)
    result.save(out / FILE)
    return result
