"""Networks that an entry can use as ends, and how many of them it needs."""

import math
from dataclasses import replace

import pytest
import torch

import thalweg as tw
from thalweg.paper.entries import ENTRIES, open_experiment
from thalweg.paper.experiment import DONE, Need
from thalweg.paper.recipes import RECIPES
from thalweg.paper.running import price
from thalweg.store.runs import LOG, Run


@pytest.mark.parametrize(
    ("last", "usable"), [(0.5, True), (0.99, True), (0.9995, False), (1.2, False), (math.nan, False)]
)
def test_finished_network_at_chance_is_refused_as_an_end(last, usable, tmp_path, monkeypatch):
    """Whoever trained it: its log says where its loss ended, here relative to that of a constant answer."""
    experiment = open_experiment(tmp_path, "cifar100", "vgg16", "full", progress=False)
    folder = experiment.folder_of(Need("network", 1))
    folder.mkdir(parents=True)
    for loss in (4.7, last * math.log(100)):
        Run(folder).append(LOG, {"epoch": 1, "loss": loss, "seconds": 1.0})
    (folder / DONE).touch()
    monkeypatch.setattr(type(experiment), "_trained", lambda self, need: "network")
    if usable:
        assert experiment.network(1) == "network"
        return
    for _ in range(2):  # and again if it is asked for again
        with pytest.raises(
            tw.ThalwegError, match=r"network of seed 1 .* ended at .* constant answer is 4\.605; list other"
        ):
            experiment.network(1)


def test_constant_answer_of_a_language_model_is_one_of_its_words(tmp_path):
    experiment = open_experiment(tmp_path, "ptb", "lstm-large", "smoke", progress=False)
    experiment.tokens = {"train": torch.tensor([0, 9_999, 3])}
    assert experiment.constant_loss == pytest.approx(math.log(10_000))


@pytest.mark.parametrize(
    ("entry", "data", "model"), [("width", "cifar10", "conv3fc3"), ("aligned", "cifar10", "vgg16_bn")]
)
def test_entry_with_pairs_refuses_an_odd_number_of_seeds(entry, data, model, tmp_path):
    experiment = open_experiment(tmp_path, data, model, "smoke", progress=False, seeds=[0, 1, 3])
    with pytest.raises(
        tw.ThalwegError, match="pairs of networks are needed here, and seeds 0, 1, 3 are 3: list an even"
    ):
        price([(ENTRIES[entry], experiment)], 3)


@pytest.mark.parametrize(
    ("model", "scale", "points"), [("vgg16", "full", 81), ("preresnet164", "full", 41), ("vgg16", "smoke", 9)]
)
def test_price_of_the_path_through_fge_counts_its_points(model, scale, points, tmp_path):
    """Eight steps between each two of the eleven, six or two networks that a walk collects."""
    experiment = open_experiment(tmp_path, "cifar100", model, scale)
    assert [number for _, _, number in ENTRIES["fge-path"].points(experiment, 1)] == [points]


@pytest.mark.parametrize("cycle", [1, 2, 3, 4])
def test_pieces_of_the_path_through_fge_join_its_networks(cycle):
    walk = replace(RECIPES["cifar100", "vgg16"].walk, cycle=cycle)
    plan = tw.FGE(cycle=cycle, lr_max=walk.lr_max, lr_min=walk.lr_min).plan(10, walk.epochs)
    assert len(plan.collected) == walk.pieces + 1


def test_scans_recompute_batch_norm_statistics_on_the_batches_of_training(tmp_path):
    """Crops of padded images have a black border: without it, statistics are others."""
    pair = open_experiment(tmp_path, "cifar10", "preresnet20", "smoke", progress=False)
    network = tw.Weights.of(pair.architecture)
    found = {
        name: tw.scan(pair.architecture, [tw.update_bn(pair.architecture, network, batches)], pair.task, pair.data)
        for name, batches in (("training", pair.train), ("clean", pair.clean))
    }
    losses = {name: float(scan.values["test"]["loss"][0]) for name, scan in found.items()}
    measured = pair.scan("here", [network, network], weight_decay=0.0).values["test"]["loss"]
    assert measured.tolist() == pytest.approx([losses["training"]] * 2, rel=1e-5)
    assert losses["clean"] != pytest.approx(losses["training"], rel=1e-4)
