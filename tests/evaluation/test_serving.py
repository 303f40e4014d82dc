"""Ensembles in use: predictions without targets, and one module for all members."""

import re
import weakref
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw

CLASSIFIERS = [name for name in ZOO if name != "two_inputs"]


def points(case, count=3):
    return [tw.fit(case.module(s), case.task, case.batches(), epochs=1, lr=0.1, seed=s) for s in range(count)]


def inputs_of(batch):
    if isinstance(batch, dict):
        return {name: value for name, value in batch.items() if name != "labels"}
    return batch[0] if len(batch) == 2 else tuple(batch[:-1])


def test_serving_probabilities_entropy_and_mutual_information_by_hand():
    case = ZOO["conv_bn"]
    members, x = points(case), case.batches()[0][0]
    found = tw.Ensemble(case.module(7), members).probabilities(x)
    each = []
    for member in members:
        net = case.module(9)
        net.load_state_dict(member.state_dict())
        each.append(net.eval()(x).detach().softmax(1))
    each, mean = torch.stack(each), sum(each) / 3
    assert torch.allclose(found.members, each, rtol=1e-12)
    assert torch.allclose(found.probabilities, mean, rtol=1e-12)
    assert torch.allclose(found.entropy, -(mean * mean.log()).sum(1), rtol=1e-12)
    divergence = (each * (each.log() - mean.log())).sum(2).mean(0)  # the mean Kullback-Leibler divergence from the mean
    assert torch.allclose(found.mutual_information, divergence, rtol=1e-9)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_serving_probabilities_are_those_of_predict(name):
    case = ZOO[name]
    module = case.module(7)
    before = bits(module)
    ensemble, batch = tw.Ensemble(module, points(case, 2)), case.batches()[0]
    task = tw.Task(case.task.loss, probabilities=flat) if name == "tied_lstm" else None
    found = ensemble.probabilities(inputs_of(batch), task).probabilities
    assert same_bits(before, bits(module))
    expected, _ = ensemble.predict(case.task, [batch])
    assert torch.allclose(found.double(), expected.double(), rtol=1e-5, atol=1e-7)


def flat(logits):
    return logits.flatten(0, 1).softmax(1)


def test_serving_asks_for_an_unknown_dimension_of_classes():
    case = ZOO["tied_lstm"]
    ensemble, inputs = tw.Ensemble(case.module(1), points(case, 2)), inputs_of(case.batches()[0])
    for task in (None, tw.Task(case.task.loss)):
        with pytest.raises(tw.ThalwegError, match=r"outputs \(.* do not say which dimension holds the classes"):
            ensemble.probabilities(inputs, task)
    assert torch.allclose(
        ensemble.probabilities(inputs, tw.classification()).probabilities.sum(1), torch.ones(1).double()
    )


def test_serving_language_models_have_classes_in_the_last_dimension():
    case = ZOO["tied_lstm"]
    members, inputs = points(case, 3), inputs_of(case.batches()[0])
    ensemble = tw.Ensemble(case.module(1), members)
    expected = []
    for member in members:
        net = case.module(1)
        member.load_into(net)
        with torch.no_grad():
            expected.append(net.eval()(inputs).softmax(-1).transpose(1, 2))
    found = ensemble.probabilities(inputs, tw.language_modelling())
    assert torch.allclose(found.members, torch.stack(expected), rtol=0, atol=1e-12)
    assert torch.allclose(found.probabilities, torch.stack(expected).mean(0), rtol=0, atol=1e-12)
    assert torch.equal(ensemble.as_module(tw.language_modelling())(inputs), found.probabilities)


def test_serving_errors_of_the_network_say_what_it_was_given():
    case = ZOO["mlp"]
    ensemble, (x, y) = tw.Ensemble(case.module(1), points(case, 2)), case.batches()[0]
    for inputs, message in ((x[:, 1:], "a batch of float64"), ((x, y), r"a batch of \(float64 .*, int64")):
        with pytest.raises((RuntimeError, TypeError)) as error:
            ensemble.probabilities(inputs)
        assert re.search(message, error.value.__notes__[0])


