"""How a task calls its network: the same units in every mode and batch, and nothing left behind."""

import random
from collections import deque
from functools import lru_cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
from align_cases import vectors
from align_zoo import ALIGNABLE, Of
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.alignment import further_calls, network_copy
from thalweg.alignment.further_calls import FurtherCalls
from thalweg.alignment.modes import training
from thalweg.alignment.network_copy import NetworkCopy

pytestmark = pytest.mark.filterwarnings("ignore:renumbering .* of groups= changes")

TASK = tw.classification()
BATCH = torch.randn(32, 6), torch.zeros(32).long()


def linear(**shapes):
    return {name: nn.Linear(*shape) for name, shape in shapes.items()}


@lru_cache
def cached(size):
    return torch.arange(size).float().sin()


class Caching(nn.Module):
    """With a cache on its class, filled for each number of examples."""

    positions: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        if len(x) not in self.positions:
            self.positions[len(x)] = torch.arange(8).float().sin()
        return self.two((self.one(x) + self.positions[len(x)]).relu())


@pytest.mark.parametrize(
    "net",
    [Of(lambda net, x: net.two((net.one(x) + cached(8)).relu()), **linear(one=(6, 8), two=(8, 4))), Caching()],
)
def test_symmetries_leave_no_cache_in_float64(net):
    tw.symmetries(net, TASK, BATCH)
    assert net(BATCH[0]).dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in Caching.positions.values())


def test_symmetries_of_a_task_that_takes_its_batch_apart():
    task = tw.Task(TASK.loss, lambda net, batch: (net(batch["x"]), batch.pop("labels")))
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    assert len(tw.symmetries(net, task, {"x": BATCH[0], "labels": BATCH[1]}).groups) == 1


def test_symmetries_of_a_network_that_writes_into_its_input():
    net = Of(lambda net, x: net.two(net.one(x.div_(2)).relu()), **linear(one=(6, 8), two=(8, 4)))
    before = BATCH[0].clone()
    assert len(tw.symmetries(net, TASK, BATCH).groups) == 1
    assert torch.equal(BATCH[0], before)


@pytest.mark.parametrize(
    "form",
    [
        lambda out: torch.distributions.Normal(out, 1.0),
        lambda out: SimpleNamespace(logits=out),
        lambda out: deque([out]),
        lambda out: MappingProxyType({"logits": out}),
    ],
)
def test_symmetries_find_the_tensors_of_any_output(form):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    task = tw.Task(lambda out, y: y, lambda net, batch: (form(net(batch[0])), batch[1]))
    symmetries = tw.symmetries(net, task, BATCH)
    assert [group.size for group in symmetries.groups.values()] == [8]
    assert symmetries.pinned["2.bias[0]"] == "it is an output"


def penalty(net):
    return net[0].weight[0].square().sum()


@pytest.mark.parametrize(
    "form",
    [
        lambda net, out: (out, net[0].weight),
        lambda net, out: SimpleNamespace(logits=out, weight=net[0].weight),
        lambda net, out: SimpleNamespace(logits=out, net=net),
        lambda net, out: (out, lambda: penalty(net)),
        lambda net, out: (out, partial(penalty, net)),
        lambda net, out: (out, net[0].forward),
    ],
)
def test_symmetries_keep_the_order_of_parameters_that_a_loss_is_given(form):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    task = tw.Task(lambda out, y: y, lambda net, batch: (form(net, net(batch[0])), batch[1]), probabilities=str)
    aligned = tw.align(net, tw.Weights.of(net), tw.Weights.of(net), task, [BATCH])
    assert not aligned.symmetries.groups
    assert aligned.symmetries.pinned["0.weight[0]"] == "it is an output"


def test_symmetries_refuse_outputs_without_a_tensor():
    task = tw.Task(lambda out, y: y, lambda net, batch: (net(batch[0]).sum().item(), batch[1]))
    with pytest.raises(tw.ThalwegError, match=r"its predict returned .* no tensor was found: return tensors"):
        tw.symmetries(nn.Linear(6, 4), task, BATCH)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_symmetries_of_nested_batches_are_refused_or_proven_by_hand(layout):
    net = Of(lambda net, x: torch.stack([net.two(net.one(t).relu()).mean(0) for t in x.unbind()]),
             **linear(one=(6, 8), two=(8, 4)))  # fmt: skip
    batch = torch.nested.nested_tensor([BATCH[0][:5], BATCH[0][5:8]], layout=layout), torch.zeros(2).long()
    with pytest.raises(tw.ThalwegError, match="cannot be traced"):
        tw.symmetries(net, TASK, batch)
    hand = {"hidden": {"one.weight": 0, "one.bias": 0, "two.weight": 1}}
    assert tw.symmetries(net, TASK, batch, groups=hand).groups


