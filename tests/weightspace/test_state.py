"""What a network keeps outside parameters and buffers does not reach the next point, nor a training that goes on."""

import copy
import random
import weakref
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import ZOO

import thalweg as tw
from thalweg.weightspace.probe import Probe
from thalweg.weightspace.state import ModuleState

BATCHES = ZOO["mlp"].batches()
TASK = tw.classification()


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Hidden(Base):
    """A recurrent state kept as an attribute."""

    state = None

    def forward(self, x):
        out = self.layer(x) + (0 if self.state is None else self.state)
        self.state = out.detach().mean(0)
        return out


class InPlace(Base):
    def __init__(self):
        super().__init__()
        self.state, self.numbers = torch.zeros(3).double(), np.zeros(3)

    def forward(self, x):
        self.state += self.layer(x).detach().mean(0)
        self.numbers += 1
        return self.layer(x) + self.state + torch.from_numpy(self.numbers)


class CachesInEval(Base):
    cache = None

    def forward(self, x):
        if self.training:
            self.cache = None
            return self.layer(x)
        if self.cache is None:
            self.cache = 2 * self.layer.weight.detach()
        return x @ self.cache.T


class Merges(Base):
    """As loralib does: `eval()` adds the low-rank part to the frozen weight in place, `train()` takes it away."""

    def __init__(self):
        super().__init__()
        self.layer.weight.requires_grad_(False).copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.merged is mode:
            self.layer.weight.data += (-1 if mode else 1) * (self.up @ self.down).data
            self.merged = not mode
        return self

    def forward(self, x):
        return self.layer(x) if self.merged else self.layer(x) + x @ (self.up @ self.down).T


class InContainers(Base):
    """State in nested containers, a plain object and one with slots."""

    def __init__(self):
        super().__init__()
        self.known, self.last, self.names = {"seen": [], "more": [{}]}, deque([1.0], maxlen=3), {"a"}
        self.thing, self.small = Thing(), Small()

    def forward(self, x):
        self.known["seen"].append(self.layer(x).detach().mean(0))
        self.known["more"][0][len(self.names)] = 1.0
        self.last.append(self.last[-1] + 1)
        self.names.add(len(self.names))
        self.thing.count += 1
        self.small.count = self.small.count + 1
        more = self.last[-1] + len(self.names) + self.thing.count + self.small.count + len(self.known["more"][0])
        return self.layer(x) + sum(self.known["seen"]) + more * self.layer.bias


class Thing:
    count = 0


class Small:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class OwnRandomness(Base):
    def __init__(self):
        super().__init__()
        self.torch, self.numpy, self.plain = (
            torch.Generator().manual_seed(3),
            np.random.default_rng(3),
            random.Random(3),
        )
        self.legacy = np.random.RandomState(3)

    def forward(self, x):
        noise = (
            torch.randn(3, generator=self.torch).double()
            + self.numpy.normal()
            + self.plain.random()
            + self.legacy.normal()
        )
        return self.layer(x) * noise


class Parted(nn.Module):
    """A layer outside any parameter search, with state of its own, and parts made when first used."""

    def __init__(self):
        super().__init__()
        self.layer, self.others, self.made = nn.Linear(4, 3), [Hidden.__new__(Hidden)], None
        nn.Module.__init__(self.others[0])
        self.others[0].layer = nn.Tanh()

    def forward(self, x):
        if self.made is None:
            self.made = nn.Hardtanh(0.0, float(self.layer.weight.detach().max()))
        return self.made(self.others[0](self.layer(x)))


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = parent

    def forward(self, x):
        return F.linear(x, self.parent().layer.weight)


class WeakParent(Base):
    def __init__(self):
        super().__init__()
        self.child = Child(weakref.ref(self))

    def forward(self, x):
        return self.child(x)


