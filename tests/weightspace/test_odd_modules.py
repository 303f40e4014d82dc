"""Modules that would go wrong without a word, if nobody had thought of them."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import ZOO, bits, same_bits

import thalweg as tw

BATCHES = ZOO["mlp"].batches()
TASK = tw.classification()


class Listed(nn.Module):
    """Refers to its weights in places where no parameter search looks."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.weights = [self.first.weight, self.last.weight]
        self.head = partial(F.linear, weight=self.last.weight)

    def forward(self, x):
        return self.head(torch.tanh(F.linear(x, self.weights[0])))


def test_references_to_parameters_follow_the_point():
    torch.manual_seed(0)
    one, two = Listed().double(), Listed().double()
    for module in (one, two):
        module.weights = [module.first.weight, module.last.weight]
        module.head = partial(F.linear, weight=module.last.weight)
    scan = tw.scan(one, tw.Segment(tw.Weights.of(one), tw.Weights.of(two)), TASK, {"x": BATCHES}, points=2)
    with torch.no_grad():
        expected = [
            torch.cat([TASK.loss(*TASK.predict(m, batch)) for batch in BATCHES]).mean().item() for m in (one, two)
        ]
    assert scan.values["x"]["data_loss"].tolist() == pytest.approx(expected, rel=1e-12)
    assert tw.fit(one, TASK, BATCHES, epochs=2, lr=0.1).distance(tw.Weights.of(one)) > 0.01


def test_attributes_and_hooks_of_parameters_come_along():
    module = nn.Linear(4, 3).double()
    module.weight.note = "mine"
    module.weight.register_hook(torch.zeros_like)
    trained = tw.fit(module, TASK, BATCHES, epochs=2, lr=0.1)
    assert torch.equal(trained.state_dict()["weight"], module.weight)
    assert not torch.equal(trained.state_dict()["bias"], module.bias)
    assert tw.weightspace.probe.Probe(module).module.weight.note == "mine"


def test_forward_bound_to_the_original_is_refused():
    module = nn.Linear(4, 3).double()
    original = module.forward
    module.forward = lambda x: 2 * original(x)
    with pytest.raises(tw.ThalwegError, match="'weight' of the network that was given takes part"):
        tw.fit(module, TASK, BATCHES, epochs=1, lr=0.1)


def test_parameters_that_share_memory_are_refused():
    encoder = nn.Linear(4, 4)
    decoder = nn.Linear(4, 4)
    decoder.weight = nn.Parameter(encoder.weight.t())
    with pytest.raises(tw.ThalwegError, match=r"'0\.weight' and the parameter '1\.weight' share memory"):
        tw.Weights.of(nn.Sequential(encoder, decoder))


