"""The list of entries: what each shows, what it needs, and how it is run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import Stopped, ThalwegError
from ..reporting.result import FILE, Result
from ..store import files
from ..store.runs import versions
from . import aligned_entry, curve_entries, ensemble_entries, imagenet, loss_entry, penn_treebank, width_entry
from .curve_entries import CURVES, NETWORKS, Outcome
from .drawing import draw
from .ensemble_entries import CHAIN
from .experiment import Experiment, Need, missing, prepare
from .recipes import RECIPES, SCALES, Recipe, changed

Pair = tuple[str, str]
VGG: tuple[Pair, ...] = (("cifar100", "vgg16"), ("cifar10", "vgg16"))
RESNET: tuple[Pair, ...] = (("cifar100", "resnet_bottleneck164"),)
PRERESNET: tuple[Pair, ...] = (("cifar100", "preresnet164"),)
OF_CURVES = (
    ("mnist", "fc"),
    *(("cifar10", name) for name in ("conv3fc3", "vgg16", "resnet158", "wrn28_10")),
    VGG[0],
    *RESNET,
)
OF_ENSEMBLES = tuple(
    (data, model) for data in ("cifar100", "cifar10") for model in ("vgg16", "preresnet164", "wrn28_10")
)
OF_ALIGNED = (VGG[0], *(("cifar10", name) for name in ("vgg16_bn", "preresnet20", "wrn16_4")))


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []


@dataclass(frozen=True)
class Entry:
    """One table or figure of the paper.

    Args:
        name: Its name on the command line, and in `SHOWS`, which describes it; its figure, if it has one, is drawn by
            `FIGURES` in `drawing.py`.
        run: Makes its rows and claims from what was trained; given the experiment, the folder of results and the
            number of seeds.
        pairs: The pairs of data set and network that it has in the paper.
        needs: What has to be trained first.
        each: What has to be trained for every seed.
        parts: Needs in other experiments, for a number of seeds.
        points: The number of measured points.
        more: Further costs.
    """

    name: str
    run: Callable[[Experiment, Path, int], Outcome]
    pairs: tuple[Pair, ...]
    needs: list[Need] = field(default_factory=list)
    each: tuple[str, ...] = ()
    parts: Callable[[Experiment, int], list[tuple[Experiment, Need]]] = lambda experiment, seeds: []
    points: Callable[[Experiment, int], int] = lambda experiment, seeds: 0
    more: str = ""

    def wanted(self, experiment: Experiment, seeds: int) -> list[tuple[Experiment, Need]]:
        for_seeds = (Need(kind, seed) for kind in self.each for seed in range(seeds))
        return [*((experiment, need) for need in (*self.needs, *for_seeds)), *self.parts(experiment, seeds)]

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
        own_sets, own_networks = zip(*self.pairs, strict=True)
        sets, networks = _names(data) or dict.fromkeys(own_sets), _names(model) or dict.fromkeys(own_networks)
        found = [(one, two) for one in sets for two in networks if self.fits((one, two))]
        if not found:
            raise ThalwegError(
                f"'{self.name}' cannot be run with {', '.join(networks)} on {', '.join(sets)}: see `paper list`"
            )
        return found


SHOWS = {  # and where in the paper
    "curves": ("Single, Segment, Bezier, PolyChain: length, loss and errors along them", "table of curves"),
    "planes": ("train loss and test error in the planes of three optima and of both curves", "figures 1 and surfaces"),
    "profile": ("loss and error against t", "figure 2 and supplement"),
    "pair-ensemble": ("error of the ensemble of phi(0) and phi(t)", "figure 2, right"),
    "two-bends": ("two chains between the same networks", "section on curve finding"),
    "chain-losses": ("a chain trained with loss (1), over its length, and with loss (2), over t", "text"),
    "curve-ensemble": ("points of a chain ensembled, before and after temperature scaling", "supplement"),
    "width": ("worst loss on a curve and its length against the width of the network", "supplement"),
    "trivial": ("the path through the origin that keeps accuracy and raises the loss", "supplement"),
    "ensembles": ("independent networks, Snapshot and FGE at budgets 1B, 2B, 3B", "table of ensembles"),
    "fge-trace": ("learning rate, error and distance along FGE; error against epochs of FGE and SSE", "figure 3"),
    "diversity": ("how two independent networks differ, those of one FGE walk, and those of one SSE run", "text"),
    "fge-path": ("loss and error along the chain through FGE's members", "supplement, last figure"),
    "aligned": (
        "lines and curves of different lengths between networks as they are and aligned; pairs of seeds",
        "not in the paper",
    ),
    "ptb": ("perplexity along a Segment and a Bezier curve between LSTMs", "table of PTB"),
    "imagenet": ("FGE for five epochs from a pretrained ResNet-50", "section ImageNet"),
    "cost": ("a curve step against a plain step", "supplement"),
}
THIRD, WALK, RUNS = Need("network", 2), Need("fge", 0), ("network", "snapshot", "fge")
WITH_THIRD = [*CHAIN, THIRD]
FROM_PRETRAINED = "five epochs of ResNet-50 on ImageNet, and four passes over its validation set"
ENTRIES = {
    entry.name: entry
    for entry in [
        Entry("curves", curve_entries.curves, OF_CURVES, CURVES, points=lambda own, seeds: 3 * own.scale.points + 2),
        Entry(
            "planes",
            curve_entries.planes,
            (*RESNET, *VGG[1:]),
            [*CURVES, THIRD],
            points=lambda own, seeds: 3 * own.recipe.grid**2,
        ),
        Entry("profile", curve_entries.profile, RESNET, CURVES, points=lambda own, seeds: 3 * own.scale.points + 2),
        Entry(
            "pair-ensemble",
            ensemble_entries.pair_ensemble,
            RESNET,
            CHAIN,
            points=lambda own, seeds: 2 * own.scale.members,
        ),
        Entry(
            "two-bends",
            curve_entries.two_bends,
            VGG[1:],
            [*CHAIN, Need("polychain", 1)],
            points=lambda own, seeds: 2 * own.scale.points,
        ),
        Entry(
            "chain-losses",
            loss_entry.chain_losses,
            VGG[1:],
            loss_entry.NEEDS,
            points=lambda own, seeds: 2 * own.scale.points,
        ),
        Entry(
            "curve-ensemble",
            ensemble_entries.curve_ensemble,
            RESNET,
            WITH_THIRD,
            points=lambda own, seeds: 2 * own.scale.points + own.scale.members,
        ),
        Entry(
            "width",
            width_entry.width,
            (("cifar10", "conv3fc3"),),
            parts=width_entry.of_all_widths,
            points=lambda own, seeds: len(own.pairs(seeds)) * len(own.scale.widths) * (own.scale.points + 2),
        ),
        Entry(
            "trivial", curve_entries.trivial, (("mnist", "fc"),), NETWORKS, points=lambda own, seeds: own.scale.points
        ),
        Entry(
            "aligned",
            aligned_entry.aligned,
            OF_ALIGNED,
            parts=aligned_entry.of_all_pairs,
            more="the aligned curves of networks that the paper does not have, as many as plain ones",
        ),
        Entry("ensembles", ensemble_entries.ensembles, OF_ENSEMBLES, each=RUNS),
        Entry("fge-trace", ensemble_entries.fge_trace, PRERESNET, each=RUNS),
        Entry("diversity", ensemble_entries.diversity, PRERESNET, [*NETWORKS, Need("snapshot", 0), WALK]),
        Entry("fge-path", ensemble_entries.fge_path, PRERESNET, [NETWORKS[0], WALK], points=lambda own, seeds: 81),
        Entry(
            "ptb", penn_treebank.perplexity, (("ptb", "lstm-large"),), penn_treebank.NEEDS, points=lambda own, seeds: 97
        ),
        Entry("imagenet", imagenet.fge_from_pretrained, (("imagenet", "resnet50"),), more=FROM_PRETRAINED),
        Entry("cost", curve_entries.cost, VGG[:1], more="half a minute of steps"),
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
    """How many seeds, and which, if they are listed.

    >>> listed_seeds("3"), listed_seeds("0,2,5")
    ((3, []), (3, [0, 2, 5]))
    """
    words = _names(text)
    if not words or not all(word.isdecimal() for word in words) or len({*words}) < len(words) or words == ["0"]:
        raise ThalwegError(f"--seeds is how many, such as 3, or a list of different ones, such as 0,1,3; got '{text}'")
    return (len(words), list(map(int, words))) if len(words) > 1 else (int(words[0]), [])


def find_entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise ThalwegError(f"the paper's entries are {', '.join(ENTRIES)}; got '{name}'")
    return ENTRIES[name]


def perform(experiment: Experiment, entry: Entry, seeds: int) -> Result:
    """Run one entry; what it needs is trained first if it is missing."""
    began = time.perf_counter()
    prepare(entry.wanted(experiment, seeds))
    out = experiment.results / entry.name
    out.mkdir(parents=True, exist_ok=True)
    files.sweep(out)
    rows, claims = entry.run(experiment, out, seeds)
    about = {
        "scale": experiment.scale.name,
        "seeds": list(experiment.seeds) or seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": torch.cuda.get_device_name(experiment.device) if experiment.device.type == "cuda" else "CPU",
        "seconds of training": round(sum(owner.seconds(need) for owner, need in entry.wanted(experiment, seeds)), 1),
        "recipe": asdict(experiment.recipe),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "precision": experiment.compute.precision,
    }
    result = Result(entry.name, experiment.recipe.label, rows, claims, about)
    result.save(out / FILE)
    draw(out)
    return result


Runs = list[tuple[Entry, Experiment]]


def perform_all(runs: Runs, seeds: int, say: Callable[[str], object]) -> None:
    """Train everything needed, then measure; a run that fails does not stop the others."""
    failed = []
    try:
        prepare([item for entry, experiment in runs for item in entry.wanted(experiment, seeds)])
        for entry, experiment in runs:
            try:
                say(f"\n{perform(experiment, entry, seeds)}\nwrote {experiment.results / entry.name}")
            except ThalwegError as error:
                failed.append(f"{entry.name}: {error}")
    except Stopped as error:
        raise Stopped("stopped; everything trained and measured so far is kept", error.signal) from None
    if failed:
        raise ThalwegError("; ".join(failed))


def train_part(runs: Runs, seeds: int, shard: str) -> str:
    """What can be trained now, divided among shards; the next stage once all shards have finished this one."""
    i, _, n = shard.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise ThalwegError(f"a shard is part i of n, such as 1/4; got '{shard}'")
    wanted = list(dict.fromkeys(item for entry, experiment in runs for item in entry.wanted(experiment, seeds)))
    stages = {need.stage for _, need in missing(wanted)}
    # the same division on every machine
    own = [item for item in wanted if item[1].stage == min(stages, default=0)][int(i) - 1 :: int(n)]
    todo = missing(own)
    prepare(todo)
    return f"trained {len(todo)} of the {len(own)} of this shard; " + (
        "more can be trained once all shards are done: run the command again"
        if len(stages) > 1
        else "then run it without --shard"
    )
