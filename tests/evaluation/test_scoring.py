"""Calibrated scores of ensembles, against minimisation by scipy and plain torch."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn import functional as F
from zoo import ZOO

import thalweg as tw
from thalweg.evaluation.calibration import Temperature
from thalweg.evaluation.scoring import Scored

TASK = tw.classification()


def noisy(seed, count=60, classes=3):
    """Data that a linear network cannot learn entirely, so that temperatures exist."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=g, dtype=torch.float64)
    teacher = torch.randn(4, classes, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    y = torch.multinomial((0.7 * x @ teacher).softmax(1), 1, generator=g)[:, 0]
    return [(x[k : k + 13], y[k : k + 13]) for k in range(0, count, 13)]


def members(count=3, sure=4.0):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        net = nn.Linear(4, 3).double()
        trained = tw.fit(net, TASK, noisy(seed), epochs=20, lr=0.3)
        trained.vector.mul_(sure)
        found.append(trained)
    return found


@pytest.fixture(scope="module")
def ensemble():
    return tw.Ensemble(nn.Linear(4, 3).double(), members())


def naive(points, batches):
    """Mean probabilities and labels, without thalweg's evaluation."""
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    total = 0
    for point in points:
        net = nn.Linear(4, 3).double()
        net.load_state_dict(point.state_dict())
        total = total + net(x).detach().softmax(1)
    return total / len(points), y


def best(probabilities, labels):
    def loss(temperature):
        return float(F.cross_entropy(probabilities.log() / np.exp(temperature), labels))

    return float(np.exp(minimize_scalar(loss, (-1.0, 1.0), tol=1e-12).x))


def scaled(probabilities, temperature):
    return (probabilities.log() / temperature).softmax(1)


def test_calibrated_nll_is_cross_fitted_on_two_halves(ensemble):
    test = noisy(7)
    score, (p, y) = ensemble.score(TASK, test), naive(ensemble.members, test)
    after = torch.empty_like(p)
    after[0::2], after[1::2] = scaled(p[0::2], best(p[1::2], y[1::2])), scaled(p[1::2], best(p[0::2], y[0::2]))
    assert score["calibrated_nll"] == pytest.approx(float(F.nll_loss(after.log(), y)), rel=1e-8)
    assert score["nll"] == pytest.approx(float(F.nll_loss(p.log(), y)), rel=1e-10)
    assert score["calibrated_nll"] < score["nll"]
    assert score["calibrated_error"] == score["error"] == float((p.argmax(1) != y).double().mean())


def test_calibrated_nll_with_held_out_data(ensemble):
    test, held_out = noisy(7), noisy(8)
    temperature = best(*naive(ensemble.members, held_out))
    p, y = naive(ensemble.members, test)
    report = ensemble.report(TASK, test, held_out=held_out)
    assert report.temperature == pytest.approx(temperature, rel=1e-6)
    assert report.fitted_on == "held-out data"
    assert report.scores["calibrated_nll"] == pytest.approx(
        float(F.nll_loss(scaled(p, temperature).log(), y)), rel=1e-8
    )
    assert ensemble.score(TASK, test, held_out=held_out) == report.scores
    alone, _ = naive(ensemble.members[1:2], test)
    own = scaled(alone, best(*naive(ensemble.members[1:2], held_out)))
    assert report.members[1]["calibrated_nll"] == pytest.approx(float(F.nll_loss(own.log(), y)), rel=1e-8)


def test_ensemble_score_is_the_last_of_the_report(ensemble):
    assert ensemble.score(TASK, noisy(7)) == ensemble.report(TASK, noisy(7)).scores


def test_calibrate_keeps_a_temperature_that_is_saved_and_loaded(tmp_path):
    ensemble, test, held_out = tw.Ensemble(nn.Linear(4, 3).double(), members()), noisy(7), noisy(8)
    temperature = ensemble.calibrate(TASK, held_out)
    assert temperature == ensemble.temperature == pytest.approx(best(*naive(ensemble.members, held_out)), rel=1e-6)
    ensemble.save(tmp_path / "e")
    back = tw.Ensemble.load(tmp_path / "e", nn.Linear(4, 3).double())
    assert back.temperature == temperature
    p, y = naive(ensemble.members, test)
    for one in (ensemble, back):
        assert torch.allclose(one.predict(TASK, test)[0], scaled(p, temperature), rtol=1e-9)
        assert one.probabilities(test[0][0]).probabilities == pytest.approx(scaled(p, temperature)[:13], rel=1e-9)
    report = back.report(TASK, test)
    assert (report.temperature, report.scores["nll"]) == (temperature, pytest.approx(float(F.nll_loss(p.log(), y))))
    assert report.scores["calibrated_nll"] == pytest.approx(
        float(F.nll_loss(scaled(p, temperature).log(), y)), rel=1e-8
    )
    assert len(report.calibrated_reliability) > 1
    assert report.calibrated_reliability != report.reliability
    assert f"temperature of the ensemble: {temperature:.3f}, fitted on the data given to calibrate" in report.table()
    skipped = next((tmp_path / "e").glob("member-*")).name
    assert tw.Ensemble.load(tmp_path / "e", nn.Linear(4, 3).double(), skip=[skipped]).temperature is None
    back.add(ensemble.members[0])
    assert back.temperature is None


@pytest.mark.parametrize("bad", [0.0, -1.0, "warm", float("nan"), float("inf")])
def test_ensemble_file_with_bad_temperature_is_refused(tmp_path, bad):
    from thalweg.store import files

    tw.Ensemble(nn.Linear(4, 3).double(), members(1)).save(tmp_path / "e")
    manifest = tmp_path / "e" / "ensemble.json"
    content = json.loads(manifest.read_text())["content"]
    files.save_json(manifest, "ensemble", {**content, "temperature": bad})
    with pytest.raises(tw.ThalwegError, match=r"ensemble\.json"):
        tw.Ensemble.load(tmp_path / "e", nn.Linear(4, 3).double())


def constant(logits):
    """A network that gives the same logits for every input."""
    net = nn.Linear(1, len(logits)).double()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor(logits))
    return net, [tw.Weights.of(net)]


