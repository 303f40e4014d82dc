"""The demo: networks on handwritten digits, curves between two of them, planes, and ensembles at equal budget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import nn

import thalweg as tw

from .reporting import page, tables
from .runtime.rng import seeded

WEIGHT_DECAY = 1e-3
FIT: dict[str, Any] = {"epochs": 40, "lr": 0.05, "weight_decay": WEIGHT_DECAY}
BUDGET = 40  # epochs
CONNECT: dict[str, Any] = {"epochs": 100, "lr": 0.05, "weight_decay": WEIGHT_DECAY}


def digits(seed: int) -> dict[str, Any]:
    """The task factory of the demo, `--task thalweg.demo:digits`; a template for your own."""
    train_set, test_set = tw.data.digits()
    train = tw.data.DeviceBatches(*train_set, 64, shuffle=True)
    clean = train.clean(batch_size=433)
    with seeded(seed):
        model = tw.models.digits_net()
    data = {"train": clean, "test": tw.data.DeviceBatches(*test_set, 500)}
    return {"model": model, "task": tw.classification(), "train": train, "bn_batches": clean, "data": data}


def run(folder: Path, progress: bool | None = None, say: Callable[[str], object] = print) -> dict[str, tw.Scan]:
    """Run the whole demo into `folder`; `say` gets the messages for the user."""
    demo = _Demo(folder, progress, say)
    networks = demo.train_networks()
    curves = demo.find_curves(networks)
    scans = demo.scan_curves(networks, curves)
    demo.draw_planes(networks, curves)
    demo.ensemble_networks(networks)
    demo.compare_budgets()
    say(f"The page, to open in a browser: {page.write(folder / 'page.html', [folder], replace=True)}")
    return scans


class _Demo:
    def __init__(self, folder: Path, progress: bool | None, say: Callable[[str], object]):
        self.folder, self.progress, self.say = folder, progress, say
        made = digits(0)
        self.task, self.train, self.data, self.model = (made[key] for key in ("task", "train", "data", "model"))
        self.scanning = {"weight_decay": WEIGHT_DECAY, "bn_batches": made["bn_batches"], "progress": progress}

    def train_networks(self) -> list[tw.Weights]:
        self.say(f"Training three networks on the digits ({FIT['epochs']} epochs each) ...")
        networks = []
        for seed in range(3):
            networks.append(tw.fit(_network(seed), self.task, self.train, seed=seed, progress=self.progress, **FIT))
            networks[-1].save(self.folder / f"network-{seed}.safetensors")
        return networks

    def find_curves(self, networks: list[tw.Weights]) -> dict[str, tw.Curve]:
        self.say(
            f"Connecting the first two by a Bezier curve and by a chain with one bend ({CONNECT['epochs']} epochs "
            "each) ..."
        )
        curves: dict[str, tw.Curve] = {"Segment": tw.Segment(*networks[:2])}
        for fresh in (tw.Bezier(networks[0], networks[1]), tw.PolyChain(networks[0], networks[1])):
            curve = tw.connect(self.model, fresh, self.task, self.train, progress=self.progress, **CONNECT)
            curves[type(curve).__name__] = curve
            curve.save(self.folder / f"{type(curve).__name__.lower()}.safetensors")
        return curves

    def scan_curves(self, networks: list[tw.Weights], curves: dict[str, tw.Curve]) -> dict[str, tw.Scan]:
        self.say("Measuring 61 points along each ...")
        targets: dict[str, Any] = {"Single": networks[:2], **curves}
        scans = {
            name: tw.scan(
                self.model, target, self.task, self.data, points=None if name == "Single" else 61, **self.scanning
            )
            for name, target in targets.items()
        }
        self.say("\n" + tables.curves(scans) + "\n")
        profiles = {name: scans[name] for name in curves}
        for name, result in profiles.items():
            result.save(self.folder / f"{name.lower()}.json")
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        tw.figures.profile(profiles, "train", "loss", left)
        tw.figures.profile(profiles, "test", "error", right)
        tw.figures.save(figure, self.folder / "profile")
        return scans

    def draw_planes(self, networks: list[tw.Weights], curves: dict[str, tw.Curve]) -> None:
        self.say("Measuring three planes, 21 x 21 points each ...")
        thirds = {"three networks": networks[2], **{name: curves[name].bends[0] for name in ("Bezier", "PolyChain")}}
        scans = {}
        for name, third in thirds.items():
            drawn = {name: curves[name]} if name in curves else {}
            plane = tw.Plane(networks[0], networks[1], third)
            scans[name] = tw.scan(
                self.model, plane, self.task, {"train": self.data["train"]}, overlay=drawn, **self.scanning
            )
            scans[name].save(self.folder / f"plane-{name.lower().replace(' ', '-')}.json")
        figure = Figure(figsize=(14, 3.4), layout="compressed")
        tw.figures.surfaces(scans, "train", "loss", figure.subplots(1, 3))
        tw.figures.save(figure, self.folder / "planes")

    def ensemble_networks(self, networks: list[tw.Weights]) -> None:
        report = tw.Ensemble(self.model, networks).report(self.task, self.data["test"], progress=self.progress)
        report.save(self.folder / "report.json")
        self.say(f"The three networks as an ensemble, on the test set:\n{report.table()}\n")

    def compare_budgets(self) -> None:
        self.say(f"Comparing ensembles at a budget of {BUDGET} epochs, three runs each ...")
        ways: list[Any] = [
            tw.Independent(),
            tw.Snapshot(cycles=4, lr_max=0.05),
            tw.FGE(cycle=2, lr_max=0.05, lr_min=0.0025),
        ]
        settings: dict[str, Any] = {"bn_batches": self.scanning["bn_batches"], "lr": 0.05, "weight_decay": WEIGHT_DECAY}
        test = self.data["test"]
        result = tw.compare(
            _network, self.task, self.train, test, ways, budget=BUDGET, progress=self.progress, **settings
        )
        result.save(self.folder / "budget.json")
        self.say("\n" + result.table() + "\n")
        figure = Figure(layout="constrained")
        tw.figures.budget(result, ax=figure.subplots())
        tw.figures.save(figure, self.folder / "budget")


def _network(seed: int) -> nn.Module:
    return digits(seed)["model"]