def test_autocast_around_a_call_does_not_freeze_the_weights():
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    a, b = (tw.Weights.of(nn.Linear(4, 3)) for _ in range(2))
    batches = [(x.float(), y) for x, y in BATCHES]
    with torch.autocast("cpu", torch.bfloat16):
        inside = tw.scan(module, tw.Segment(a, b), TASK, {"x": batches}, points=3).values["x"]["loss"]
    outside = tw.scan(module, tw.Segment(a, b), TASK, {"x": batches}, points=3).values["x"]["loss"]
    assert np.allclose(inside, outside, rtol=0.02)
    assert np.ptp(outside) > 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_every_weight(dtype):
    torch.manual_seed(0)
    module = nn.Linear(1, 64).to(dtype)
    x = torch.linspace(-1, 1, 32, dtype=dtype).reshape(-1, 1)
    trained = tw.fit(module, tw.regression(), [(x, 2 * x.expand(-1, 64))], epochs=60, schedule=lambda i: 2.0)
    assert (trained.state_dict()["weight"] - 2).abs().max() < 0.2


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.branches[(self.calls - 1) // 3 % 2](x)


def test_weight_decay_of_a_branch_begins_when_it_is_reached():
    module = TwoBranches().double()
    trained = tw.fit(module, TASK, BATCHES, epochs=2, schedule=lambda i: 0.1, weight_decay=0.5)
    first = tw.fit(module, TASK, BATCHES, epochs=1, schedule=lambda i: 0.1, weight_decay=0.5)
    assert torch.equal(first.state_dict()["branches.1.weight"], module.branches[1].weight)
    assert not torch.equal(trained.state_dict()["branches.1.weight"], module.branches[1].weight)


class Counting(nn.Module):
    """Buffers that every forward pass writes: one that is kept, one that is not."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("state", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.state += 1
        return self.layer(self.norm(x)) * (1 + self.state)


def test_update_bn_changes_statistics_and_nothing_else():
    module = Counting().double()
    weights = tw.update_bn(module, tw.Weights.of(module), BATCHES)
    assert int(weights.buffers["calls"]) == 0
    tw.average([weights, tw.Weights.of(module)])


def test_scan_starts_each_point_with_fresh_state_outside_of_the_weights():
    module = Counting().double()
    members = [tw.Weights.of(module), tw.Weights.of(Counting().double())]
    forth, back = (
        tw.scan(module, order, TASK, {"x": BATCHES}).values["x"]["loss"] for order in (members, members[::-1])
    )
    assert np.array_equal(forth, back[::-1])


class Inline(nn.Module):
    """Uses a batch-norm layer's parts instead of calling it."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        n = self.norm
        x = F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, n.training, n.momentum)
        return self.layer(x)


def test_update_bn_refuses_batch_norm_that_is_not_called():
    module = Inline().double()
    with pytest.raises(tw.ThalwegError, match="the batch-norm layer 'norm' is not called but has its buffers used"):
        tw.update_bn(module, tw.Weights.of(module), BATCHES)


def test_update_bn_leaves_an_unused_layer():
    module = nn.ModuleDict({"used": nn.Linear(4, 3), "spare": nn.BatchNorm1d(3), "norm": nn.BatchNorm1d(4)}).double()
    module.forward = None
    module["spare"].running_mean.fill_(7)
    task = tw.Task(tw.regression().loss, lambda net, batch: (net["used"](net["norm"](input=batch[0])), batch[1]))
    weights = tw.update_bn(module, tw.Weights.of(module), BATCHES, task)
    assert weights.buffers["spare.running_mean"].eq(7).all()
    assert torch.allclose(weights.buffers["norm.running_mean"], torch.cat([x for x, _ in BATCHES]).mean(0))


def test_module_handed_over_in_evaluation_mode_is_trained_in_training_mode():
    case = ZOO["conv_bn"]
    runs = [
        tw.fit(module, case.task, case.batches(), epochs=2, lr=0.1)
        for module in (case.module(1).eval(), case.module(1))
    ]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert torch.equal(runs[0].buffers["1.running_mean"], runs[1].buffers["1.running_mean"])
    assert not torch.equal(runs[0].buffers["1.running_mean"], case.module(1)[1].running_mean)


def test_load_names_buffers_that_do_not_fit():
    module, other = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    module.register_buffer("scale", torch.ones(3))
    other.register_buffer("scale", torch.ones(1))
    with pytest.raises(tw.ThalwegError, match=r"'scale' is \(1,\) in the weights and \(3,\) in the network"):
        tw.scan(module, [tw.Weights.of(other)], TASK, {"x": BATCHES})
    with pytest.raises(tw.ThalwegError, match="'scale' is in the network but not in the weights"):
        tw.scan(module, [tw.Weights.of(nn.Linear(4, 3).double())], TASK, {"x": BATCHES})


def test_from_state_with_tied_names():
    module = ZOO["tied_lstm"].module(1)
    state = {**ZOO["tied_lstm"].module(2).state_dict()}
    del state["output.weight"]
    assert torch.equal(tw.Weights.from_state(state, module).state_dict()["output.weight"], state["embedding.weight"])
    state["output.weight"] = state["embedding.weight"] + 1
    with pytest.raises(
        tw.ThalwegError, match=r"'output\.weight' and 'embedding\.weight' are tied in the network, but differ"
    ):
        tw.Weights.from_state(state, module)


