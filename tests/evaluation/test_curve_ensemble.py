"""Points of a curve together, before and after temperature scaling."""

import itertools

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.evaluation import metrics
from thalweg.evaluation.calibration import fit_temperature
from thalweg.evaluation.curve_ensemble import CROSS_FITTED, HELD_OUT


@pytest.fixture(scope="module")
def setting():
    case = ZOO["conv_bn"]
    g = torch.Generator().manual_seed(3)
    test = [(torch.randn(40, 2, 5, 5, generator=g).double(), torch.randint(3, (40,), generator=g)) for _ in range(2)]
    curve = tw.PolyChain(*case.ends())
    return case, curve, test


def logits_at(case, curve, t, batches):
    net = case.module(9)
    tw.update_bn(net, curve.point(t), case.batches()).load_into(net)
    with torch.no_grad():
        return torch.cat([net.eval()(x) for x, _ in batches])


def test_curve_ensemble_is_the_naive_ensemble(setting):
    case, curve, test = setting
    result = tw.curve_ensemble(case.module(1), curve, case.task, test, bn_batches=case.batches(), points=4)
    labels = torch.cat([y for _, y in test])
    alone = [logits_at(case, curve, t, test).softmax(1) for t in result.t]
    assert result.t == [0, 1 / 3, 2 / 3, 1]
    assert result.scores["none"]["nll"] == pytest.approx(metrics.nll(sum(alone) / 4, labels), rel=1e-10)
    assert result.error == [metrics.error(p, labels) for p in alone]
    assert result.pair_error == [metrics.error((alone[0] + p) / 2, labels) for p in alone]
    scan = tw.scan(case.module(1), curve, case.task, {"train": case.batches()}, points=4, bn_batches=case.batches())
    assert result.train_loss == pytest.approx(scan.values["train"]["data_loss"].tolist(), rel=1e-12)
    members = [tw.update_bn(case.module(1), curve.point(t), case.batches()) for t in result.t]
    ensemble = tw.Ensemble(case.module(1), members).score(case.task, test)
    assert result.scores["none"]["error"] == ensemble["error"]


def test_curve_ensemble_temperatures_are_cross_fitted_and_labelled_so(setting):
    case, curve, test = setting
    result = tw.curve_ensemble(case.module(1), curve, case.task, test, bn_batches=case.batches(), points=3)
    assert result.fitted_on == CROSS_FITTED
    logits, labels = logits_at(case, curve, 0.5, test), torch.cat([y for _, y in test])
    halves = [fit_temperature(logits[k::2], labels[k::2]) for k in (0, 1)]
    assert result.temperatures["per point"][1] == pytest.approx(sum(halves) / 2, rel=1e-9)
    scaled = torch.empty_like(logits)
    scaled[::2], scaled[1::2] = logits[::2] / halves[1], logits[1::2] / halves[0]
    assert result.nll["per point"][1] == pytest.approx(metrics.nll(scaled.softmax(1), labels), rel=1e-9)
    assert result.temperatures["none"] == [1, 1, 1]
    assert len(set(result.temperatures["one"])) == 1
    losses = torch.tensor(result.train_loss)
    for name, power in (("train loss", 1), ("inverse train loss", -1)):
        ratio = torch.tensor(result.temperatures[name]) / losses**power
        assert torch.allclose(ratio, ratio[0].expand(3), rtol=1e-5)


def test_curve_ensemble_temperatures_follow_the_train_loss_with_or_without_decay(setting):
    case, curve, test = setting
    common = {"points": 3, "bn_batches": case.batches(), "weight_decay": 0.1}
    result = tw.curve_ensemble(case.module(1), curve, case.task, test, **common)
    scan = tw.scan(case.module(1), curve, case.task, {"train": case.batches()}, **common)
    for name, losses, quantity in (
        ("train loss", result.train_loss, "loss"),
        ("train data loss", result.train_data_loss, "data_loss"),
    ):
        assert losses == pytest.approx(scan.values["train"][quantity].tolist(), rel=1e-12)
        for scaling, power in ((name, 1), (f"inverse {name}", -1)):
            ratio = torch.tensor(result.temperatures[scaling]) / torch.tensor(losses) ** power
            assert torch.allclose(ratio, ratio[0].expand(3), rtol=1e-5)
    assert result.train_loss[0] > 1.1 * result.train_data_loss[0]


def test_curve_ensemble_measures_the_train_loss_on_other_data_than_statistics(setting):
    case, curve, test = setting
    settings = {"bn_batches": case.batches(), "points": 3}
    found = tw.curve_ensemble(case.module(1), curve, case.task, test, train=test, **settings)
    scan = tw.scan(case.module(1), curve, case.task, {"other": test}, **settings)
    assert found.train_loss == pytest.approx(scan.values["other"]["data_loss"].tolist(), rel=1e-12)