def test_serving_sees_members_that_were_written_to():
    case = ZOO["mlp"]
    ensemble, batch = tw.Ensemble(case.module(1), points(case, 2)), case.batches()[0]
    before = ensemble.probabilities(batch[0]).probabilities
    ensemble.members[0].vector.mul_(2)
    after = ensemble.probabilities(batch[0]).probabilities
    assert not torch.allclose(before, after)
    assert torch.allclose(after.double(), ensemble.predict(case.task, [batch])[0].double(), rtol=0, atol=1e-12)
    with torch.inference_mode():
        inside = tw.Ensemble(case.module(1), [tw.Weights.of(case.module(1))])
        assert torch.isfinite(inside.probabilities(batch[0]).probabilities).all()


@pytest.mark.parametrize("temperature", [1.5, 20.0, 200.0])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_serving_scales_very_sure_networks_as_predict_does(size, temperature):
    """In float32 most of theirs are 0, whose logarithm would be that of the smallest number."""
    torch.manual_seed(0)
    module, task, x = nn.Linear(4, 3), tw.classification(), torch.randn(16, 4)
    members = [tw.Weights.of(nn.Linear(4, 3)) for _ in range(3)]
    for member in members:
        member.vector.mul_(size)
    ensemble = tw.Ensemble(module, members)
    ensemble.temperature = temperature
    expected, _ = ensemble.predict(task, [(x, torch.zeros(16).long())])
    torch.testing.assert_close(ensemble.probabilities(x).probabilities, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ensemble.as_module()(x), expected, atol=1e-5, rtol=1e-4)


def test_serving_identical_members_have_no_mutual_information():
    case = ZOO["mlp"]
    ensemble = tw.Ensemble(case.module(1), points(case, 1) * 3)
    found = ensemble.probabilities(case.batches()[0][0])
    assert found.mutual_information.abs().max() < 1e-12
    assert found.entropy.min() > 0


def test_serving_uses_members_added_later():
    case = ZOO["mlp"]
    members, x = points(case), case.batches()[0][0]
    ensemble = tw.Ensemble(case.module(1), members[:2])
    assert len(ensemble.probabilities(x).members) == 2
    ensemble.add(members[2])
    assert len(ensemble.probabilities(x).members) == 3


@pytest.mark.parametrize("temperature", [None, 1.7])
def test_as_module_is_exported(temperature):
    case = ZOO["conv_bn"]
    ensemble, x = tw.Ensemble(case.module(7), points(case)), case.batches()[0][0]
    ensemble.temperature = temperature
    module = ensemble.as_module()
    exported = torch.export.export(module, (x,)).module()
    expected = ensemble.probabilities(x).probabilities
    assert torch.allclose(module(x), expected, rtol=1e-12)
    assert torch.allclose(exported(x), expected, rtol=1e-12)
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_as_module_averages_outputs_for_regression():
    case = ZOO["two_inputs"]
    ensemble, batch = tw.Ensemble(case.module(7), points(case)), case.batches()[0]
    expected, _ = ensemble.predict(case.task, [batch])
    assert torch.allclose(ensemble.as_module(case.task)(*batch[:-1]), expected, rtol=1e-12)
    with pytest.raises(tw.ThalwegError, match="no probabilities of classes: use predict, or as_module"):
        ensemble.probabilities(batch[:-1], case.task)


def test_serving_probabilities_of_a_task():
    net = nn.Linear(2, 1).double()
    task = tw.Task(lambda o, y: o[:, 0], probabilities=lambda o: torch.cat([o.sigmoid(), 1 - o.sigmoid()], 1))
    ensemble, x = tw.Ensemble(net, [tw.Weights.of(net)]), torch.ones(3, 2).double()
    assert torch.allclose(ensemble.probabilities(x, task).probabilities[:, :1], net(x).sigmoid())
    with pytest.raises(
        tw.ThalwegError,
        match=r"two classes or more, in dimension 1 of the outputs; got outputs \(3, 1.*a column for each class",
    ):
        ensemble.probabilities(x)


