"""Barriers against closed forms and a plain loop, and what is measured how often."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.tasks import predict_targets

X = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(-1, 1)


def line(slope):
    """A network of one weight."""
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, slope)
    return tw.Weights.of(module)


def concave():
    """Minus the square of the outputs: on a line between slopes a and b, the barrier is (a - b)^2 / 4 of the mean of
    x^2, in the middle.
    """
    return tw.Task(lambda outputs, targets: -outputs.square().flatten(), metrics={})


def networks(count=3):
    return [tw.Weights.of(ZOO["mlp"].module(seed)) for seed in range(count)]


def plain_barriers(points, places):
    """What anybody would write: losses and errors on every line, their excess over the line between its ends."""
    case, net = ZOO["mlp"], ZOO["mlp"].module(9)
    batches = case.batches()
    found = np.zeros((2, len(points), len(points)))
    for i, a in enumerate(points):
        for j, b in enumerate(points):
            values = []
            for t in np.linspace(0, 1, places):
                mixed = {k: (1 - t) * v + t * b.state_dict()[k] for k, v in a.state_dict().items()}
                net.load_state_dict(mixed)
                with torch.no_grad():
                    pairs = [(net(x), y) for x, y in batches]
                losses = torch.cat([cross_entropy(out, y, reduction="none") for out, y in pairs])
                errors = torch.cat([(out.argmax(1) != y).double() for out, y in pairs])
                values.append([losses.mean(), errors.mean()])
            values, t = np.array(values, dtype=float), np.linspace(0, 1, places)[:, None]
            found[:, i, j] = (values - (1 - t) * values[0] - t * values[-1]).max(0)
    return found


def test_barriers_of_a_concave_loss_are_its_closed_form():
    slopes = [0.0, 1.0, 3.0]
    found = tw.barriers(nn.Linear(1, 1, bias=False).double(), [line(a) for a in slopes], concave(), [(X, X)], points=5)
    expected = [[(a - b) ** 2 / 4 * float(X.square().mean()) for b in slopes] for a in slopes]
    assert np.allclose(found.matrix, expected, rtol=1e-12, atol=1e-15)
    assert np.allclose(found.own(), [-(a**2) * float(X.square().mean()) for a in slopes])


def test_barriers_are_the_plain_loop():
    case, points = ZOO["mlp"], networks()
    found = tw.barriers(case.module(9), points, case.task, {"train": case.batches()}, points=7)
    losses, errors = plain_barriers(points, 7)
    assert losses.max() > 1e-3
    assert np.allclose(found.matrix, losses, atol=1e-12)
    assert np.allclose(found.between("train", "error"), errors, atol=1e-12)
    assert np.array_equal(found.matrix, found.matrix.T)


def test_barriers_agree_with_a_scan_of_each_segment():
    case = ZOO["conv_bn"]
    points = [tw.Weights.of(case.module(seed)) for seed in range(3)]
    settings = {"weight_decay": 0.01, "bn_batches": case.batches(), "points": 5}
    data = {"train": case.batches(), "test": case.batches()[:1]}
    found = tw.barriers(case.module(9), points, case.task, data, **settings)
    for i, j in ((0, 1), (0, 2), (2, 1)):
        scan = tw.scan(case.module(9), tw.Segment(points[i], points[j]), case.task, data, **settings)
        for name, entry in scan.summary().items():
            for quantity, numbers in entry.items():
                rounding = 0 if i < j else 1e-12  # from the other end, t is 1 - t
                values, barrier = found.values[name][quantity][i, j], found.between(name, quantity)[i, j]
                assert np.allclose(values, scan.values[name][quantity], rtol=0, atol=rounding)
                assert np.isclose(barrier, numbers["barrier"], rtol=0, atol=rounding)


class Counted:
    """Predictions, and how often each network was asked for them."""

    def __init__(self, stop=None):
        self.calls, self.stop = [], stop

    def __call__(self, net, batch):
        self.calls.append(float(sum(p.detach().sum() for p in net.parameters())))
        if len(self.calls) == self.stop:
            raise InterruptedError
        return predict_targets(net, batch)


def test_barriers_measure_each_network_once():
    points, counted = networks(4), Counted()
    task = tw.Task(lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"), counted)
    tw.barriers(ZOO["mlp"].module(9), points, task, ZOO["mlp"].batches()[:1], points=4)
    own = [sum(abs(call - float(w.vector.sum())) < 1e-9 for call in counted.calls) for w in points]
    assert own == [1, 1, 1, 2]  # and the first batches of the last point again, as every scan does


def shuffled(weights):
    """The same function with hidden units in another order."""
    module = ZOO["mlp"].module(9)
    weights.load_into(module)
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    with torch.no_grad():
        for tensor in (module[0].weight, module[0].bias):
            tensor.copy_(tensor[order].clone())
        module[2].weight.copy_(module[2].weight[:, order].clone())
    return tw.Weights.of(module)


def test_barriers_with_align_vanish_for_a_renumbered_network():
    module = ZOO["mlp"].module(0)
    with torch.no_grad():
        module[2].weight.mul_(9)  # sure of its answers, which are the labels
        data = {"train": [(x, module(x).argmax(1)) for x, _ in ZOO["mlp"].batches()]}
    a = tw.Weights.of(module)
    found = tw.barriers(ZOO["mlp"].module(9), {"a": a, "b": shuffled(a)}, ZOO["mlp"].task, data, align=True, points=5)
    assert found.matrix[0, 1] > 1e-3
    assert np.abs(found.between(aligned=True)).max() < 1e-12
    assert np.isclose(*found.own(), atol=1e-12)
    assert found.alignment == "95.5 % of the parameters lie in tensors whose units can be renumbered"
    assert list(found.panels()) == ["as they are", "aligned"]
    assert "train loss, aligned" in found.table()


@pytest.mark.parametrize("by", ["weights", "activations"])
def test_barriers_with_align_are_those_to_a_network_aligned_in_that_way(by):
    case, (a, b) = ZOO["mlp"], networks(2)
    aligned = tw.align(case.module(9), a, b, case.task, case.batches(), by=by)
    other = tw.align(case.module(9), a, b, case.task, case.batches(), by={"weights": "activations"}.get(by, "weights"))
    assert aligned.distance(other) > 0
    found = tw.barriers(case.module(9), [a, b], case.task, case.batches(), align=by, points=5)
    expected = tw.barriers(case.module(9), [a, aligned], case.task, case.batches(), points=5)
    assert np.array_equal(found.between(aligned=True), expected.matrix)
    assert found.alignment.endswith("matched by activations") == (by == "activations")


def test_resume_barriers_compares_what_is_matched(tmp_path):
    case, points = ZOO["mlp"], networks(2)

    def measure(align):
        run = tmp_path / "run"
        return tw.barriers(case.module(9), points, case.task, case.batches(), align=align, points=3, run=run)

    found = measure(True)
    assert measure("weights").to_dict() == found.to_dict()
    with pytest.raises(tw.ThalwegError, match="align was True and is 'activations'"):
        measure("activations")


def test_barriers_with_align_say_where_no_unit_can_be_renumbered():
    module = nn.Linear(1, 1, bias=False).double()
    found = tw.barriers(module, [line(0.0), line(1.0)], concave(), [(X, X)], align=True, points=3)
    assert found.alignment == "no units of this network can be renumbered, so nothing has changed"
    assert np.array_equal(found.matrix, found.between(aligned=True))


class Branching(nn.Module):
    """Its path depends on its data, so that it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden.relu() if bool(x.sum() > 0) else hidden.tanh())


