"""Scans against a naive loop, summaries against the paper's definitions."""

import json
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.evaluation.measure import Measurement
from thalweg.reporting import tables
from thalweg.runtime.rng import MEASURING
from thalweg.tasks import predict_targets

DECAY = 0.02
ENDS = [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in (1, 2, 3)]


def pooled_statistics(net, forward, batches):
    """By hand: the mean and unbiased variance of all that each batch-norm layer is given, while it normalizes by
    batches.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    given = {layer: [] for layer in layers}
    hooks = [layer.register_forward_pre_hook(lambda layer, args: given[layer].append(args[0])) for layer in layers]
    net.eval()
    for layer in layers:
        layer.train()
    with torch.no_grad():
        for batch in batches:
            forward(batch)
    for layer, hook in zip(layers, hooks, strict=True):
        hook.remove()
        values = torch.cat([part.transpose(0, 1).flatten(1) for part in given[layer]], dim=1)
        layer.running_mean, layer.running_var = values.mean(1), values.var(1)


COEFFICIENTS = {  # of the start, the bend and the end
    tw.Segment: lambda t: (1 - t, 0, t),
    tw.Bezier: lambda t: ((1 - t) ** 2, 2 * t * (1 - t), t**2),
    tw.PolyChain: lambda t: (max(1 - 2 * t, 0), 1 - abs(2 * t - 1), max(2 * t - 1, 0)),
}


def logits_and_labels(net, batch):
    *inputs, labels = batch.values() if isinstance(batch, dict) else batch
    return net(*inputs).flatten(0, -2), labels.flatten()  # a row per example, or per token


@torch.no_grad()
def naive_scan(make, kind, batches):
    """What anybody would write in plain torch, without a line of thalweg: combine three networks, recompute batch-norm
    statistics, loop over single examples' losses.
    """
    rows = []
    for t in np.linspace(0, 1, 5):
        net, *others = make(9), make(1), make(4), make(2)
        for own, *given in zip(*(one.parameters() for one in (net, *others)), strict=True):
            if own.requires_grad:
                own.copy_(sum(c * values for c, values in zip(COEFFICIENTS[kind](t), given, strict=True)))
        pooled_statistics(net, lambda batch, net=net: logits_and_labels(net, batch), batches)
        net.eval()
        logits, labels = map(torch.cat, zip(*(logits_and_labels(net, batch) for batch in batches), strict=True))
        loss, wrong = F.cross_entropy(logits, labels), (logits.argmax(1) != labels).double()
        square = sum(own.square().sum() for own in net.parameters() if own.requires_grad)
        rows.append((loss, loss + DECAY / 2 * square, wrong.mean()))
    return torch.tensor(rows).numpy()


@pytest.mark.parametrize("kind", [tw.Segment, tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", [name for name in ZOO if name != "two_inputs"])
def test_scan_is_the_naive_loop(name, kind):
    case = ZOO[name]
    module, batches, curve = case.module(3), case.batches(), kind(*case.ends())
    if kind is not tw.Segment:
        curve = curve.with_bends([tw.Weights.of(case.module(4)).vector])
    before = bits(module)
    scan = tw.scan(module, curve, case.task, {"train": batches}, points=5, weight_decay=DECAY, bn_batches=batches)
    assert same_bits(before, bits(module))
    expected = naive_scan(case.module, kind, batches)
    ours = np.stack([scan.values["train"][key] for key in ("data_loss", "loss", "error")], axis=1)
    assert np.allclose(ours, expected, rtol=1e-10)


def test_scan_counts_a_short_last_batch_exactly():
    case = ZOO["mlp"]
    curve = tw.Segment(*case.ends())
    batches = case.batches()
    whole = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]
    scans = [tw.scan(case.module(1), curve, case.task, {"x": data}, points=3) for data in (batches, whole)]
    assert np.allclose(scans[0].values["x"]["loss"], scans[1].values["x"]["loss"], rtol=1e-12)
    assert np.allclose(scans[0].values["x"]["error"], scans[1].values["x"]["error"], rtol=1e-12)


@pytest.mark.parametrize("first", [True, False])
def test_scan_adds_nothing_for_a_batch_of_size_zero(first):
    """Whose mean loss is NaN."""
    case = ZOO["mlp"]
    module, batches = case.module(1), case.batches()
    empty = batches[0][0], torch.full_like(batches[0][1], -100)
    data, a = [empty, *batches] if first else [*batches, empty], tw.Weights.of(module)
    mean = tw.Task(F.cross_entropy, size=lambda batch: (batch[1] != -100).sum())
    by_mean, by_example = (tw.scan(module, [a], task, data).values["data"] for task in (mean, tw.classification()))
    assert by_mean["loss"] == pytest.approx(by_example["loss"], rel=1e-12)
    assert by_mean["error"] == by_example["error"]


def test_scan_ends_agree_with_update_bn_of_the_ends_and_report_the_gap():
    case = ZOO["conv_bn"]
    module, batches = case.module(3), case.batches()
    ends = [tw.fit(case.module(seed), case.task, batches, epochs=5, lr=0.1) for seed in (1, 2)]
    scan = tw.scan(module, tw.Bezier(*ends), case.task, {"train": batches}, points=3, bn_batches=batches)
    for end, index in zip(ends, (0, -1), strict=True):
        alone = tw.scan(module, [tw.update_bn(module, end, batches)], case.task, {"train": batches})
        stored = tw.scan(module, [end], case.task, {"train": batches})
        for key in ("loss", "error"):
            assert scan.values["train"][key][index] == alone.values["train"][key][0]
            assert scan.stored["train"][key][index] == stored.values["train"][key][0]
    assert scan.stored["train"]["loss"][0] != scan.values["train"]["loss"][0]
    assert "ends, train loss: " in scan.table()


@pytest.mark.parametrize("points", [[0.25, 0.5, 0.75], [0.0, 0.5], [0.5, 1.0], [0.5]])
def test_scan_without_an_end_has_no_barrier(points, tmp_path):
    """Which is what there is above the line between both ends, and would be less above another."""
    case = ZOO["mlp"]
    line, data = tw.Segment(*case.ends()), {"train": case.batches()}
    whole = tw.scan(case.module(1), line, case.task, data).summary()["train"]["loss"]
    assert whole["barrier"] > 0
    scan = tw.scan(case.module(1), line, case.task, data, points=points)
    assert math.isnan(scan.summary()["train"]["loss"]["barrier"])
    assert scan.table().splitlines()[-2].split()[-1] == "-"
    scan.save(tmp_path / "scan.json")
    assert tw.Scan.load(tmp_path / "scan.json").table() == scan.table()
    tw.page.write(tmp_path / "page.html", tmp_path)


def test_scan_of_a_plane_is_shaped_by_rows_of_y():
    case = ZOO["mlp"]
    plane = tw.Plane(*(tw.Weights.of(case.module(seed)) for seed in range(3)))
    curve = tw.Bezier(*plane.points[:2])
    settings = {"grid": (4, 3), "margin": 0.1, "overlay": {"Bezier": curve, "members": plane.points}}
    scan = tw.scan(case.module(1), plane, case.task, {"train": case.batches()}, **settings)
    values = scan.values["train"]["loss"]
    assert values.shape == (3, 4) == (len(scan.y), len(scan.x))
    alone = tw.scan(case.module(1), [plane.point(scan.x[3], scan.y[1])], case.task, {"train": case.batches()})
    assert values[1, 3] == pytest.approx(alone.values["train"]["loss"][0], rel=1e-12)
    xs = [x for x, _ in plane.corners]
    assert scan.x[0] == pytest.approx(min(xs) - 0.1 * (max(xs) - min(xs)))
    assert scan.marks["members"] == pytest.approx(np.array(plane.corners), abs=1e-9)
    assert len(scan.paths["Bezier"]) == 121
    assert "barrier" not in scan.summary()["train"]["loss"]
    assert scan.to_csv().splitlines()[0] == "x,y,train_loss,train_data_loss,train_error"
    assert len(scan.to_csv().splitlines()) == 13


def test_scan_of_members_with_statistics_needs_no_bn_batches():
    case = ZOO["conv_bn"]
    members = [tw.Weights.of(case.module(seed)) for seed in range(3)]
    scan = tw.scan(case.module(1), members, case.task, {"train": case.batches()})
    assert scan.values["train"]["error"].shape == (3,)
    assert scan.length[1] == pytest.approx(members[0].distance(members[1]))


@pytest.mark.parametrize("own_generator", [True, False])
def test_scan_leaves_the_callers_random_state_and_loaders_alone(own_generator):
    case = ZOO["conv_bn"]
    examples = [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)]
    generator = torch.Generator().manual_seed(1) if own_generator else None
    loader = DataLoader(examples, batch_size=5, shuffle=True, generator=generator)
    module, curve = case.module(1), tw.Bezier(*case.ends())
    states = [g.get_state() for g in (torch.default_generator, generator or torch.default_generator)]
    tw.fit(module, case.task, loader, epochs=1, lr=0.1)
    tw.connect(module, curve, case.task, loader, epochs=1, lr=0.1)
    tw.scan(module, curve, case.task, {"train": loader}, points=2, bn_batches=loader)
    tw.update_bn(module, curve.point(0.5), loader)
    after = [g.get_state() for g in (torch.default_generator, generator or torch.default_generator)]
    assert all(torch.equal(one, two) for one, two in zip(states, after, strict=True))


@pytest.mark.parametrize("what", ["loss", "predictions", "statistics"])
def test_what_is_measured_shares_no_random_numbers_with_training(what):
    """A network knows the dropout and the crops of its training: measured with the same, it looks better than it is."""
    case = ZOO["conv_bn"]
    module, batches = case.module(1), case.batches()

    def noisy(batch):
        return (batch[0] + torch.rand(batch[0].shape).to(batch[0]), *batch[1:])

    def measured(task, batches):
        weights = tw.Weights.of(module)
        if what == "loss":
            return float(tw.scan(module, [weights], task, batches).values["data"]["data_loss"][0])
        if what == "predictions":
            return tw.Ensemble(module, [weights]).score(task, batches)["nll"]
        return float(tw.update_bn(module, weights, batches, task).buffers[weights.layout.statistics[0]].sum())

    found = measured(tw.Task(case.task.loss, lambda net, batch: predict_targets(net, noisy(batch))), batches)
    for seed in (MEASURING, *range(20)):
        torch.manual_seed(seed)
        same = measured(case.task, [noisy(batch) for batch in batches])
        assert (abs(found - same) < 1e-9) == (seed == MEASURING), seed


def test_scan_runs_the_network_once_per_batch():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    module = Counted(4, 3).double()
    counts = []
    for points in (1, 3):
        tw.scan(module, [tw.Weights.of(module)] * points, tw.classification(), {"train": ZOO["mlp"].batches()})
        counts.append(len(calls))
        calls.clear()
    assert counts[1] - counts[0] == 2 * 3  # batches; what is done once for a call is in both


def test_scan_takes_bare_batches_as_data():
    case, line = ZOO["mlp"], tw.Segment(*ZOO["mlp"].ends())
    bare = tw.scan(case.module(1), line, case.task, case.batches(), points=3).to_dict()["values"]
    assert bare == tw.scan(case.module(1), line, case.task, {"data": case.batches()}, points=3).to_dict()["values"]
    loader = torch.utils.data.DataLoader(list(zip(*case.batches()[0], strict=True)), batch_size=2)
    assert list(tw.scan(case.module(1), line, case.task, loader, points=2).values) == ["data"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {}}, "data must be batches, or a dict of batches by name, .* got an empty dict"),
        ({"data": 1}, "the batches of 'data' must have a length"),
        ({"data": {"test": []}}, "the batches of 'test' are empty"),
        ({"target": []}, "a scan needs a curve, a plane, or a list of Weights"),
        ({"target": "curve"}, "a scan needs a curve, a plane, or a list of Weights"),
        ({"points": 1}, "at least 2 points"),
        ({"points": 10**14}, "at most a million; got 100,000,000,000,000"),
        ({"grid": (10**4, 10**4), "target": tw.Plane(*ENDS)}, "at most a million in all; got"),
        ({"points": [0.0, 1.5]}, "t must lie between 0"),
        ({"points": [0.5, 0.0, 1.0]}, "in increasing order"),
        ({"points": "61"}, "points are a whole number"),
        ({"grid": (3, 3)}, "grid= is for a plane, and this is a scan of a curve: leave it out"),
        ({"margin": 0.1}, "margin= is for a plane, and this is a scan of a curve"),
        ({"points": 3, "target": [ENDS[0]]}, "points= is for a curve, and this is a scan of a list of weights"),
        ({"grid": (3, 3), "target": [ENDS[0]]}, "grid= is for a plane, and this is a scan of a list of weights"),
        (
            {"grid": (1, 3), "target": tw.Plane(*ENDS)},
            "a plane needs a grid of at least 2 x 2 and a margin of 0 or more",
        ),
        ({"margin": float("nan"), "target": tw.Plane(*ENDS)}, "a margin of 0 or more; got 21 and nan"),
        ({"margin": float("inf"), "target": tw.Plane(*ENDS)}, "a margin of 0 or more; got 21 and inf"),
        ({"points": 3, "target": tw.Plane(*ENDS)}, "points= is for a curve, and this is a scan of a plane"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more"),
        ({"task": nn.CrossEntropyLoss()}, "the task must be a Task, such as classification"),
        ({"bn_batches": None}, r"batch norm \('1\.running_mean'\) needs statistics of each point"),
        ({"bn_batches": []}, "bn_batches are empty"),
    ],
)
def test_scan_refuses_bad_input(change, message):
    case = ZOO["conv_bn"]
    batches = case.batches()
    settings = {
        "target": tw.Bezier(*case.ends()),
        "task": case.task,
        "data": {"train": batches},
        "bn_batches": batches,
    }
    with pytest.raises(tw.ThalwegError, match=message):
        tw.scan(case.module(1), **{**settings, **change})


def test_scan_of_weights_without_statistics_needs_bn_batches():
    case = ZOO["conv_bn"]
    point = tw.Segment(*case.ends()).point(0.5)
    with pytest.raises(tw.ThalwegError, match="needs statistics"):
        tw.scan(case.module(1), [point], case.task, {"train": case.batches()})


def test_scan_names_another_network():
    with pytest.raises(
        tw.ThalwegError, match="the network and the target of the scan do not describe the same network"
    ):
        tw.scan(
            ZOO["mlp"].module(1),
            tw.Segment(*ZOO["frozen"].ends()),
            tw.classification(),
            {"train": ZOO["mlp"].batches()},
        )


class TestOneForwardPassForLossAndMetrics:
    """What the network gives for a batch serves the loss and the metrics alike, and neither spoils it for the other."""

    def values(self, loss, predict=predict_targets, module=None, metric=lambda outputs, targets: outputs[:, 0]):
        module = module or ZOO["mlp"].module(1)
        task = tw.Task(loss, predict, metrics={"first": metric})
        scan = tw.scan(module, [tw.Weights.of(module)], task, {"x": ZOO["mlp"].batches()})
        return {key: values[0] for key, values in scan.values["x"].items()}

    def expected_first(self):
        module = ZOO["mlp"].module(1)
        with torch.no_grad():
            return torch.cat([module(x)[:, 0] for x, _ in ZOO["mlp"].batches()]).mean().item()

    @pytest.mark.parametrize("metrics", [None, {"first": lambda outputs, targets: outputs[:, 0]}])
    def test_measure_runs_the_network_once_per_batch(self, metrics):
        module, seen, batches = ZOO["mlp"].module(1).eval(), [], ZOO["mlp"].batches()
        module.register_forward_hook(lambda *_: seen.append(1))
        task = tw.Task(tw.classification().loss, metrics=metrics)
        measure = Measurement(module, task, batches, torch.device("cpu"), tw.Compute())
        measure()
        assert set(measure.means()) == {"data_loss", *(metrics or ["error"])}
        assert len(seen) == len(batches)

    def test_loss_may_write_into_the_outputs(self):
        found = self.values(lambda outputs, targets: outputs.mul_(0).sum(1))
        assert found["first"] == pytest.approx(self.expected_first())
        assert found["data_loss"] == 0

    def test_metric_that_writes_into_the_outputs_is_refused(self):
        with pytest.raises(
            tw.ThalwegError, match="the metric 'first' writes into the outputs or targets, which the loss reads"
        ):
            self.values(tw.classification().loss, metric=lambda outputs, targets: outputs.sigmoid_()[:, 0])

    def test_metric_that_writes_into_an_output_object_is_refused(self):
        def negated(outputs, targets):
            return outputs.logits.neg_()[:, 0]

        with pytest.raises(tw.ThalwegError, match="the metric 'first' writes into the outputs or targets"):
            self.values(
                lambda outputs, targets: tw.classification().loss(outputs.logits, targets),
                lambda net, batch: (SimpleNamespace(logits=net(batch[0])), batch[1]),
                metric=negated,
            )

    def test_predict_may_call_the_network_twice(self):
        class Noisy(nn.Linear):
            def forward(self, x):
                return super().forward(x) + torch.randn(len(x), 3)

        found = self.values(
            lambda outputs, targets: outputs.abs().sum(1),
            lambda net, batch: (net(batch[0]) - net(batch[0]), batch[1]),
            Noisy(4, 3).double(),
        )
        assert found["data_loss"] > 0.5

    def test_predict_gets_the_users_own_kind_of_module(self):
        def predict(net, batch):
            assert isinstance(net, nn.Sequential)
            return net[2](net[1](net[0](batch[0]))), batch[1]

        assert self.values(tw.classification().loss, predict)["first"] == pytest.approx(self.expected_first())


@pytest.mark.parametrize(("value", "name"), [(torch.nan, "NaN"), (torch.inf, "infinity")])
def test_scan_reports_data_that_are_not_finite(value, name):
    case = ZOO["mlp"]
    (x, y), *rest = case.batches()
    spoiled = x.clone()
    spoiled[0] = value
    data = {"good": [(x, y), *rest], "bad": [(spoiled, y), *rest]}
    ends = (tw.Weights.of(nn.Linear(4, 3).double()) for _ in range(2))
    with pytest.warns(
        UserWarning,
        match=f"NaN or infinite at 3 of 3 points, measured on 'bad': in those data, item 0 of batch 1 holds {name}",
    ):
        found = tw.scan(nn.Linear(4, 3).double(), tw.Segment(*ends), case.task, data, points=3)
    assert np.isfinite(found.values["good"]["loss"]).all()


def test_scan_reports_infinite_targets():
    a, b = (tw.Weights.of(nn.Linear(1, 1)) for _ in range(2))
    data = {"bad": [(torch.ones(3, 1), torch.full((3, 1), torch.inf))]}
    with pytest.warns(UserWarning, match="NaN or infinite at 2 of 2 points, .* item 1 of batch 1 holds infinity"):
        tw.scan(nn.Linear(1, 1), tw.Segment(a, b), tw.regression(), data, points=2)


def test_scan_does_not_blame_a_mask_of_infinity_for_some_points():
    """As data of transformers hold it; here for a network that overflows at one of two points."""
    weights = [tw.Weights.of(nn.Linear(1, 1)) for _ in range(2)]
    weights[1].vector.fill_(1e30)
    task = tw.Task(lambda outputs, targets: outputs.flatten() - outputs.flatten(), metrics={})
    data = {"x": [(torch.full((2, 1), 1e9), torch.tensor([-torch.inf, 0.0]))]}
    with pytest.warns(UserWarning, match="at 1 of 2 points, .*: the data are not the reason, so look at the weights"):
        tw.scan(nn.Linear(1, 1), weights, task, data)


@pytest.mark.parametrize("kind", [tw.Segment, tw.Bezier])
def test_scan_of_a_curve_from_a_network_to_itself_says_so(kind, tmp_path):
    case = ZOO["mlp"]
    a, _ = case.ends()
    curve = kind(a, a)
    with pytest.raises(tw.ThalwegError, match="a length ratio needs two different ends"):
        curve.length_ratio()
    scan = tw.scan(case.module(1), curve, case.task, {"train": case.batches()}, points=3)
    assert scan.length_ratio is None
    assert "length ratio undefined (both ends are the same network)" in scan.table()
    assert "same ends" in tables.curves({"loop": scan})
    assert "nan" not in scan.table() + tables.curves({"loop": scan}) + json.dumps(scan.to_dict()).lower()
    scan.save(tmp_path / "scan.json")
    assert tw.Scan.load(tmp_path / "scan.json").table() == scan.table()


class Odd(list):
    """Promises five batches."""

    def __len__(self):
        return 5


@pytest.mark.parametrize(("given", "said"), [(2, "2"), (6, "more")])
def test_every_call_refuses_batches_of_a_wrong_length(given, said):
    case = ZOO["conv_bn"]
    batches, (a, b), module = case.batches(), case.ends(), case.module(1)
    odd = Odd((batches * 2)[:given])
    line, data = tw.Segment(a, b), {"x": batches}
    calls = {
        "fit": lambda: tw.fit(module, case.task, odd, epochs=1, lr=0.1),
        "scan": lambda: tw.scan(module, line, case.task, {"x": odd}, bn_batches=batches, points=2),
        "scan refresh": lambda: tw.scan(module, line, case.task, data, bn_batches=odd, points=2),
        "ensemble": lambda: tw.Ensemble(module, [a, b]).score(case.task, odd),
        "curve ensemble": lambda: tw.curve_ensemble(module, line, case.task, odd, bn_batches=batches, points=2),
        "held out": lambda: tw.curve_ensemble(
            module, line, case.task, batches, bn_batches=batches, held_out=odd, points=2
        ),
        "bn_batches": lambda: tw.update_bn(module, line.point(0.5), odd),
        "watch": lambda: tw.walk(module, case.task, batches, tw.SWA(0.1), epochs=1, watch={"x": odd}),
    }
    for call in calls.values():
        with pytest.raises(tw.ThalwegError, match=f"of the batches is 5, but iterating gave {said}"):
            call()


def test_scan_of_a_custom_error_metric_has_its_units(tmp_path):
    case = ZOO["mlp"]
    metrics = {
        "error": lambda o, y: 300 + 0 * o[:, 0],
        "share": lambda o, y: 0.25 + 0 * o[:, 0],
        "force": lambda o, y: 2 + 0 * o[:, 0],
    }
    task = tw.Task(case.task.loss, case.task.predict, metrics=metrics, units={"share": "%", "force": "kN"})
    scan = tw.scan(case.module(1), tw.Segment(*case.ends()), task, {"x": case.batches()}, points=2)
    scan.save(tmp_path / "scan.json")
    for found in (scan, tw.Scan.load(tmp_path / "scan.json")):
        assert found.units == {"share": "%", "force": "kN"}
        cells = found.table()
        assert re.search(r"x error +300\.000 ", cells)
        assert re.search(r"x share \(%\) +25\.00 ", cells)
        assert re.search(r"x force \(kN\) +2\.000 ", cells)
    assert tw.classification().units == {"error": "%"}
    assert tw.regression().units == {}


def test_task_refuses_units_of_unknown_metrics():
    with pytest.raises(tw.ThalwegError, match="units maps metrics of the task"):
        tw.Task(tw.classification().loss, metrics={}, units={"error": "%"})


def vectors(*rows):
    """Weights of a network with four parameters, which are these."""
    found = []
    for row in rows:
        module = nn.Linear(4, 1, bias=False).double()
        with torch.no_grad():
            module.weight.copy_(torch.tensor([row]))
        found.append(tw.Weights.of(module))
    return found


def test_scan_warns_once_of_an_off_plane_overlay_and_keeps_its_distance(tmp_path):
    a, b, c, high, low = vectors([0, 0, 0, 0], [4, 0, 0, 0], [0, 2, 0, 0], [2, 1, 3, 4], [1, 1, 0, 0.01])
    chain, inside = tw.PolyChain(a, b), tw.PolyChain(a, b).with_bends([c.vector])
    chain = chain.with_bends([high.vector])
    x = torch.ones(2, 4).double()
    data, plane = {"x": [(x, x[:, :1])]}, tw.Plane(a, b, c)
    module = nn.Linear(4, 1, bias=False).double()
    drawn = {"chain": chain, "inside": inside, "members": [high, low], "near": [low, c]}
    with pytest.warns(UserWarning, match="not everything drawn lies in this plane") as heard:
        scan = tw.scan(module, plane, tw.regression(), data, grid=(2, 2), overlay=drawn)
    assert len(heard) == 1
    assert "'chain' leaves it by up to 5, 125%, 'members' leaves it by up to 5, 125% of the distance" in str(
        heard[0].message
    )
    t = np.linspace(0, 1, 121)
    assert np.allclose(scan.away["chain"], 5 * np.minimum(2 * t, 2 - 2 * t))
    assert np.allclose(scan.away["inside"], 0, atol=1e-6)
    assert np.allclose(scan.away["members"], [5, 0.01])
    scan.save(tmp_path / "scan.json")
    assert tw.Scan.load(tmp_path / "scan.json").off_plane() == {"chain": (5.0, 1.25), "members": (5.0, 1.25)}


def test_scan_of_a_curve_in_its_own_plane_does_not_warn():
    case = ZOO["mlp"]
    curve = tw.Bezier(*case.ends()).with_bends([tw.Weights.of(case.module(5)).vector])
    plane = tw.Plane(curve.start, curve.end, curve.bends[0])
    data = {"x": case.batches()}
    scan = tw.scan(
        case.module(1), plane, case.task, data, grid=(2, 2), overlay={"Bezier": curve, "ends": [curve.start]}
    )
    assert scan.off_plane() == {}
    assert max(scan.away["Bezier"]) < 1e-6 * scan.corners[1][0]


def quadratic(*rows, grid, **how):
    """Points of a network that answers with its four weights, and the squared distance of those from 0 as its loss."""
    points = vectors(*rows)
    data = {"x": [(2 * torch.eye(4).double(), torch.zeros(4, 1).double())]}
    return points, lambda target: tw.scan(points_module(), target, tw.regression(), data, grid=grid, **how)


def points_module():
    return nn.Linear(4, 1, bias=False).double()


def test_scan_of_a_fitted_plane_keeps_shares_and_the_distance_of_each_network(tmp_path):
    rows = [[3, 0, 0, 0], [-3, 0, 0, 0], [0, 2, 0.5, 0], [0, -2, 0.5, 0], [0, 0, -1, 0]]
    points, scanned = quadratic(*rows, grid=(3, 3))
    scan = scanned(tw.Plane.fit(points))
    spread = np.array([18, 8, 1.5])
    assert scan.shares == pytest.approx(spread[:2] / spread.sum())
    assert scan.away["networks"] == pytest.approx([0, 0, 0.5, 0.5, 1], abs=1e-6)
    assert np.abs(scan.marks["networks"]) == pytest.approx(np.abs(np.array(rows)[:, :2]), abs=1e-6)
    assert scan.x == pytest.approx([-4.2, 0, 4.2])
    expected = scan.x**2 + scan.y[:, None] ** 2  # the mean is 0, and the loss of (x, y) its squared length
    assert np.allclose(scan.values["x"]["loss"], expected)
    scan.save(tmp_path / "scan.json")
    table = tw.Scan.load(tmp_path / "scan.json").table()
    assert "the plane holds 94.5% of the variance of its 5 networks" in table
    assert re.search(r"^networks: \S+ to 1 off the plane$", table, re.MULTILINE)


def test_scan_of_a_fitted_plane_does_not_repeat_named_networks():
    points, scanned = quadratic([3, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1], grid=(2, 2), overlay=None)
    _, named = quadratic([0, 0, 0, 0], grid=(2, 2), overlay={"first": points[:2], "line": tw.Segment(*points[1:3])})
    assert list(scanned(tw.Plane.fit(points)).marks) == ["networks"]
    scan = named(tw.Plane.fit(points))
    assert (list(scan.marks), len(scan.marks["networks"]), list(scan.paths)) == (["first", "networks"], 1, ["line"])
    for damage, said in (
        ({"shares": [0.5]}, "its networks do not have a distance each"),
        ({"away": {}}, "its networks do not have a distance each"),
        ({"measured": [[1.0]]}, "it does not say of each point whether it was measured"),
    ):
        with pytest.raises(ValueError, match=said):
            tw.Scan.checked({**scan.to_dict(), **damage})
    _, alone = quadratic([0, 0, 0, 0], grid=(2, 2), overlay={"one": points[0]})
    assert len(alone(tw.Plane(*points[:3])).marks["one"]) == 1


def test_scan_around_a_network_has_it_in_the_middle():
    points, scanned = quadratic([1, 2, 3, 4], grid=(3, 3))
    scan = scanned(tw.Plane.around(points[0], radius=2))
    norm = 30**0.5
    assert scan.corners == [(0, 0)]
    assert scan.x == pytest.approx([-2 * norm, 0, 2 * norm])
    assert scan.values["x"]["loss"][1, 1] == pytest.approx(30)
    assert scan.off_plane() == {}


def test_resume_refuses_a_plane_around_a_network_of_another_seed(tmp_path):
    points, scanned = quadratic([1, 2, 3, 4], grid=(2, 2), run=tmp_path / "run")
    scanned(tw.Plane.around(points[0], seed=0))
    with pytest.raises(tw.ThalwegError, match="was made by a different call"):
        scanned(tw.Plane.around(points[0], seed=1))


def test_scan_to_frame_has_the_columns_of_the_csv(monkeypatch):
    points, scanned = quadratic([0, 0, 0, 0], [4, 0, 0, 0], [0, 2, 0, 0], grid=(3, 2))
    scan = scanned(tw.Plane(*points))
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    frame = scan.to_frame()
    header, *rows = scan.to_csv().splitlines()
    assert ",".join(frame) == header
    assert [",".join(map(str, row)) for row in zip(*frame.values(), strict=True)] == rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tw.ThalwegError, match=r"pip install pandas, or use to_csv\(\)"):
        scan.to_frame()