@pytest.mark.parametrize("extra", [{"scale": 1.0}, torch.ones(2)])
def test_from_state_leaves_out_extra_state(extra):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return extra

        def set_extra_state(self, state):
            pass

    modules = [nn.Sequential(Extra(4, 3)) for _ in range(2)]
    found = tw.Weights.from_state(modules[0].state_dict(), modules[1])
    assert torch.equal(found.vector, tw.Weights.of(modules[0]).vector)


def test_from_state_keeps_a_parameter_whose_name_ends_like_that_of_extra_state():
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].my_extra_state = nn.Parameter(torch.ones(2))
    assert tw.Weights.from_state(module.state_dict(), module).state_dict()["0.my_extra_state"].tolist() == [1, 1]


def test_diverged_fit_names_batch_norm_statistics_that_overflow():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    with pytest.raises(tw.Diverged, match="batch-norm statistics are no longer finite"):
        tw.fit(module, TASK, [(torch.tensor([[1e30, 0.0], [-1e30, 1.0]]), torch.tensor([0, 1]))], epochs=1, lr=1e-3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: tw.Bezier(m, m), "start must be Weights; got Linear"),
        (lambda m: tw.Plane(m, m, m), "the first point must be Weights; got Linear"),
        (lambda m: tw.average([m]), "point 1 must be Weights; got Linear"),
        (lambda m: tw.average(tw.Weights.of(m)), "an average needs at least 1 network, in a list of Weights"),
        (lambda m: tw.Weights.of(m).distance(m), "the other point must be Weights; got Linear"),
        (lambda m: tw.Weights.of(m.state_dict()), "Weights.of takes a module; got OrderedDict"),
        (
            lambda m: tw.connect(m, tw.Weights.of(m), TASK, BATCHES, epochs=1, lr=0.1),
            "connect trains a curve, such as Bezier(a, b); got Weights",
        ),
        (
            lambda m: tw.connect(m, tw.Bezier, TASK, BATCHES, epochs=1, lr=0.1),
            "connect trains a curve, such as Bezier(a, b); got ABCMeta",
        ),
        (
            lambda m: tw.fit(m, tw.classification, BATCHES, epochs=1, lr=0.1),
            "the task must be a Task, such as classification()",
        ),
        (lambda m: tw.fit("model", TASK, BATCHES, epochs=1, lr=0.1), "the network must be a torch.nn.Module; got str"),
        (lambda m: tw.fit(m, TASK, BATCHES, epochs=1, lr="0.1"), "lr must be a number; got '0.1'"),
        (
            lambda m: tw.fit(m, TASK, BATCHES, epochs=1, lr=0.1, optimizer="adam"),
            "optimizer must be a function that makes one",
        ),
        (
            lambda m: tw.fit(m, TASK, BATCHES, epochs=1, lr=0.1, momentum=1.5),
            "momentum must be at least 0 and below 1; got 1.5",
        ),
        (lambda m: tw.fit(m, TASK, BATCHES, epochs=1, lr=0.1, seed=None), "seed must be a whole number; got None"),
        (
            lambda m: tw.fit(
                m, TASK, BATCHES, epochs=1, lr=0.1, optimizer=lambda v: torch.optim.SGD(m.parameters(), lr=0.1)
            ),
            "the optimizer must update the parameters that its function is given",
        ),
        (
            lambda m: tw.fit(m, TASK, torch.utils.data.TensorDataset(torch.ones(3, 4)), epochs=1, lr=0.1),
            "the batches must come in batches; got the data set TensorDataset",
        ),
        (lambda m: tw.figures.profile("scan.json"), "a figure needs a Scan, or several by name; got str"),
        (
            lambda m: tw.scan(m, tw.Plane, TASK, {"x": BATCHES}),
            "a scan needs a curve, a plane, or a list of Weights, such as walk(...).members; got type",
        ),
        (lambda m: tw.Ensemble("model", [tw.Weights.of(m)]), "the network must be a torch.nn.Module; got str"),
    ],
)
def test_wrong_types_are_refused(call, said):
    module = nn.Linear(4, 3).double()
    before = bits(module)
    with pytest.raises(tw.ThalwegError, match=re.escape(said)):
        call(module)
    assert same_bits(before, bits(module))


