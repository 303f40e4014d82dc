"""The demo: networks on handwritten digits, curves between two of them, planes, and ensembles at equal budget."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

import thalweg as tw

from .loading import Inputs
from .reporting import page, tables
from .runtime.rng import seeded

WEIGHT_DECAY = 1e-3
BUDGET = 40  # epochs


class DemoTraining(TypedDict):
    epochs: int
    lr: float
    weight_decay: float


FIT: DemoTraining = {"epochs": 40, "lr": 0.05, "weight_decay": WEIGHT_DECAY}
CONNECT: DemoTraining = {"epochs": 100, "lr": 0.05, "weight_decay": WEIGHT_DECAY}


def digits(seed: int) -> dict[str, Any]:
    """The task factory of the demo, `--task thalweg.demo:digits`; a template for your own."""
    train_set, test_set = tw.data.digits()
    train = tw.data.DeviceBatches(*train_set, 64, shuffle=True)
    clean = train.clean(batch_size=433)
    with seeded(seed):
        model = tw.models.digits_net()
    return {
        "model": model,
        "task": tw.classification(),
        "train": train,
        "bn_batches": clean,
        "data": {"train": clean, "test": tw.data.DeviceBatches(*test_set, 500)},
    }


def run(folder: Path, progress: bool | None = None, say: Callable[[str], object] = print) -> dict[str, tw.Scan]:
    """Run the whole demo into `folder`; `say` gets the messages for the user."""
    made = Inputs(**digits(0))
    scan = partial(
        tw.scan,
        made.model,
        task=made.task,
        weight_decay=WEIGHT_DECAY,
        bn_batches=made.bn_batches,
        progress=progress,
    )
    say(f"Training three networks on the digits ({FIT['epochs']} epochs each) ...")
    a, b, c = (tw.fit(_network(seed), made.task, made.train, seed=seed, progress=progress, **FIT) for seed in range(3))
    say(
        f"Connecting the first two by a Bezier curve and by a chain with one bend ({CONNECT['epochs']} epochs each) ..."
    )
    curves = {
        name: tw.connect(made.model, fresh, made.task, made.train, progress=progress, **CONNECT)
        for name, fresh in {"Bezier": tw.Bezier(a, b), "PolyChain": tw.PolyChain(a, b)}.items()
    }
    say("Measuring 61 points along each ...")
    profiles = {
        name: scan(target=curve, data=made.data, points=61)
        for name, curve in {"Segment": tw.Segment(a, b), **curves}.items()
    }
    scans = {"Single": scan(target=[a, b], data=made.data), **profiles}
    say("\n" + tables.curves(scans) + "\n")
    say("Measuring three planes, 21 x 21 points each ...")
    thirds = {"three networks": (c, {}), **{name: (curve.bends[0], {name: curve}) for name, curve in curves.items()}}
    planes = {
        name: scan(target=tw.Plane(a, b, third), data={"train": made.data["train"]}, overlay=drawn)
        for name, (third, drawn) in thirds.items()
    }
    report = tw.Ensemble(made.model, [a, b, c]).report(
        made.task, made.data["test"], bn_batches=made.bn_batches, progress=progress
    )
    say(f"The three networks as an ensemble, on the test set:\n{report.table()}\n")
    say(f"Comparing ensembles at a budget of {BUDGET} epochs, three runs each ...")
    compared = tw.compare(
        _network,
        made.task,
        made.train,
        made.data["test"],
        [tw.Independent(), tw.Snapshot(cycles=4, lr_max=0.05), tw.FGE(cycle=2, lr_max=0.05, lr_min=0.0025)],
        budget=BUDGET,
        bn_batches=made.bn_batches,
        lr=0.05,
        weight_decay=WEIGHT_DECAY,
        progress=progress,
    )
    say("\n" + compared.table() + "\n")
    found: dict[str, tw.Weights | tw.Curve | tw.Scan | tw.Report | tw.Comparison] = {
        **{f"network-{seed}.safetensors": network for seed, network in enumerate((a, b, c))},
        **{f"{name.lower()}.safetensors": curve for name, curve in curves.items()},
        **{f"{name.lower()}.json": profile for name, profile in profiles.items()},
        **{f"plane-{name.lower().replace(' ', '-')}.json": plane for name, plane in planes.items()},
        "report.json": report,
        "budget.json": compared,
    }
    for name, result in found.items():
        result.save(folder / name)
    _draw(folder, profiles, planes, compared)
    say(f"The page, to open in a browser: {page.write(folder / 'page.html', [folder], replace=True)}")
    return scans


def _draw(folder: Path, profiles: dict[str, tw.Scan], planes: dict[str, tw.Scan], compared: tw.Comparison) -> None:
    def profile(axes: Any) -> None:
        tw.figures.profile(profiles, "train", "loss", axes[0])
        tw.figures.profile(profiles, "test", "error", axes[1])

    around = partial(tw.figures.surfaces, planes, "train", "loss")
    drawn = {
        "profile": tw.figures.panels(profile, (10, 4), 1, 2),
        "planes": tw.figures.panels(around, (14, 3.4), 1, 3, "compressed"),
        "budget": tw.figures.panels(partial(tw.figures.budget, compared, None)),
    }
    for name, figure in drawn.items():
        tw.figures.save(figure, folder / name)


def _network(seed: int) -> nn.Module:
    return digits(seed)["model"]