def test_curve_ensemble_uses_held_out_data(setting):
    case, curve, test = setting
    result = tw.curve_ensemble(
        case.module(1), curve, case.task, test[:1], bn_batches=case.batches(), points=3, held_out=test[1:]
    )
    assert result.fitted_on == HELD_OUT
    expected = fit_temperature(logits_at(case, curve, 1.0, test[1:]), test[1][1])
    assert result.temperatures["per point"][-1] == pytest.approx(expected, rel=1e-9)


def test_curve_ensemble_refuses_a_train_loss_that_keeps_something_between_passes(setting):
    case, curve, test = setting
    calls = itertools.count(1)
    growing = tw.Task(lambda outputs, targets: case.task.loss(outputs, targets) * next(calls), case.task.predict)
    said = r"on the first batches of 'train' after the others and .* by itself: .* keep something from one pass"
    with pytest.raises(tw.ThalwegError, match=said):
        tw.curve_ensemble(case.module(1), curve, growing, test, bn_batches=case.batches(), points=3)


class Rotated(list):
    """Another order in each pass."""

    turn = 0

    def __iter__(self):
        self.turn += 1
        return iter([self[(k + self.turn) % len(self)] for k in range(len(self))])


def test_curve_ensemble_measures_every_point_on_the_same_pass(setting):
    case, curve, test = setting
    settings = {"bn_batches": case.batches(), "points": 3}
    losses = [
        tw.curve_ensemble(case.module(1), curve, case.task, test, train=train, **settings).train_loss
        for train in (Rotated(test), test)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_curve_ensemble_of_a_network_without_batch_norm_needs_train_data_alone():
    case = ZOO["mlp"]
    curve, batches = tw.PolyChain(*case.ends()), case.batches()
    found = tw.curve_ensemble(case.module(1), curve, case.task, batches, train=batches, points=3)
    scan = tw.scan(case.module(1), curve, case.task, {"train": batches}, points=3)
    assert found.train_loss == pytest.approx(scan.values["train"]["data_loss"].tolist(), rel=1e-12)
    with pytest.raises(tw.ThalwegError, match="give its data as train="):
        tw.curve_ensemble(case.module(1), curve, case.task, batches, points=3)


def test_curve_ensemble_of_a_network_with_batch_norm_needs_batches_for_it(setting):
    case, curve, test = setting
    with pytest.raises(tw.ThalwegError, match=r"needs statistics of each point.* set bn_batches="):
        tw.curve_ensemble(case.module(1), curve, case.task, test, train=case.batches(), points=3)


def test_curve_ensemble_save_and_load(setting, tmp_path):
    case, curve, test = setting
    result = tw.curve_ensemble(case.module(1), curve, case.task, test, bn_batches=case.batches(), points=2)
    result.save(tmp_path / "c.json")
    assert tw.CurveEnsemble.load(tmp_path / "c.json").to_dict() == result.to_dict()


def test_curve_ensemble_refuses_a_task_without_probabilities(setting):
    other = ZOO["two_inputs"]
    with pytest.raises(tw.ThalwegError, match="probabilities= of its own"):
        tw.curve_ensemble(
            other.module(1), tw.Bezier(*other.ends()), other.task, other.batches(), bn_batches=other.batches(), points=2
        )


def test_curve_ensemble_refuses_bad_input(setting):
    case, curve, test = setting

    class Unruly:  # turned by one batch in each pass, which no seed reaches
        def __init__(self, batches):
            self.batches, self.first = list(batches), itertools.count()

        def __len__(self):
            return len(self.batches)

        def __iter__(self):
            first = next(self.first) % len(self.batches)
            return iter(self.batches[first:] + self.batches[:first])

    settings = {"bn_batches": case.batches(), "points": 6}
    with pytest.raises(tw.ThalwegError, match="the held-out batches come in another order in each pass"):
        tw.curve_ensemble(case.module(1), curve, case.task, test, held_out=Unruly(test * 4), **settings)
    with pytest.raises(tw.ThalwegError, match="the test batches come in another order in each pass"):
        tw.curve_ensemble(case.module(1), curve, case.task, Unruly(test), **settings)
    own = tw.Task(case.task.loss, case.task.predict, probabilities=torch.sigmoid)
    with pytest.raises(tw.ThalwegError, match="probabilities= of its own"):
        tw.curve_ensemble(case.module(1), curve, own, test, **settings)