@pytest.mark.parametrize(
    "use",
    [lambda g: g.argmax(1, keepdim=True), lambda g: (g[:, :1] > 0.5) * 1.0, lambda g: g.detach().mean(1, keepdim=True)],
)
def test_symmetries_follow_outputs_that_no_gradient_reaches(use):
    def predict(net, batch):
        out, gate, _ = net(batch[0])
        return out * (1 + use(gate)), batch[1]

    def forward(net, x):
        hidden = net.one(x).relu()
        return net.out(hidden), net.gate(hidden), hidden

    net = Of(forward, **linear(one=(6, 8), out=(8, 4), gate=(8, 2)))
    net.gate.bias.data[0] += 1.5
    (group,) = tw.symmetries(net, tw.Task(TASK.loss, predict), BATCH).groups.values()
    assert {name for name, _ in group.axes} == {"one.weight", "one.bias", "out.weight", "gate.weight"}


class Keeping(nn.Module):
    """Keeps what a task uses next to the output."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.more = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x):
        self.kept = self.one(x).relu()
        self.second = self.more(self.kept)
        return self.two(self.kept)


@pytest.mark.parametrize(
    ("used", "axes"),
    [
        (lambda net: net.second, [4]),
        (lambda net: net.second.mean(), [4, 2]),
        (lambda net: (net.kept * RAMP.to(net.kept)).sum(1) > 1e3, []),  # never here
    ],
)
def test_symmetries_follow_what_a_network_keeps_beside_its_output(used, axes):
    task = tw.Task(TASK.loss, lambda net, batch: ((net(batch[0]), used(net)), batch[1]), probabilities=str)
    symmetries = tw.symmetries(Keeping(), task, BATCH)
    assert [len(group.axes) for group in symmetries.groups.values()] == axes
    assert not symmetries.dropped


def test_symmetries_do_not_trace_what_a_task_only_reads():
    """As for a log, of numbers that no graph can have."""

    def predict(net, batch):
        out = net(batch[0])
        net.log = net.kept.mean().item(), net.one.weight.norm().item()
        return out, batch[1]

    assert len(tw.symmetries(Keeping(), tw.Task(TASK.loss, predict), BATCH).groups) == 1


def force(net, x):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        energy = net(x)
        return energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def potential(last=1):
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 9), nn.Softplus(), nn.Linear(9, last)
    )


@pytest.mark.parametrize(
    ("net", "predict"),
    [
        (potential(), lambda net, batch: (force(net, batch[0]), batch[1])),
        (Of(lambda net, x: force(net.body, x), body=potential()), TASK.predict),
        (potential(), lambda net, batch: (torch.func.vmap(torch.func.grad(lambda x: net(x)[0]))(batch[0]), batch[1])),
        (Of(lambda net, x: torch.func.vmap(torch.func.jacrev(net.body))(x), body=potential(6)), TASK.predict),
    ],
)
def test_symmetries_follow_gradients_by_the_inputs(net, predict):
    """As of forces, gradient penalties and equations."""
    symmetries = tw.symmetries(net, tw.Task(TASK.loss, predict, probabilities=str), BATCH)
    assert {group.size for group in symmetries.groups.values()} == {8, 9}, str(symmetries)
    assert not symmetries.dropped


@pytest.mark.parametrize(
    "join",
    [lambda g, h, training: g + h if training else g, lambda g, h, training: (h if training else g) * 1.0],
)
def test_symmetries_follow_training_where_it_differs(join):
    """Although every parameter is used in eval mode as well."""

    def forward(net, x):
        g, h = net.g(x).relu(), net.h(x).relu()
        return net.out(join(g, h, net.training)) + net.other(h)

    net = Of(forward, **linear(g=(6, 8), h=(6, 8), out=(8, 4), other=(8, 4)))
    (group,) = tw.symmetries(net, TASK, BATCH).groups.values()
    assert len(group.axes) == 6


def test_symmetries_follow_parts_without_children_in_training():
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, self.h = (nn.Parameter(torch.randn(8, 6)) for _ in range(2))

        def forward(self, x):
            g, h = x @ self.g.T, x @ self.h.T
            return torch.cat([g + h if self.training else g, h], 1).relu()

    symmetries = tw.symmetries(nn.Sequential(Joined(), nn.Linear(16, 4)), TASK, BATCH)
    assert [group.size for group in symmetries.groups.values()] == [8]


RAMP = torch.linspace(0.1, 2, 8)


def in_training(h, part):
    return h * RAMP.to(h) if part.training else h


def with_hook(between):
    net = nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 4))
    net[1].register_forward_hook(lambda part, _, h: in_training(h, part))
    return net


def by_task(net, batch):
    return net[2](in_training(net[1](net[0](batch[0])), net)), batch[1]


@pytest.mark.parametrize(
    ("net", "predict"),
    [
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), by_task),
        (Of(lambda net, x: net.two(in_training(net.one(x), net.one)), **linear(one=(6, 8), two=(8, 4))), TASK.predict),
        (with_hook(nn.ReLU()), TASK.predict),
        (with_hook(nn.BatchNorm1d(8)), TASK.predict),
        (with_hook(nn.Dropout(0.5)), TASK.predict),
    ],
)
def test_symmetries_follow_the_mode_of_torchs_own_layers(net, predict):
    """Which a task, a network or a hook may look at."""
    symmetries = tw.symmetries(net, tw.Task(TASK.loss, predict), BATCH)
    assert not symmetries.groups
    assert not symmetries.dropped


class Switched(nn.Module):
    """With a flag of its own that `train` sets, next to a part that always predicts."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        self.scaled = mode
        return self

    def forward(self, x):
        assert not self.norm.training
        hidden = self.norm(self.one(x))
        return self.two(hidden * RAMP.to(hidden) if self.scaled else hidden)


