"""The demo: networks on handwritten digits, curves between two of them, planes, and ensembles at equal budget."""

from collections.abc import Callable, Mapping
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
        self.folder, self.progress, self.say, made = folder, progress, say, digits(0)
        self.task, self.train, self.data, self.model = (made[key] for key in ("task", "train", "data", "model"))
        self.scanning = {"weight_decay": WEIGHT_DECAY, "bn_batches": made["bn_batches"], "progress": progress}

    def train_networks(self) -> list[tw.Weights]:
        self.say(f"Training three networks on the digits ({FIT['epochs']} epochs each) ...")
        networks = [
            tw.fit(_network(seed), self.task, self.train, seed=seed, progress=self.progress, **FIT) for seed in range(3)
        ]
        self._save({f"network-{seed}": network for seed, network in enumerate(networks)}, "safetensors")
        return networks

    def find_curves(self, networks: list[tw.Weights]) -> dict[str, tw.Curve]:
        epochs, (a, b, _) = CONNECT["epochs"], networks
        self.say(f"Connecting the first two by a Bezier curve and by a chain with one bend ({epochs} epochs each) ...")
        curves = {
            name: tw.connect(self.model, fresh, self.task, self.train, progress=self.progress, **CONNECT)
            for name, fresh in {"Bezier": tw.Bezier(a, b), "PolyChain": tw.PolyChain(a, b)}.items()
        }
        self._save(curves, "safetensors")
        return {"Segment": tw.Segment(a, b), **curves}

    def scan_curves(self, networks: list[tw.Weights], curves: dict[str, tw.Curve]) -> dict[str, tw.Scan]:
        self.say("Measuring 61 points along each ...")
        single = tw.scan(self.model, networks[:2], self.task, self.data, **self.scanning)
        profiles = {
            name: tw.scan(self.model, curve, self.task, self.data, points=61, **self.scanning)
            for name, curve in curves.items()
        }
        scans = {"Single": single, **profiles}
        self.say("\n" + tables.curves(scans) + "\n")
        self._save(profiles)
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
            plane, drawn = tw.Plane(networks[0], networks[1], third), {name: curves[name]} if name in curves else {}
            data = {"train": self.data["train"]}
            scans[name] = tw.scan(self.model, plane, self.task, data, overlay=drawn, **self.scanning)
        self._save({f"plane-{name.replace(' ', '-')}": scan for name, scan in scans.items()})
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
        result = tw.compare(
            _network, self.task, self.train, self.data["test"], ways, budget=BUDGET, lr=0.05, **self.scanning
        )
        result.save(self.folder / "budget.json")
        self.say("\n" + result.table() + "\n")
        figure = Figure(layout="constrained")
        tw.figures.budget(result, ax=figure.subplots())
        tw.figures.save(figure, self.folder / "budget")

    def _save(self, results: Mapping[str, Any], kind: str = "json") -> None:
        for name, result in results.items():
            result.save(self.folder / f"{name.lower()}.{kind}")


def _network(seed: int) -> nn.Module:
    return digits(seed)["model"]