class BoundMethod(Base):
    def __init__(self):
        super().__init__()
        self.call = self.run

    def run(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.call(x)


class SharesMemory(Base):
    """A plain tensor in the memory of a parameter, and one that autograd knows as a view of it."""

    def __init__(self):
        super().__init__()
        self.double()
        self.rows, self.turned = self.layer.weight.data[1:], self.layer.weight.t()

    def forward(self, x):
        return self.layer(x) + x @ self.turned + (x @ self.rows.T).sum(1, keepdim=True)


class OwnCopy(Base):
    """Copies itself without asking anybody."""

    def __deepcopy__(self, memo):
        new = type(self)().double()
        new.load_state_dict(self.state_dict())
        return new


def scripted():
    return nn.Sequential(torch.jit.script(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


KINDS = {
    kind.__name__: kind
    for kind in (
        Hidden, InPlace, CachesInEval, Merges, InContainers, OwnRandomness, Parted, WeakParent, BoundMethod,
        SharesMemory, OwnCopy, scripted,
    )
}  # fmt: skip


def made(kind, seed):
    torch.manual_seed(seed)
    module = kind()
    return module if kind is SharesMemory else module.double()


def plain_loss(module):
    """A network that was never used, over all batches, without our code."""
    module.eval()
    with torch.no_grad():
        return torch.cat([F.cross_entropy(module(x), y, reduction="none") for x, y in BATCHES]).mean().item()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_stateful_network_is_measured_as_by_a_network_of_its_own(kind):
    members = [tw.Weights.of(made(kind, seed)) for seed in (1, 2, 3)]
    module = made(kind, 0)
    scan = tw.scan(module, members, TASK, {"x": BATCHES, "again": BATCHES})
    expected = [plain_loss(made(kind, seed)) for seed in (1, 2, 3)]
    assert scan.values["x"]["data_loss"].tolist() == pytest.approx(expected, rel=1e-12)
    assert scan.values["again"]["data_loss"].tolist() == scan.values["x"]["data_loss"].tolist()
    together = tw.Ensemble(module, members).predict(TASK, BATCHES)[0]
    alone = [tw.Ensemble(module, [member]).predict(TASK, BATCHES)[0] for member in members]
    assert torch.allclose(together, torch.stack(alone).mean(0), rtol=1e-12)


def plain_training(module, epochs):
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    module.train()
    for _ in range(epochs):
        for x, y in BATCHES:
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_stateful_network_is_trained_as_in_plain_torch(kind):
    trained = tw.fit(made(kind, 1), TASK, BATCHES, epochs=2, schedule=lambda i: 0.1)
    assert torch.allclose(trained.vector, plain_training(made(kind, 1), 2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [Merges, Hidden, CachesInEval, InContainers, OwnRandomness])
def test_walk_watch_of_a_stateful_network_changes_nothing(kind):
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.05)
    walks = [tw.walk(made(kind, 1), TASK, BATCHES, method, epochs=3, watch=watch) for watch in (None, {"x": BATCHES})]
    assert [w.digest() for w in walks[0].members] == [w.digest() for w in walks[1].members]


def test_weight_decay_is_that_of_the_point_before_eval_merges():
    class MergesMoving(Merges):
        def __init__(self):
            super().__init__()
            self.layer.weight.requires_grad_(True)

    weights = [tw.Weights.of(made(MergesMoving, seed)) for seed in (1, 2)]
    values = tw.scan(made(MergesMoving, 0), weights, TASK, {"x": BATCHES}, weight_decay=0.5).values["x"]
    expected = [0.25 * float(w.vector.square().sum()) for w in weights]
    assert (values["loss"] - values["data_loss"]).tolist() == pytest.approx(expected, rel=1e-12)


def test_state_restores_what_was_replaced_resized_or_removed():
    module = made(InContainers, 0)
    module.register_buffer("grows", torch.ones(2))
    before, state = copy.deepcopy(module), ModuleState(module)
    module.grows = torch.zeros(5)
    module.eval()
    module(BATCHES[0][0])
    del module.thing
    module.extra = nn.Linear(2, 2)
    state.restore()
    assert module.grows.tolist() == [1, 1]
    assert module.training
    assert not hasattr(module, "extra")
    assert (module.thing.count, module.small.count, module.known, module.last) == (0, 0, before.known, before.last)


def test_load_into_a_network_of_many_parts_is_fast():
    from itertools import pairwise
    from time import process_time

    module = tw.models.preresnet(110)
    probe = Probe(module)
    times = [process_time()]
    for _ in range(20):
        probe.state.restore()
        times.append(process_time())
    assert min(b - a for a, b in pairwise(times)) < 0.02


def test_parameter_and_a_buffer_that_share_memory_are_refused():
    module = nn.Linear(4, 3)
    module.register_buffer("shown", module.weight.data[1])
    with pytest.raises(tw.ThalwegError, match=r"the parameter 'weight' and the buffer 'shown' share memory"):
        tw.Weights.of(module)


def test_tensor_over_several_parameters_is_refused():
    module = nn.Linear(4, 3)
    module.flat = torch.zeros(15)
    module.weight, module.bias = nn.Parameter(module.flat[:12].view(3, 4)), nn.Parameter(module.flat[12:])
    with pytest.raises(tw.ThalwegError, match="'flat' shares memory with the parameter 'weight' and cannot follow it"):
        tw.fit(module, TASK, BATCHES, epochs=1, lr=0.1)


def test_copy_that_keeps_the_parameters_of_the_original_is_refused():
    class Same(Base):
        def __deepcopy__(self, memo):
            return self

    module = Same().double()
    for call in CALLS.values():
        with pytest.raises(tw.ThalwegError, match=r"'layer\.weight' is that of the original"):
            call(module)


def test_cached_parametrizations_are_refused():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).double()
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    for call in (*CALLS.values(), lambda _: ensemble.predict(TASK, BATCHES)):
        with (
            torch.nn.utils.parametrize.cached(),
            pytest.raises(tw.ThalwegError, match=r"parametrize\.cached\(\) is active"),
        ):
            call(module)


CALLS = {
    "fit": lambda m: tw.fit(m, TASK, BATCHES, epochs=1, lr=0.1),
    "scan": lambda m: tw.scan(m, [tw.Weights.of(m)], TASK, {"x": BATCHES}),
    "ensemble": lambda m: tw.Ensemble(m, [tw.Weights.of(m)]).predict(TASK, BATCHES),
    "curve_ensemble": lambda m: tw.curve_ensemble(
        m, tw.Segment(*[tw.Weights.of(m)] * 2), TASK, BATCHES, bn_batches=BATCHES, points=2
    ),
    "bn_batches": lambda m: tw.update_bn(m, tw.Weights.of(m), BATCHES),
}


def double_gradient(parameter):
    parameter.grad.mul_(2)


@pytest.mark.parametrize("kind", [Base, OwnCopy])
def test_hooks_of_parameters_come_along(kind):
    """In both ways to move a network: views of a vector, and copying tensor by tensor."""
    module = made(kind, 1)
    module.layer.weight.register_hook(torch.zeros_like)
    module.layer.bias.register_post_accumulate_grad_hook(double_gradient)
    module.layer.bias.note = "mine"

    trained = tw.fit(module, TASK, BATCHES, epochs=1, schedule=lambda i: 0.1, momentum=0.0)
    assert torch.equal(trained.state_dict()["layer.weight"], module.layer.weight)
    plain = made(kind, 1)
    plain.layer.weight.requires_grad_(False)
    plain.layer.bias.register_post_accumulate_grad_hook(double_gradient)
    optimizer = torch.optim.SGD([plain.layer.bias], lr=0.1)
    for x, y in BATCHES:
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert torch.allclose(trained.state_dict()["layer.bias"], plain.layer.bias, rtol=1e-12)
    assert Probe(module).module.layer.bias.note == "mine"


def test_renewed_state_is_the_current_one():
    class Keeps(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("seen", torch.zeros(2))
            self.notes, self.array, self.rng = [1], np.zeros(2), random.Random(0)

    module = Keeps().eval()
    before = ModuleState(module)
    module.seen += 1
    module.array += 1
    module.rng.random()
    drawn = module.rng.getstate()
    now = before.renewed()
    assert now is before  # every container holds what it held
    module.seen += 1
    module.array += 1
    module.rng.random()
    module.train()
    now.restore()
    assert module.seen.tolist() == [1, 1]
    assert module.array.tolist() == [1, 1]
    assert module.rng.getstate() == drawn
    assert not module.training


@pytest.mark.parametrize("change", ["attribute", "item", "tensor", "size"])
def test_renewed_state_finds_new_attributes(change):
    module = nn.Linear(2, 2)
    module.register_buffer("seen", torch.zeros(2))
    module.notes = [1]
    before = ModuleState(module)
    if change == "attribute":
        module.more = {"a": 1}
    elif change == "item":
        module.notes.append(2)
    elif change == "tensor":
        module.seen = torch.ones(2)
    else:
        module.seen.data = torch.ones(3)
    expected = {"more": dict(getattr(module, "more", {})), "notes": list(module.notes), "seen": module.seen.tolist()}
    now = before.renewed()
    module.more, module.notes, module.seen = {"b": 2}, [], torch.zeros(5)
    now.restore()
    found = {"more": getattr(module, "more", {}), "notes": module.notes, "seen": module.seen.tolist()}
    assert found == expected