def test_symmetries_follow_what_a_network_does_in_train():
    symmetries = tw.symmetries(Switched(), TASK, BATCH)
    assert not symmetries.groups
    assert not symmetries.dropped


@pytest.mark.parametrize(
    "noise",
    [
        lambda h: torch.randn(h.shape),
        lambda h: torch.randint(2, h.shape),
        lambda h: torch.normal(1.0, 0.1, h.shape),
        lambda h: torch.rand(1, h.shape[1]) < 0.5,
        lambda h: torch.distributions.Normal(h, torch.ones(8)).rsample(),
    ],
)
def test_symmetries_keep_units_apart_under_random_numbers_of_any_origin(noise):
    def forward(net, x):
        hidden = net.one(x).relu()
        return net.two(hidden * noise(hidden) if net.training else hidden)

    assert len(tw.symmetries(Of(forward, **linear(one=(6, 8), two=(8, 4))), TASK, BATCH).groups) == 1


def test_symmetries_pin_units_that_meet_numbers_of_a_generator_in_training():
    """Which may be the same in every call, next to others that cannot be compared."""

    def forward(net, x):
        hidden = net.one(x).relu()
        fixed = torch.randn(8, generator=torch.Generator().manual_seed(0))
        return net.two(hidden * fixed + torch.randn_like(hidden) if net.training else hidden)

    symmetries = tw.symmetries(Of(forward, **linear(one=(6, 8), two=(8, 4))), TASK, BATCH)
    assert not symmetries.groups
    assert not symmetries.dropped


