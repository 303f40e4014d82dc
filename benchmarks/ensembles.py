"""What ensembles of VGG-16 on CIFAR-100 are worth and cost: calibrated NLL, and the equivalent in independent networks.

$ python benchmarks/ensembles.py --data ~/data --out paper

Takes the networks, Snapshot runs and FGE walks that `thalweg paper run ensembles --data-set cifar100 --model vgg16` has
trained in `--out`, or trains them first; SWAG is made from the networks of each FGE run. `--seeds 1,2,3` says which. A
run that does not begin to learn, as with seed 0, or diverges, as Snapshot does at its first restart with seeds 2 and 3,
ends the command with an error message: `--methods Independent,FGE` leaves Snapshot out. `--more 4,5,6` are seeds of
further independent networks, needed if an ensemble is worth more than three. The same command resumes an interrupted
one.
Prints one row per ensemble at one, two and three budgets, and one for its average as one network, then the
same as one line of JSON, and writes `comparison.json` and the figures. With `--scale smoke` and without data it runs
every line on a CPU in about a minute; its networks learn nothing.

For comparison, `ANCHORS` has published test errors (in percent) of VGG-16 on CIFAR-100, of one network and of 100
(Ashukha et al., Pitfalls of In-Domain Uncertainty Estimation and Ensembling in Deep Learning, 2020). By accuracy, FGE
was worth about 2.7 independent networks there, and hardly more with more of its networks.
"""

import argparse
import json
import time
from collections.abc import Sequence
from math import isinf, isnan
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import thalweg as tw
from thalweg.evaluation.ensemble_comparison import EnsembleComparison
from thalweg.paper.ensemble_entries import members_of
from thalweg.paper.entries import ENTRIES, open_experiment
from thalweg.paper.experiment import Experiment, Need, prepare

METHODS = {"Independent": "Ind", "Snapshot": "SSE", "FGE": "FGE"}
SCORES = ("error", "nll", "calibrated_nll")
ANCHORS = {
    "one network": 25.4,
    "SWAG": 23.0,
    "FGE": 22.8,
    "cyclical SGLD": 21.2,
    "Snapshot, 4,000 epochs": 21.0,
    "independent networks": 19.9,
}


def swag(experiment: Experiment, members: Sequence[tw.Weights], samples: int, seed: int) -> list[tw.Weights]:
    """Networks drawn around those of one FGE run, each with its own batch-norm statistics if it needs any."""
    drawn = tw.SWAG(members).sample(samples, seed=seed)
    return [tw.update_bn(experiment.architecture, weights, experiment.train).to("cpu") for weights in drawn]


def scored(experiment: Experiment, seeds: Sequence[int], methods: Sequence[str], samples: int) -> tw.Comparison:
    runs: dict[str, list[Any]] = {name: members_of(experiment, METHODS[name], len(seeds)) for name in methods}
    runs["Independent"] = members_of(experiment, METHODS["Independent"], len(experiment.seeds))
    runs["SWAG"] = [swag(experiment, members, samples, seed) for seed, members in zip(seeds, runs["FGE"], strict=True)]
    comparison = EnsembleComparison(
        experiment.architecture, experiment.task, experiment.test, None, experiment.train, None
    )
    one, multiples = comparison.alone(runs["Independent"]), [*range(1, len(seeds) + 1)]
    entries = {
        name: {
            "title": name,
            "settings": "from the networks of FGE" if name == "SWAG" else "as in the paper",
            "epochs": experiment.recipe.epochs,
            "members": len(pool[0]),
            **comparison.entry(pool, range(1, len(pool) + 1), one),
        }
        for name, pool in runs.items()
    }
    each = comparison.milliseconds(runs["Independent"][0][0])
    return tw.Comparison(experiment.recipe.epochs, multiples, [*seeds], entries, each)


def compact(found: tw.Comparison) -> dict[str, Any]:
    """The scores of each ensemble and of its average; null where a number is not known, "inf" where it is beyond."""

    def row(method: str, k: int, averaged: bool) -> list[Any]:
        values = [found.score(method, k, name, averaged)[0] for name in SCORES]
        values += [*found.difference(method, k, "error", averaged), found.equivalent(method, k, averaged)]
        known = [None if isnan(value) else "inf" if isinf(value) else round(value, 5) for value in values]
        return [found.networks(method, k, averaged), *known]

    rows = {
        f"{k}B {method}{', averaged' * averaged}": row(method, k, averaged)
        for k in found.multiples
        for method, entry in found.entries.items()
        for averaged in (False, True)
        if not averaged or ("averaged" in entry and found.networks(method, k) > 1)
    }
    columns = ["networks", *SCORES, "error minus that of one", "its standard error", "equivalent"]
    return {"seeds": found.seeds, "milliseconds": found.milliseconds, "columns": columns, "rows": rows}


def seeds(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("thalweg-paper"), help="the folder of `thalweg paper run`")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--seeds", type=seeds, default=[1, 2, 3])
    parser.add_argument("--more", type=seeds, default=[], help="seeds of further independent networks")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[*METHODS], help="FGE among them")
    parser.add_argument("--samples", type=int, default=20, help="networks drawn by SWAG for each seed")
    given = parser.parse_args()
    began, device = time.perf_counter(), "cuda" if torch.cuda.is_available() else "cpu"
    compute = tw.Compute("bf16" if device == "cuda" else "fp32")
    settings: Any = {"given": given.data, "device": device, "compute": compute, "seeds": [*given.seeds, *given.more]}
    experiment = open_experiment(given.out, "cifar100", "vgg16", given.scale, **settings)
    wanted = [(experiment, Need("network", k)) for k in range(len(experiment.seeds))]
    wanted += ENTRIES["ensembles"].wanted(experiment, len(given.seeds))
    prepare([(own, need) for own, need in wanted if need.kind != "snapshot" or "Snapshot" in given.methods])
    found, folder = scored(experiment, given.seeds, given.methods, given.samples), experiment.results / "scored"
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / "comparison.json")
    for name, draw in {"budget": tw.figures.budget, "equivalents": tw.figures.equivalents}.items():
        figure = Figure(figsize=(7, 4.8), layout="constrained")
        draw(found, ax=figure.subplots())
        tw.figures.save(figure, folder / name)
    print(found.table())
    print(
        "elsewhere, errors of one network and of 100 (%): "
        + ", ".join(f"{name} {error}" for name, error in ANCHORS.items())
    )
    print(f"wrote {folder}; torch {torch.__version__}, {device}")
    print(json.dumps({**compact(found), "seconds": round(time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
