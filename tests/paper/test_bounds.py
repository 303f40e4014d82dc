"""Bounds of the paper's sentences at their edge, and the settings of its residual networks, each as a number."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.paper import claims, curve_entries, ensemble_entries, imagenet
from thalweg.paper.entries import open_experiment
from thalweg.paper.recipes import RECIPES

KEYS = ("train", "test")
KINDS = ("none", "one", "train loss", "inverse train loss", "train data loss", "per point")


def points(before=0.26, after=0.25, regularised=(1.0, 2.0, 3.0), plain=(3.0, 2.0, 1.0), fitted=(1.0, 1.5, 2.0)):
    """Three points of a curve with these errors of their ensemble, losses and fitted temperatures."""
    return tw.CurveEnsemble(
        t=[0.0, 0.5, 1.0],
        train_loss=[*regularised],
        train_data_loss=[*plain],
        error=[0.28] * 3,
        pair_error=[0.28, 0.27, 0.26],
        temperatures={kind: [*fitted] for kind in KINDS},
        nll={kind: [1.0, 1.1 if kind == "per point" else 1.5, 1.0] for kind in KINDS},
        scores={kind: {"error": after if kind == "per point" else before, "nll": 1.0} for kind in KINDS},
        reliability={},
        fitted_on="each half",
    )


def verdict(found, part, ends=27.0, three=25.3):
    [claim] = [claim for claim in claims.on_points(found, ends, three) if part in claim.says]
    return claim


@pytest.mark.parametrize(("after", "holds"), [(0.2529, True), (0.253, False), (0.2531, False)])
def test_points_outperform_three_networks_only_if_their_error_is_lower(after, holds):
    assert verdict(points(after=after), "outperform three networks").holds is holds


@pytest.mark.parametrize(("before", "holds"), [(0.2699, True), (0.2701, False)])
def test_points_beat_two_ends_only_if_their_error_is_lower(before, holds):
    assert verdict(points(before=before), "beat its two ends").holds is holds


@pytest.mark.parametrize(
    ("papers", "helps", "better"), [(0.2529, True, True), (0.2531, True, False), (0.26, False, False)]
)
def test_claims_on_the_papers_temperature_are_about_the_regularised_loss(papers, helps, better):
    scores = {"error": papers, "nll": 1.0}
    found = points(after=0.1)
    found = replace(found, scores={**found.scores, "train loss": scores})
    one, two = (verdict(found, part) for part in ("the paper's temperature", "better than the three"))
    assert (one.holds, two.holds) == (helps, better)
    assert one.measured.endswith("; 26.00 % with one proportional to the loss without it")


def test_temperatures_are_compared_with_the_regularised_loss():
    found = verdict(points(), "l2-regularised")
    assert found.holds
    assert found.measured == "correlation +1.00; -1.00 with the loss without weight decay"
    other = points(regularised=(3.0, 2.0, 1.0), plain=(1.0, 2.0, 3.0))
    assert not verdict(other, "l2-regularised").holds


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_points_of_an_entry_have_the_weight_decay_of_its_recipe(decay, tmp_path):
    experiment = open_experiment(tmp_path, "mnist", "fc", "smoke", progress=False)
    experiment.recipe = replace(experiment.recipe, weight_decay=decay)
    found = ensemble_entries.points_together(experiment, "segment", tmp_path / "copy.json")
    square = float(experiment.network(0).vector.double().square().sum())
    assert found.train_loss[0] - found.train_data_loss[0] == pytest.approx(decay / 2 * square, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("data", "model", "least"),
    [
        ("cifar10", "vgg16", 89.5),
        ("cifar100", "vgg16", 98.51),
        ("cifar10", "resnet158", 79.5),
        ("cifar10", "wrn28_10", 66.1),
        ("cifar10", "conv3fc3", None),
        ("cifar100", "wrn28_10", None),
    ],
)
def test_error_on_the_line_is_at_least_half_a_point_below_the_papers(data, model, least, tmp_path):
    experiment = open_experiment(tmp_path, data, model, "smoke", progress=False)
    for above, holds in ((0.01, True), (-0.01, False)):
        values = {"loss": np.ones(3), "error": np.full(3, ((least or 0) + above) / 100)}
        scans = dict.fromkeys(
            ("single", "segment", "bezier", "polychain"), tw.Scan("", "curve", {"train": values, "test": values})
        )
        found = [
            claim for claim in curve_entries._low_all_along(experiment, scans) if "on the line the error" in claim.says
        ]
        assert [claim.holds for claim in found] == ([] if least is None else [holds])


@pytest.mark.parametrize(
    ("data", "model", "least"),
    [
        ("mnist", "fc", 0.95 * 0.657 / 0.018),
        ("cifar10", "conv3fc3", 0.95 * 2.416 / 0.05),
        ("cifar100", "vgg16", 0.95 * 4.941 / 0.141),
        ("cifar10", "resnet158", 0.95 * 2.613 / 0.015),
        ("cifar10", "vgg16_bn", 2.0),
    ],
)
def test_loss_on_the_line_is_at_least_a_twentieth_below_the_papers(data, model, least, tmp_path):
    experiment = open_experiment(tmp_path, data, model, "smoke", progress=False)
    for times, holds in ((1.001 * least, True), (0.999 * least, False)):
        losses = {"single": 0.02, "segment": 0.02 * times, "bezier": 0.02, "polychain": 0.02}
        scans = {
            name: tw.Scan("", "curve", {key: {"loss": np.full(3, loss), "error": np.zeros(3)} for key in KEYS})
            for name, loss in losses.items()
        }
        claim = next(iter(curve_entries._low_all_along(experiment, scans)))
        assert "on the straight line the train loss" in claim.says
        assert claim.holds is holds
        assert claim.says.endswith("(our bound)" if model == "vgg16_bn" else "(the paper)")


def diverse(near=14.0, far=20.0, member=29.0, single=28.0, short=7.0, long=40.0):
    return [
        {"networks": "FGE", "disagreement (%)": near, "error of one (%)": member, "distance": short},
        {"networks": "independent", "disagreement (%)": far, "error of one (%)": single, "distance": None},
        {"networks": "SSE", "disagreement (%)": None, "error of one (%)": None, "distance": long},
    ]


def test_bounds_of_diversity_are_the_papers_numbers_and_a_twentieth_or_half_a_point():
    paper = claims.paper_number
    share = 0.95 * paper("disagreement of two networks of one FGE run (% of test)")
    share /= paper("disagreement of two independent networks (% of test)")
    step = 1.05 * paper("Euclidean distance between consecutive FGE members")
    step /= paper("Euclidean distance between consecutive SSE members")
    worse = paper("accuracy of a fully trained network (%)") - paper("accuracy of a single FGE member (%)") + 0.5
    for factor, holds in ((1.001, True), (0.999, False)):
        assert claims.on_diversity(diverse(near=factor * share * 20))[0].holds is holds
        assert claims.on_diversity(diverse(member=28 + worse / factor))[1].holds is holds
        assert claims.on_diversity(diverse(short=step * 40 / factor))[2].holds is holds
    assert not claims.on_diversity(diverse(near=20.0))[0].holds


@pytest.mark.parametrize(("factor", "holds"), [(1.001, True), (0.999, False)])
def test_bends_are_apart_by_the_papers_share_of_the_ends(factor, holds, tmp_path, monkeypatch):
    bends = "distance between the bends of two polychains with the same ends"
    share = 0.95 * claims.paper_number(bends) / claims.paper_number("distance between those ends")
    ends = [tw.Weights.of(nn.Linear(2, 1, bias=False)) for _ in range(2)]
    a, b = (replace(end, vector=torch.tensor([x, 0.0])) for end, x in zip(ends, (0.0, 1.0), strict=True))
    chains = [tw.PolyChain(a, b).with_bends([torch.tensor([0.5, y])]) for y in (0.0, factor * share)]
    experiment = open_experiment(tmp_path, "cifar10", "vgg16", "smoke", progress=False)
    monkeypatch.setattr(type(experiment), "curve", lambda self, kind, seed=0: chains[seed])
    monkeypatch.setattr(type(experiment), "scan", lambda self, name, curve: None)
    monkeypatch.setattr(type(experiment), "scan_ends", lambda self: None)
    monkeypatch.setattr(curve_entries, "highest", lambda scan: 1.0)
    _, [claim, *_] = curve_entries.two_bends(experiment, tmp_path, 1)
    assert claim.holds is holds


@pytest.mark.parametrize(
    ("soon", "late", "holds"),
    [(0.105, 0.2649, [True, True]), (0.106, 0.2651, [False, False])],
)
def test_bounds_of_pairs_are_the_papers_t_and_a_twentieth_and_half_a_point(soon, late, holds, tmp_path, monkeypatch):
    """One network has 28 %, both ends together 26 %."""
    found = replace(points(), t=[0.0, 0.1, soon, 0.4, 1.0], error=[0.28] * 5, pair_error=[0.28, 0.28, 0.27, late, 0.26])
    monkeypatch.setattr(ensemble_entries, "points_together", lambda *_: found)
    experiment = open_experiment(tmp_path, "cifar100", "resnet_bottleneck164", "smoke", progress=False)
    _, judged = ensemble_entries.pair_ensemble(experiment, tmp_path, 1)
    assert [claim.holds for claim in judged] == holds


@pytest.mark.parametrize(("after", "holds"), [(0.238, [True, True]), (0.2382, [True, False]), (0.24, [False, False])])
def test_bound_on_imagenet_is_the_papers_error_and_half_a_point(after, holds, tmp_path, monkeypatch):
    found = SimpleNamespace(members=[{"error": 0.2387}], scores={"error": after})
    monkeypatch.setattr(tw, "walk", lambda *_, **__: tw.Walk((), ()))
    experiment = open_experiment(tmp_path, "imagenet", "resnet50", "smoke", progress=False)
    monkeypatch.setattr(type(experiment), "report", lambda self, members: found)
    _, judged = imagenet.fge_from_pretrained(experiment, tmp_path, 1)
    assert [claim.holds for claim in judged] == holds


def test_tensorflow_networks_have_its_settings():
    """Of `official/resnet` batch norm's decay of 0.997; of `research/resnet` its epsilon and the leak of its ReLUs."""
    for model in ("resnet158", "resnet_bottleneck164"):
        assert RECIPES["cifar10", model].weight_decay == RECIPES["cifar100", model].weight_decay == 2e-4
    official, research = tw.models.resnet158(), tw.models.resnet_bottleneck164()
    norms = [[m for m in net.modules() if isinstance(m, nn.BatchNorm2d)] for net in (official, research)]
    assert {(norm.momentum, norm.eps) for norm in norms[0]} == {(0.003, 1e-5)}
    assert {(norm.momentum, norm.eps) for norm in norms[1]} == {(0.1, 1e-3)}
    for net, leak in ((official, 0.0), (research, 0.1)):
        net.eval()
        width = net[-1].in_features
        x = torch.randn(2, width, 8, 8)
        head = [k for k, part in enumerate(net) if isinstance(part, nn.BatchNorm2d)][-1]
        naive = F.leaky_relu(x / (1 + net[head].eps) ** 0.5, leak).mean((2, 3)) @ net[-1].weight.T + net[-1].bias
        assert torch.allclose(net[head:](x), naive, atol=1e-5)