class Auxiliary(nn.Module):
    """Returns logits that help in training, and then those that are used."""

    def __init__(self):
        super().__init__()
        self.help, self.use = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.help(x), self.use(x)


def test_serving_refuses_a_task_whose_predict_it_cannot_call():
    """Which chooses other outputs than those that would be taken by default."""
    net, loss = Auxiliary(), tw.classification().loss
    ensemble, x = tw.Ensemble(net, [tw.Weights.of(net)]), torch.randn(4, 3)
    task = tw.Task(loss, lambda net, batch: (net(batch[0])[1], batch[1]))
    for call in (partial(ensemble.probabilities, x), ensemble.as_module):
        with pytest.raises(tw.ThalwegError, match="give a task without predict=, whose probabilities= takes what"):
            call(task)
    expected, _ = ensemble.predict(task, [(x, torch.zeros(4, dtype=torch.long))])
    served = tw.Task(loss, probabilities=lambda outputs: outputs[1].softmax(1))
    assert torch.allclose(ensemble.probabilities(x, served).probabilities, expected)
    assert torch.allclose(ensemble.as_module(served)(x), expected)


def test_serving_temperature_is_for_probabilities_that_add_up_to_one():
    net = nn.Linear(4, 3)
    ensemble, x = tw.Ensemble(net, [tw.Weights.of(net)]), torch.ones(2, 4)
    several = tw.Task(lambda outputs, targets: (outputs - targets).square().mean(1), probabilities=torch.sigmoid)
    assert torch.equal(ensemble.probabilities(x, several).probabilities, net(x).sigmoid())
    ensemble.temperature = 2.0
    calls = (lambda: ensemble.probabilities(x, several), lambda: ensemble.predict(several, [(x, torch.ones(2, 3))]))
    for call in calls:
        with pytest.raises(tw.ThalwegError, match="a temperature scales probabilities that add up to one"):
            call()


def test_serving_refuses_bad_inputs():
    net = nn.Linear(2, 3)
    ensemble = tw.Ensemble(net, [tw.Weights.of(net)] * 2)
    with pytest.raises(tw.ThalwegError, match=r"inputs are those of one batch, without targets.*got DataLoader"):
        ensemble.probabilities(torch.utils.data.DataLoader(torch.ones(4, 2)))
    with pytest.raises(
        tw.ThalwegError, match=r"member 1 predicts NaN or infinity: .* holds NaN, so the network is not"
    ):
        ensemble.probabilities(torch.tensor([[1.0, torch.nan]]))
    broken = tw.Weights.of(net)
    broken.vector.fill_(torch.nan)
    with pytest.raises(tw.ThalwegError, match="member 2 predicts NaN or infinity: its 'weight' is not finite"):
        tw.Ensemble(net, [tw.Weights.of(net), broken]).probabilities(torch.ones(1, 2))


def test_serving_refuses_a_forward_bound_to_the_original():
    net = nn.Linear(2, 3)
    net.forward = lambda x, own=net: nn.functional.linear(x, own.weight)
    with pytest.raises(tw.ThalwegError, match="'weight' of the network that was given takes part in the pass of its"):
        tw.Ensemble(net, [tw.Weights.of(net)]).probabilities(torch.ones(1, 2))


def test_serving_half_precision_networks_give_float32_probabilities():
    net = nn.Linear(2, 3).to(torch.bfloat16)
    found = tw.Ensemble(net, [tw.Weights.of(net)]).probabilities(torch.ones(1, 2, dtype=torch.bfloat16))
    assert found.probabilities.dtype == torch.float32