def labelled(*labels):
    return [(torch.zeros(len(labels), 1).double(), torch.tensor(labels))]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((0, 0, 0, 0), "all 4 predictions are right, so that a lower one is always better; use more or harder data"),
        ((1, 1, 2, 1), "0 of 4 predictions are right, and on average the truth is predicted no better than other"),
    ],
)
def test_calibrate_names_a_temperature_that_does_not_exist(labels, message):
    net, points = constant([2.0, 0.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    with pytest.raises(tw.ThalwegError, match="no temperature has the lowest NLL on the held-out data: " + message):
        ensemble.calibrate(TASK, labelled(*labels))
    assert ensemble.temperature is None
    report = ensemble.report(TASK, labelled(*labels))
    assert set(report.scores) == {"error", "nll", "brier", "ece", "disagreement"}
    assert message in report.table()
    assert report.calibrated_reliability == []
    assert "calibrated_nll" not in ensemble.score(TASK, labelled(0, 1, 0, 1), held_out=labelled(*labels))


@pytest.mark.parametrize("scored", [(0, 0, 0, 1, 0, 0, 0, 1), (0, 0, 0, 0), (1, 1, 2, 1)])
def test_held_out_data_without_a_temperature_are_the_reason(scored):
    """Whatever the data to score on, which may have one."""
    net, points = constant([2.0, 0.0, 0.0])
    why = "no temperature has the lowest NLL on the held-out data: all 3 predictions are right"
    report = tw.Ensemble(net, points).report(TASK, labelled(*scored), held_out=labelled(0, 0, 0))
    assert why in report.table()
    scores = tw.Ensemble(net, points).score(TASK, labelled(*scored), held_out=labelled(0, 0, 0))
    with pytest.raises(
        tw.ThalwegError, match=f"there is no score 'calibrated_nll', since {why}.*; there are error, nll"
    ):
        scores["calibrated_nll"]
    assert json.loads(json.dumps(scores)) == scores == report.scores


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            (0, 0, 0, 1, 0, 0),
            "all 3 predictions in one half of the data are right, so that a lower one is always better",
        ),
        ((0, 0, 1, 0, 1, 0), "1 of 3 predictions in one half of the data are right, and on average the truth is"),
    ],
)
def test_half_of_the_data_without_a_temperature_is_the_reason(labels, message):
    net, points = constant([2.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    wrong = sum(labels)
    expected = 2 / math.log((6 - wrong) / wrong)  # where the certainty of logits (2, 0) is the share that is right
    assert ensemble.calibrate(TASK, labelled(*labels)) == pytest.approx(expected, rel=1e-4)
    report = tw.Ensemble(net, points).report(TASK, labelled(*labels))
    assert message in report.table()
    assert "calibrated_nll" not in report.scores


def test_temperature_of_one_example_does_not_exist():
    net, points = constant([2.0, 0.0])
    assert "calibrated_nll" not in tw.Ensemble(net, points).score(TASK, labelled(0))
    net, points = constant([2.0, 1.0, 0.0, -5.0])
    with pytest.raises(tw.ThalwegError, match="there are no labels in one half of the data; use more data"):
        tw.Ensemble(net, points).score(TASK, labelled(1))["calibrated_nll"]


def test_closed_form_temperature_of_constant_logits():
    net, points = constant([2.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    assert ensemble.calibrate(TASK, labelled(0, 0, 0, 1)) == pytest.approx(2 / np.log(3), rel=1e-9)
    assert ensemble.predict(TASK, labelled(0))[0].tolist() == [pytest.approx([0.75, 0.25])]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([torch.zeros(4, 1).double()], "a batch must be"),
        ([(torch.zeros(4, 1).double(), None)], "those of this batch are None: give data with labels"),
        ([(torch.zeros(4, 1).double(),)], "got a tuple of 1: give data with labels"),
        ([(torch.zeros(4, 1).double(), "labels")], "the targets of this batch are str"),
        ([(torch.zeros(4, 1).double(), torch.randn(4, 2).double())], "a temperature is fitted to labels"),
        (labelled(-100, -100), "at least one label must count, and all 2 are -100, which are ignored"),
        ([], "the batches are empty"),
    ],
)
def test_calibrate_refuses_held_out_data_without_labels(batches, message):
    net, points = constant([2.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    task = tw.Task(TASK.loss)
    calls = (lambda: ensemble.calibrate(task, batches), lambda: ensemble.report(task, labelled(0, 1), held_out=batches))
    for call in calls:
        with pytest.raises(tw.ThalwegError, match=f"on the held-out data, .*{message}"):
            call()


def test_regression_has_no_temperature():
    case = ZOO["two_inputs"]
    ensemble = tw.Ensemble(case.module(1), [tw.Weights.of(case.module(2))])
    assert set(ensemble.score(case.task, case.batches())) == {"squared_error"}
    with pytest.raises(tw.ThalwegError, match="on the held-out data, a temperature is fitted to labels"):
        ensemble.calibrate(case.task, case.batches())


def test_soft_labels_have_a_calibrated_nll(ensemble):
    hard, g = noisy(7), torch.Generator().manual_seed(0)
    soft = [(x, 0.8 * F.one_hot(y, 3).double() + 0.2 * torch.rand(len(y), 3, generator=g)) for x, y in hard]
    soft = [(x, q / q.sum(1, keepdim=True)) for x, q in soft]
    p, q = naive(ensemble.members, hard)[0], torch.cat([q for _, q in soft])
    temperature = ensemble.calibrate(TASK, soft)
    ensemble.temperature = None
    assert temperature == pytest.approx(best(p, q), rel=1e-6)
    assert set(ensemble.score(TASK, soft)) == {"nll", "brier", "calibrated_nll", "disagreement"}


def test_label_maps_are_scaled_pixel_by_pixel():
    torch.manual_seed(0)
    net, x, y = nn.Conv2d(1, 3, 1).double(), torch.randn(4, 1, 5, 5).double(), torch.randint(3, (4, 5, 5))
    y[0, 0] = -100
    p = net(x).detach().softmax(1).movedim(1, -1)[y != -100]
    temperature = best(p, y[y != -100])
    assert tw.Ensemble(net, [tw.Weights.of(net)]).calibrate(TASK, [(x, y)]) == pytest.approx(temperature, rel=1e-6)


def test_average_of_networks_that_share_frozen_weights_is_as_large_as_one():
    net = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 3)).double()
    net[0].requires_grad_(False)
    report = tw.Ensemble(net, [tw.Weights.of(net)] * 4).report(TASK, noisy(7))
    moving, frozen = 8 * (50 * 3 + 3) / 1e6, 8 * (4 * 50 + 50) / 1e6
    assert (report.megabytes, report.megabytes_averaged) == pytest.approx((4 * moving + frozen, moving + frozen))


def test_averaged_is_the_mean_of_the_weights_as_one_network(ensemble):
    mean = tw.average(ensemble.members)
    report = ensemble.report(TASK, noisy(7))
    alone = tw.Ensemble(nn.Linear(4, 3).double(), [mean]).score(TASK, noisy(7))
    assert report.averaged == {name: value for name, value in alone.items() if name != "disagreement"}
    assert report.megabytes == pytest.approx(3 * 15 * 8 / 1e6)
    assert report.table().splitlines()[5].startswith("averaged")
    assert "forward passes: 3, 0.00036 MB; averaged, the mean of all weights as one network: 1, 0.00012 MB" in (
        report.table()
    )
    assert tw.Ensemble(nn.Linear(4, 3).double(), members(1)).report(TASK, noisy(7)).averaged == {}


def test_average_without_a_temperature_is_said():
    """Two of three networks prefer the first class; their average does not."""
    net, points = constant([1.0, 0.0])
    points += [*constant([1.0, 0.0])[1], *constant([-3.0, 0.0])[1]]
    report = tw.Ensemble(net, points).report(TASK, labelled(0, 0, 0, 0, 0, 0, 1, 1))
    assert "calibrated_nll" in report.scores
    assert "the average has no calibrated scores, since no temperature has the lowest NLL: 2 of 8" in report.table()


def test_average_of_one_member_is_that_member():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    member = tw.update_bn(module, tw.Weights.of(module), [(torch.randn(8, 2), None)])
    found = tw.Ensemble(module, [member]).average()
    assert found.has_statistics
    assert torch.equal(found.vector, member.vector)


def test_averaged_with_batch_norm_needs_bn_batches():
    case = ZOO["conv_bn"]
    points = [tw.fit(case.module(s), case.task, case.batches(), epochs=1, lr=0.1) for s in range(2)]
    ensemble = tw.Ensemble(case.module(7), points)
    without = ensemble.report(case.task, case.batches())
    assert without.averaged == {}
    assert "the average of the members is not scored: an average has no batch-norm statistics" in without.table()
    report = ensemble.report(case.task, case.batches(), bn_batches=case.batches())
    mean = tw.update_bn(case.module(7), tw.average(points), case.batches())
    expected = tw.Ensemble(case.module(7), [mean]).score(case.task, case.batches())
    assert report.averaged["nll"] == pytest.approx(expected["nll"], rel=1e-12)
    assert ensemble.average(case.task, case.batches()).has_statistics


def test_values_of_examples_have_the_scores_as_means():
    p, y = torch.rand(20, 4, generator=torch.Generator().manual_seed(0)).double().softmax(1), torch.arange(20) % 4
    found = Scored(TASK, p, y, Temperature(1.5))
    for name, values in found.examples.items():
        assert float(values.mean()) == pytest.approx(found.scores[name])
    assert set(found.examples) == {"error", "nll", "calibrated_nll"}


@pytest.mark.parametrize("value", [2, 0.5, torch.tensor(1.5)])
def test_temperature_set_by_hand_is_saved_and_loaded(value, tmp_path):
    net, points = constant([2.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    ensemble.temperature = value
    ensemble.save(tmp_path / "e")
    back = tw.Ensemble.load(tmp_path / "e", net)
    assert back.temperature == float(value)
    expected = (torch.tensor([[2.0, 0.0]]).double() / float(value)).softmax(1)
    assert torch.allclose(back.probabilities(torch.zeros(1, 1).double()).probabilities, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "warm", True])
def test_ensemble_refuses_a_bad_temperature(value):
    net, points = constant([2.0, 0.0])
    ensemble = tw.Ensemble(net, points)
    with pytest.raises(tw.ThalwegError, match="temperature"):
        ensemble.temperature = value
    assert ensemble.temperature is None