def test_symmetries_follow_distributions(monkeypatch):
    """Which look whether their arguments are allowed; torch turns that off for good once anything is compiled."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def forward(net, x):
        chosen = torch.distributions.Normal(net.one(x), net.two(x).exp())
        usual = torch.distributions.Normal(torch.zeros(8), torch.ones(8))
        return net.three(chosen.mean), torch.distributions.kl_divergence(chosen, usual).sum(1)

    net = Of(forward, **linear(one=(6, 8), two=(6, 8), three=(8, 4)))
    task = tw.Task(TASK.loss, lambda net, batch: (net(batch[0]), batch[1]), probabilities=str)
    assert [len(group.axes) for group in tw.symmetries(net, task, BATCH).groups.values()] == [5]
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))


def in_place(net):
    with torch.no_grad():
        net.average.lerp_(net.one.weight, 0.1)


def replaced(net):
    net.average = torch.lerp(net.average, net.one.weight.detach(), 0.1)


class Averaging(nn.Module):
    def __init__(self, update):
        super().__init__()
        self.one, self.two, self.update = nn.Linear(6, 8), nn.Linear(8, 4), update
        self.register_buffer("average", torch.zeros(8, 6))

    def forward(self, x):
        if self.training:
            self.update(self)
        return self.two(self.one(x).relu())


@pytest.mark.parametrize("update", [in_place, replaced])
def test_symmetries_pin_units_of_an_average_that_training_keeps(update):
    symmetries = tw.symmetries(nn.Sequential(Averaging(update), nn.Linear(4, 3)), TASK, BATCH)
    assert symmetries.pinned["0.one.bias[0]"] == "'0.average' is not trained and keeps its order"
    assert not symmetries.dropped


def test_symmetries_compare_what_training_writes_to_buffers():
    """Also unseen by a graph."""

    def unseen(net):
        net.average.data = torch.lerp(net.average.data, net.one.weight.data, 0.1)

    assert not tw.symmetries(Averaging(unseen), TASK, BATCH).groups


class OwnNorm(nn.Module):
    """Replaces its statistics in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if not self.training:
            return x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - x.mean(0)


def test_training_mode_leaves_no_buffer_replaced():
    net = nn.Sequential(OwnNorm()).eval()
    before = net[0].mean
    with training(net):
        net(torch.ones(4, 8))
        assert net[0].mean is not before
    assert net[0].mean is before
    assert not before.any()


def joined_in_training(noise):
    """A network that adds two layers in training alone, with something in between that may draw random numbers."""

    def forward(net, x):
        g, h = net.g(x).relu(), net.h(x).relu()
        return net.out(g + noise(h, net.training) if net.training else g) + net.other(h)

    return Of(forward, **linear(g=(6, 8), h=(6, 8), out=(8, 4), other=(8, 4)))


def branching(h, training):
    return h * (1.0 + (h.sum().item() > 1e9))  # which cannot be traced


def drawing(h, training):
    return branching(h, training) + torch.rand_like(h)


@pytest.mark.parametrize("dropout", [F.dropout, F.alpha_dropout, lambda h, p, training: torch.dropout(h, p, training)])
def test_symmetries_follow_training_without_dropout_that_is_called_as_a_function(dropout):
    net = joined_in_training(lambda h, training: branching(dropout(h, 0.5, training), training))
    symmetries = tw.symmetries(net, TASK, BATCH)
    assert len(symmetries.dropped) == 2  # in training, whether it can be traced or not


def test_symmetries_prove_training_that_cannot_be_traced():
    symmetries = tw.symmetries(joined_in_training(branching), TASK, BATCH)
    assert not symmetries.groups
    assert set(symmetries.dropped) == {"g.weight[0]", "h.weight[0]"}


def test_symmetries_warn_of_training_that_can_be_neither_traced_nor_compared():
    with pytest.warns(UserWarning, match=r"something else in training mode, .* random numbers there and cannot be tra"):
        tw.symmetries(joined_in_training(drawing), TASK, BATCH)


@pytest.mark.parametrize("groups", [None, {"g": {"g.weight": 0, "g.bias": 0, "out.weight": 1}}])
def test_symmetries_warn_of_training_that_fails(groups):
    def failing(h, training):
        raise ValueError("targets are needed in training")

    net = joined_in_training(failing)
    tw.symmetries(net, TASK, BATCH, groups=groups)  # every parameter takes part in eval mode
    net.extra = nn.Linear(8, 2)
    with pytest.warns(UserWarning, match="it fails there with ValueError: targets are needed in training"):
        tw.symmetries(net, TASK, BATCH, groups=groups)


HAND = {
    "g": {"g.weight": 0, "g.bias": 0, "out.weight": 1},
    "h": {"h.weight": 0, "h.bias": 0, "other.weight": 1},
    "both": {"g.weight": 0, "g.bias": 0, "out.weight": 1, "h.weight": 0, "h.bias": 0, "other.weight": 1},
}


@pytest.mark.parametrize(("name", "right"), [("g", False), ("h", False), ("both", True)])
def test_groups_by_hand_are_proven_in_training(name, right):
    symmetries = tw.symmetries(joined_in_training(branching), TASK, BATCH, groups={name: HAND[name]})
    assert (name in symmetries.groups, name in symmetries.dropped) == (right, not right)