class Counting(nn.Module):
    """Carries a state from one call to the next, as some recurrent networks do."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(2, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_serving_refuses_a_network_with_a_state_of_its_own():
    net = Counting()
    with pytest.raises(tw.ThalwegError, match=r"predicts something else for the same inputs again.*keep something"):
        tw.Ensemble(net, [tw.Weights.of(net)]).probabilities(torch.ones(1, 2))
    assert net.calls == 0


def test_as_module_starts_from_the_state_of_the_callers_network():
    net = Counting()
    ensemble = tw.Ensemble(net, [tw.Weights.of(net)])
    expected = net.linear(torch.ones(1, 2)).softmax(1)
    assert torch.allclose(ensemble.as_module()(torch.ones(1, 2)), expected)
    ensemble.as_module()(torch.ones(1, 2))
    assert torch.allclose(ensemble.as_module()(torch.ones(1, 2)), expected)


def test_serving_keeps_dropout_that_stays_on():
    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, x):
            return self.linear(nn.functional.dropout(x, 0.5, training=True))

    net, x = Always(), torch.ones(1, 2)
    ensemble = tw.Ensemble(net, [tw.Weights.of(net)] * 3)
    assert len({tuple(ensemble.probabilities(x).probabilities[0].tolist()) for _ in range(8)}) > 1


class CachedOnClass(nn.Module):
    """Clears what it keeps as its mode changes, which comes before each point of a scan, but not between members."""

    cache: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def train(self, mode=True):
        self.cache.clear()
        return super().train(mode)

    def forward(self, x):
        weight = 2 * self.last.weight
        return x @ (weight if self.training else self.cache.setdefault("weight", weight)).T


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x):
        return self.parent().last(x)


class WithChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.child = Child(self)

    def forward(self, x):
        return self.child(x)


class WithView(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.view = self.last.weight.data[:3]

    def forward(self, x):
        return x @ self.view.T + self.last(x)


class IntoBuffer(nn.Module):
    """Writes its outputs into memory that all its copies share."""

    memory: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        out = self.last(x)
        return out if self.training else self.memory.setdefault(out.shape, torch.empty_like(out)).copy_(out)


def served(kind):
    networks = [kind() for _ in range(3)]
    return tw.Ensemble(networks[0], [tw.Weights.of(network) for network in networks[1:]])


@pytest.mark.parametrize("kind", [WithChild, WithView, IntoBuffer])
def test_serving_copies_networks_as_predict_does(kind):
    ensemble, x = served(kind), torch.randn(5, 4)
    expected, _ = ensemble.predict(tw.classification(), [(x, torch.zeros(5, dtype=torch.long))])
    with torch.no_grad():
        assert torch.allclose(ensemble.as_module()(x), expected, atol=1e-6)
        assert torch.allclose(ensemble.probabilities(x).probabilities, expected, atol=1e-6)


def test_serving_refuses_members_that_predict_something_else_together():
    with pytest.raises(tw.ThalwegError, match="member 2 predicts something else by itself than with the others"):
        served(CachedOnClass).probabilities(torch.randn(5, 4))


def test_as_module_refuses_a_network_whose_copies_would_call_it():
    net = nn.Sequential(nn.Linear(4, 3))
    forward = net.forward
    net.forward = lambda x: forward(x)
    with pytest.raises(tw.ThalwegError, match="a copy of the network would call the original, by 'forward"):
        tw.Ensemble(net, [tw.Weights.of(net)]).as_module()


def test_as_module_leaves_random_numbers_alone():
    class Drawing(nn.Linear):
        def __deepcopy__(self, memo):
            made = Drawing(4, 3)  # which draws its weights
            made.load_state_dict(self.state_dict())
            return made

    net = Drawing(4, 3)
    ensemble = tw.Ensemble(net, [tw.Weights.of(net)])
    before = torch.get_rng_state()
    ensemble.as_module()
    assert torch.equal(torch.get_rng_state(), before)