PLACES = {  # every public call that takes Weights
    "align, a": lambda m, x, w: tw.align(m, x, w, TASK, BATCHES),
    "align, b": lambda m, x, w: tw.align(m, w, x, TASK, BATCHES),
    "align, list": lambda m, x, w: tw.align(m, w, [w, x], TASK, BATCHES),
    "average": lambda m, x, w: tw.average(x),
    "average, list": lambda m, x, w: tw.average([x]),
    "barriers": lambda m, x, w: tw.barriers(m, x, TASK, BATCHES),
    "barriers, dict": lambda m, x, w: tw.barriers(m, {"mine": x, "yours": w}, TASK, BATCHES),
    "soup": lambda m, x, w: tw.soup(m, x, TASK, BATCHES),
    "Ensemble": lambda m, x, w: tw.Ensemble(m, x),
    "Ensemble, list": lambda m, x, w: tw.Ensemble(m, [x]),
    "update_bn": lambda m, x, w: tw.update_bn(m, x, BATCHES),
    "scan": lambda m, x, w: tw.scan(m, x, TASK, BATCHES),
    "scan, list": lambda m, x, w: tw.scan(m, [w, x], TASK, BATCHES),
    "walk": lambda m, x, w: tw.walk(m, TASK, BATCHES, tw.FGE(2, 0.1, 0.01), start=x, epochs=2),
    "walk, list": lambda m, x, w: tw.walk(m, TASK, BATCHES, tw.FGE(2, 0.1, 0.01), start=[x], epochs=2),
    "Bezier": lambda m, x, w: tw.Bezier(w, x),
    "Curve.through": lambda m, x, w: tw.PolyChain.through(x),
    "Plane": lambda m, x, w: tw.Plane(w, w, x),
    "Plane.fit": lambda m, x, w: tw.Plane.fit(x),
    "Plane.around": lambda m, x, w: tw.Plane.around(x),
    "SWAG": lambda m, x, w: tw.SWAG(x),
    "Weights.distance": lambda m, x, w: w.distance(x),
}
GIVEN = {
    "module": (lambda m, path: m, "Sequential: use Weights.of(module)"),
    "path": (lambda m, path: path, "PosixPath: use Weights.load('{}', module)"),
    "string": (lambda m, path: str(path), "str: use Weights.load('{}', module)"),
    "state": (lambda m, path: m.state_dict(), "OrderedDict: use Weights.from_state(state, module)"),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("place", PLACES)
def test_what_holds_weights_is_refused_with_the_call_that_reads_them(place, given, tmp_path):
    module = nn.Sequential(nn.Linear(4, 3)).double()
    make, said = GIVEN[given]
    with pytest.raises(tw.ThalwegError, match=re.escape(f"; got {said.format(tmp_path / 'net.pt')}")):
        PLACES[place](module, make(module, tmp_path / "net.pt"), tw.Weights.of(module))


@pytest.mark.parametrize("place", sorted({*PLACES} - {"barriers", "soup"}))  # which take networks by name
def test_networks_by_name_are_refused_where_a_list_is_taken(place):
    module = nn.Sequential(nn.Linear(4, 3)).double()
    weights = tw.Weights.of(module)
    with pytest.raises(tw.ThalwegError, match="got dict: use a list of its values, or one of them"):
        PLACES[place](module, {"b": weights}, weights)


def test_align_takes_a_generator_of_networks():
    module = nn.Sequential(nn.Linear(4, 3)).double()
    weights = tw.Weights.of(module)
    assert [each.after for each in tw.align(module, weights, iter([weights]), TASK, BATCHES)] == [0.0]