def test_groups_by_hand_warn_of_training_that_cannot_be_compared():
    with pytest.warns(UserWarning, match="it draws random numbers there, so that nothing can be compared"):
        tw.symmetries(joined_in_training(drawing), TASK, BATCH, groups={"both": HAND["both"]})


@pytest.mark.parametrize("groups", [None, {"hidden": {"one.weight": 0, "one.bias": 0, "two.weight": 1}}])
def test_symmetries_warn_of_training_whose_path_is_random(groups):
    """And is seldom that which the first run takes."""

    def forward(net, x):
        rare = net.training and random.random() < 0.3
        return net.two(net.one(x).relu() * (RAMP.to(x) if rare else 1.0))

    with pytest.warns(UserWarning, match="could not be checked, since its path depends on random numbers there"):
        tw.symmetries(Of(forward, **linear(one=(6, 8), two=(8, 4))), TASK, BATCH, groups=groups)


@pytest.mark.parametrize("small", [1, 10**6])
def test_symmetries_follow_a_path_that_needs_more_than_two_examples(small, monkeypatch):
    def forward(net, x):
        return net.two(net.one(x).relu() * (RAMP.to(x) if len(x) > 4 else 1.0))

    monkeypatch.setattr(network_copy, "SMALL", small)  # as of a large network, which is proven with few
    symmetries = tw.symmetries(Of(forward, **linear(one=(6, 8), two=(8, 4))), TASK, BATCH)
    assert not symmetries.groups
    assert not symmetries.dropped


@pytest.mark.parametrize("name", ["batch norm", "MLP"])
def test_symmetries_trace_networks_once_that_train_as_they_predict(name):
    case = ALIGNABLE[name]
    network = NetworkCopy(case.module(1), case.task, case.batch())
    assert not FurtherCalls(network).trains_otherwise(case.batch())


def by_name(net, x, name):
    return net.heads[name](net.one(x).relu())


def optional(net, x, more):
    hidden = net.one(x).relu()
    return net.out(hidden) if more is None else net.out(hidden) + net.more(hidden * more)


def early(net, x, last):
    hidden = net.one(x).relu()
    return net.out(hidden) if last else net.more(net.two(hidden).relu())


def by_length(net, x):
    hidden = net.one(x.unflatten(1, (-1, 6)).mean(1)).relu()
    return net.out(hidden) if x.shape[1] == 6 else net.more(hidden)


X, Y = BATCH
KINDS = {
    "a head by name": (by_name, [(X, "a", Y), (X, "b", Y)]),
    "an optional input": (optional, [(X, None, Y), (X, torch.randn(32, 1), Y)]),
    "an early exit": (early, [(X, True, Y), (X, False, Y)]),
    "a path by length": (by_length, [(X, Y), (torch.cat([X, X], 1), Y)]),
}


def branched(forward, frozen=""):
    if forward is by_name:
        net = Of(forward, one=nn.Linear(6, 8), heads=nn.ModuleDict(linear(a=(8, 4), b=(8, 4))))
    else:
        net = Of(
            forward, **linear(one=(6, 8), out=(8, 4), more=(8, 4)), **linear(two=(8, 8)) if forward is early else {}
        )
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not frozen or frozen not in name)
    return net