def test_barriers_refuse_a_network_that_cannot_be_aligned_before_measuring():
    module, counted = Branching().double(), Counted()
    task = tw.Task(lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"), counted)
    points = [tw.Weights.of(Branching().double()) for _ in range(2)]
    with pytest.raises(
        tw.ThalwegError,
        match=r"cannot be traced .* give groups= by hand, .*; or leave out align=$",
    ):
        tw.barriers(module, points, task, ZOO["mlp"].batches(), align=True)
    asked = len(counted.calls)
    tw.barriers(module, points, task, ZOO["mlp"].batches(), points=3)
    assert asked <= 10 < len(counted.calls) - asked  # those of tracing alone
    groups = {"hidden": {"first.weight": 0, "first.bias": 0, "second.weight": 1}}
    found = tw.barriers(module, points, task, ZOO["mlp"].batches(), align=True, groups=groups, points=3)
    assert found.alignment == "95.5 % of the parameters lie in tensors whose units can be renumbered"


def test_resume_barriers_measures_only_what_is_left(tmp_path):
    case, points = ZOO["mlp"], networks()

    def measure(counted, run):
        task = tw.Task(lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"), counted)
        return tw.barriers(case.module(9), points, task, case.batches(), points=5, run=run)

    whole = Counted()
    expected = measure(whole, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        measure(Counted(stop=30), tmp_path / "run")
    rest = Counted()
    found = measure(rest, tmp_path / "run")
    assert len(rest.calls) < len(whole.calls)
    assert found.to_dict() == expected.to_dict()
    again = Counted()
    assert measure(again, tmp_path / "run").to_dict() == expected.to_dict()
    assert len(again.calls) < 10  # only what the folder is compared by
    with pytest.raises(tw.ThalwegError, match="points was 5 and is 4"):
        tw.barriers(case.module(9), points, case.task, case.batches(), points=4, run=tmp_path / "run")


def test_barriers_leave_the_callers_module_alone():
    module = ZOO["conv_bn"].module(9)
    before, batches = bits(module), ZOO["conv_bn"].batches()
    points = [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in range(2)]
    tw.barriers(module, points, ZOO["conv_bn"].task, batches, bn_batches=batches, points=3, align=True)
    assert same_bits(before, bits(module))


def test_barriers_of_an_infinite_loss_are_nan_without_a_warning():
    task = tw.Task(lambda outputs, targets: torch.where(outputs > 1, torch.inf, outputs).flatten(), metrics={})
    module = nn.Linear(1, 1, bias=False).double()
    found = tw.barriers(module, [line(0.0), line(0.5), line(3.0)], task, [(X, X)], points=3)
    assert np.isfinite(found.matrix[0, 1])
    assert not np.isfinite(found.matrix[0, 2])


def nan(weights):
    weights.vector[0] = torch.nan
    return weights


BAD = {
    "one network": (
        {"weights": networks(1)},
        "needs at least 2 networks, in a list of Weights such as walk",
    ),
    "bare weights": ({"weights": networks(1)[0]}, "got Weights"),
    "modules": ({"weights": [ZOO["mlp"].module(0)] * 2}, "'1' must be Weights; got Sequential"),
    "another network": ({"weights": {"a": networks(1)[0], "b": line(0.0)}}, "'a' and 'b' do not describe the same"),
    "NaN": ({"weights": {"a": networks(1)[0], "b": nan(networks(1)[0])}}, "some of 'b' are NaN or infinite: leave it"),
    "one name twice": (
        {"weights": dict(zip((1, "1"), networks(2), strict=True))},
        "a different name for each network",
    ),
    "too few points": ({"points": 2}, "points must be a whole number, at least 3; got 2"),
    "no labels": (
        {"data": [(torch.zeros(3, 4).double(), None)]},
        "those of this batch are None: give data with labels",
    ),
    "no data": ({"data": {}}, "got an empty dict"),
    **{
        f"align {align}": ({"align": align}, f"align must be True, False, 'weights' or 'activations'; got {align!r}")
        for align in ("activation", "no", None, 2)
    },
    "groups by hand and activations": (
        {"align": "activations", "groups": {"hidden": {"0.weight": 0, "0.bias": 0, "2.weight": 1}}},
        "leave groups= out, or use align='weights'; or leave out align=",
    ),
    "not a task": ({"task": cross_entropy}, "the task must be a Task"),
}


@pytest.mark.parametrize("case", BAD)
def test_barriers_refuse_bad_input(case):
    change, message = BAD[case]
    given = {"weights": networks(2), "task": ZOO["mlp"].task, "data": ZOO["mlp"].batches(), **change}
    with pytest.raises(tw.ThalwegError) as error:
        tw.barriers(ZOO["mlp"].module(9), **given)
    assert message in str(error.value)