class Loaded:
    """Batches that are not a list."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("loaded", [list, Loaded])
@pytest.mark.parametrize("frozen", ["", "heads.b"])
@pytest.mark.parametrize("name", KINDS)
def test_align_keeps_the_function_on_every_kind_of_batch(name, frozen, loaded):
    forward, batches = KINDS[name]
    net, other = branched(forward, frozen), branched(forward, frozen)
    other.load_state_dict(
        {k: v if frozen and frozen in k else other.state_dict()[k] for k, v in net.state_dict().items()}
    )
    before = [other(*batch[:-1]) for batch in batches]
    aligned = tw.align(net, tw.Weights.of(net), tw.Weights.of(other), TASK, loaded(batches))
    assert len(aligned.symmetries.groups) == (1 + (name == "an early exit")) * (not (frozen and forward is by_name))
    aligned.load_into(other)
    for batch, expected in zip(batches, before, strict=True):
        torch.testing.assert_close(other(*batch[:-1]), expected)


def test_align_follows_kinds_of_batches_that_use_every_parameter():
    """Which join what the first keeps apart."""

    def forward(net, x, join):
        g, h = net.g(x).relu(), net.h(x).relu()
        return net.out(g + h if join else g) + net.other(h)

    net, other = (Of(forward, **linear(g=(6, 8), h=(6, 8), out=(8, 4), other=(8, 4))) for _ in range(2))
    batches = [(X, False, Y), (X, True, Y)]
    aligned = tw.align(net, tw.Weights.of(net), tw.Weights.of(other), TASK, batches)
    assert [len(group.axes) for group in aligned.symmetries.groups.values()] == [6]


@pytest.mark.parametrize("loaded", [list, Loaded])
@pytest.mark.parametrize("name", ["a head by name", "an optional input", "a path by length"])
def test_groups_by_hand_are_proven_on_every_kind_of_batch(name, loaded):
    forward, batches = KINDS[name]
    net, other = branched(forward), branched(forward)
    first, second = ("heads.a", "heads.b") if forward is by_name else ("out", "more")
    half = {"one.weight": 0, "one.bias": 0, f"{first}.weight": 1}
    whole = {**half, f"{second}.weight": 1}
    for group, right in ((half, False), (whole, True)):
        ends = tw.Weights.of(net), tw.Weights.of(other)
        found = tw.align(net, *ends, TASK, loaded(batches), groups={"hidden": group}).symmetries
        assert ("hidden" in found.groups, "hidden" in found.dropped) == (right, not right)


def test_groups_by_hand_warn_of_parameters_that_no_batch_uses():
    net = branched(by_name)
    groups = {"hidden": {"one.weight": 0, "one.bias": 0, "heads.a.weight": 1}}
    with pytest.warns(UserWarning, match=r"took no part .* \('heads.b.weight' and 1 more\)"):
        tw.align(net, tw.Weights.of(net), tw.Weights.of(branched(by_name)), TASK, [(X, "a", Y)], groups=groups)


def test_align_follows_a_kind_of_batch_after_many_sizes():
    """Which differ in nothing else, and are more than are followed."""

    def forward(net, x, flag):
        hidden = net.one(x).relu().mean(1)
        return net.two(hidden * RAMP.to(hidden) if flag else hidden)

    nets = [tw.Weights.of(Of(forward, **linear(one=(6, 8), two=(8, 4)))) for _ in range(2)]
    sizes = [(torch.randn(4, size, 6), False, Y[:4]) for size in range(2, 4 + further_calls.KINDS)]
    net = Of(forward, **linear(one=(6, 8), two=(8, 4)))
    assert len(tw.align(net, *nets, TASK, sizes).symmetries.groups) == 1
    last = torch.randn(4, 5, 6), True, Y[:4]
    assert not tw.align(net, *nets, TASK, [*sizes, last]).symmetries.groups


def test_align_warns_of_parameters_that_no_batch_uses():
    net = branched(by_name)
    with pytest.warns(UserWarning, match=r"took no part .* \('heads.b.weight' and 1 more\): .* give batches that"):
        tw.align(net, tw.Weights.of(net), tw.Weights.of(branched(by_name)), TASK, [(X, "a", Y)])


def test_network_that_needs_more_arguments_where_it_is_compiled_is_traced():
    """As those of transformers, which make masks themselves only where they are not."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x, mask=None):
            if mask is None and not torch.compiler.is_compiling():
                mask = torch.ones(x.shape[0], 1)
            return self.two(F.relu(self.one(x)) * mask[:, :1])

    looks = torch.compiler.is_compiling
    assert [*tw.symmetries(Masked(), tw.classification(), vectors()).groups] == ["one.weight[0]"]
    assert torch.compiler.is_compiling is looks


def test_block_that_uses_no_more_than_the_size_of_a_tensor_is_traced():
    """Under autocast, as rotary positions often are; torch then erases the tensor by half."""

    def forward(net, x):
        x = torch.relu(net.one(x))
        scale = positions(x[:, 1:])
        return net.two(x * scale.sum())

    @torch.autocast("cuda", enabled=False)
    def positions(x):
        return torch.linspace(0, 1, x.shape[1])

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    assert [*tw.symmetries(net, tw.classification(), vectors()).groups] == ["one.weight[0]"]
