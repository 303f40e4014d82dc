"""Ways of computing: what they mean, what they refuse, and that the result is the same."""

import os
import random
import signal
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.runtime import compiled as compiled_step
from thalweg.runtime import cuda_graphs
from thalweg.runtime.transfer import source
from thalweg.training.step import mean_loss
from thalweg.weightspace.batchnorm import counted_at_once
from thalweg.weightspace.probe import Probe

SETTINGS = {"epochs": 3, "lr": 0.05, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "precision must be"),
        ({"compile": "yes"}, "compile must be True"),
        ({"graph": 3}, "graph must be"),
        ({"stream": "cpu"}, "stream must be True or False"),
    ],
)
def test_modes_that_do_not_exist(settings, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Compute(**settings)


def test_what_is_decided_where_nothing_is_said():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not tw.Compute().compiles(cpu, 10**6)
    assert not tw.Compute().compiles(cuda, 100)
    assert tw.Compute().compiles(cuda, 10**6)
    assert not tw.Compute(compile=False).compiles(cuda, 10**6)
    assert tw.Compute().captures(cuda)
    assert not tw.Compute(graph=False).captures(cuda)
    assert tw.Compute("bf16").channels_last(cuda)
    assert not tw.Compute("bf16").channels_last(cpu)


def test_capture_needs_a_gpu_and_warns_once():
    animal = ZOO["mlp"]
    with pytest.warns(tw.SlowPathWarning, match="needs a CUDA GPU, and the network is on cpu") as heard:
        tw.fit(animal.module(1), animal.task, animal.batches(), compute=tw.Compute(graph=True), **SETTINGS)
    assert len(heard) == 1


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict", "two_inputs", "frozen"])
def test_compiled_steps_give_the_same_result(name, monkeypatch):
    """With the compiler's front end, which decides what is computed; its back end only decides how."""
    called = []

    def compiled():
        called.append(1)
        return torch.compile(mean_loss, backend="eager", dynamic=False)

    monkeypatch.setattr(compiled_step, "_compiled", compiled)
    animal, (a, b) = ZOO[name], ZOO[name].ends()
    for compute in (tw.Compute(compile=True), tw.Compute()):
        trained = tw.fit(animal.module(1), animal.task, animal.batches(), compute=compute, **SETTINGS)
        curve = tw.connect(
            animal.module(1), tw.Bezier(a, b), animal.task, animal.batches(), compute=compute, **SETTINGS
        )
        if compute.compile:
            first = trained, curve
    assert len(called) == 2
    assert torch.allclose(first[0].vector, trained.vector, rtol=1e-12, atol=1e-14)
    assert all(torch.allclose(x, y) for x, y in zip(first[0].buffers.values(), trained.buffers.values(), strict=True))
    assert torch.allclose(first[1].bends[0].vector, curve.bends[0].vector, rtol=1e-12, atol=1e-14)


def test_what_cannot_be_compiled_is_not_and_says_why(monkeypatch):
    def broken():
        raise RuntimeError("no such compiler\nand much more")

    monkeypatch.setattr(compiled_step, "_compiled", broken)
    animal = ZOO["mlp"]
    with pytest.warns(
        tw.SlowPathWarning, match="the network is not compiled: RuntimeError: no such compiler$"
    ) as heard:
        found = tw.fit(animal.module(1), animal.task, animal.batches(), compute=tw.Compute(compile=True), **SETTINGS)
    assert len(heard) == 1
    assert torch.equal(found.vector, tw.fit(animal.module(1), animal.task, animal.batches(), **SETTINGS).vector)


def test_bf16_keeps_float32_weights_and_stays_near_them():
    animal, found = ZOO["conv_bn"], []
    batches = [(x.float(), y) for x, y in animal.batches()]
    a, b = (tw.Weights.of(animal.module(seed).float()) for seed in (1, 2))
    for compute in (tw.Compute("bf16"), tw.Compute()):
        curve = tw.connect(animal.module(1).float(), tw.Bezier(a, b), animal.task, batches, compute=compute, **SETTINGS)
        scan = tw.scan(
            animal.module(1).float(), curve, animal.task, {"x": batches}, points=5, bn_batches=batches, compute=compute
        )
        found.append((curve.bends[0].vector, torch.tensor(scan.values["x"]["loss"])))
    assert found[0][0].dtype == torch.float32
    for reduced, plain in zip(*found, strict=True):
        assert torch.allclose(reduced, plain, rtol=0.05, atol=0.02)
        assert not torch.equal(reduced, plain)


def test_bf16_is_for_float32():
    animal = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="'bf16' is for networks with float32 weights; this one has torch"):
        tw.fit(animal.module(1), animal.task, animal.batches(), compute=tw.Compute("bf16"), **SETTINGS)


@pytest.mark.parametrize("name", ZOO)
def test_gradients_parameter_by_parameter_are_the_flat_one(name):
    animal, found = ZOO[name], []
    probe = Probe(animal.module(1))
    for way in (lambda loss: probe.gather(probe.gradients(loss)), probe.backward):
        torch.manual_seed(0)
        probe.grad.fill_(torch.nan)
        way(animal.losses(probe.module, animal.batches()[0]).mean())
        found.append(probe.grad.clone())
    assert torch.allclose(*found, rtol=1e-12)


class Carrying(nn.Module):
    """Keeps a state from batch to batch, in place or by putting another there."""

    def __init__(self, rebinds):
        super().__init__()
        self.linear, self.rebinds = nn.Linear(4, 3), rebinds
        self.register_buffer("state", torch.zeros(3), persistent=False)

    def forward(self, x):
        out = self.linear(x) + self.state
        state = 0.5 * self.state + out.detach().mean(0)
        if self.rebinds:
            self.state = state
        else:
            self.state.copy_(state)
        return out


@pytest.mark.parametrize("rebinds", [True, False])
def test_measuring_leaves_a_carried_state_as_it_was(rebinds):
    torch.manual_seed(0)
    module, task = Carrying(rebinds).double(), tw.classification()
    batches = ZOO["mlp"].batches()
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=0.05, lr_min=0.005)
    plain, watched = (
        tw.walk(module, task, batches, method, epochs=2, watch=watch).members[-1].vector
        for watch in (None, {"x": batches})
    )
    assert torch.equal(plain, watched)
    weights = tw.Weights.of(module)
    scan = tw.scan(module, [weights] * 3, task, {"a": batches, "b": batches})
    assert len(set(scan.values["a"]["loss"].tolist() + scan.values["b"]["loss"].tolist())) == 1


@pytest.mark.parametrize("works", [True, False])
def test_nothing_remains_of_trying_to_compile(works, monkeypatch):
    """Neither in the statistics nor in any random state, though a mask was drawn and a forward pass had run."""

    def compiled():
        def run(*args):
            loss = mean_loss(*args)
            random.random()
            if not works and len(called) == 0:
                called.append(1)
                raise AssertionError
            return loss

        return run

    called: list[int] = []
    monkeypatch.setattr(compiled_step, "_compiled", compiled)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    batches = ZOO["mlp"].batches()
    plain = tw.fit(module, tw.classification(), batches, **SETTINGS)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = tw.fit(module, tw.classification(), batches, compute=tw.Compute(compile=True), **SETTINGS)
    assert len(heard) == (0 if works else 1)
    assert torch.equal(plain.vector, found.vector)
    assert all(torch.equal(value, found.buffers[name]) for name, value in plain.buffers.items())


def test_an_optimizers_plain_numbers_survive_a_stop(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for vector in group["params"]:
                    count = self.state[vector]["steps"] = self.state[vector].get("steps", 0) + 1
                    vector.sub_(vector.grad, alpha=group["lr"] / count)

    class Deadly(list):
        seen = 0

        def __iter__(self):
            for batch in super().__iter__():
                self.seen += 1
                if self.seen == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    animal = ZOO["mlp"]
    settings = {**SETTINGS, "optimizer": lambda vectors: Counting(vectors, lr=0.0)}
    with pytest.raises(Stopped):
        tw.fit(animal.module(1), animal.task, Deadly(animal.batches()), run=tmp_path, **settings)
    found = tw.fit(animal.module(1), animal.task, animal.batches(), run=tmp_path, **settings)
    assert torch.equal(found.vector, tw.fit(animal.module(1), animal.task, animal.batches(), **settings).vector)


def test_a_batch_that_matters_is_not_widened():
    images, labels = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.zeros(20, dtype=torch.long)
    batches = tw.data.DeviceBatches(images, labels, 4)
    assert batches.widened(10).batch_size == 10
    assert batches.widened(2) is batches
    shuffled = tw.data.DeviceBatches(images, labels, 4, shuffle=True)
    assert shuffled.widened(10) is shuffled

    class Own(tw.data.DeviceBatches):
        def __iter__(self):
            return iter([(torch.ones(1), torch.ones(1))])

    passes, make = source(Own(images, labels, 4), torch.device("cpu"))
    assert torch.equal(make(next(passes()))[0], torch.ones(1))


def test_all_layers_are_counted_at_once():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3).eval())
    with counted_at_once(module):
        module(torch.randn(5, 3))
    assert [int(layer.num_batches_tracked) for layer in module] == [1, 1, 0]


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.last, self.shape, self.seen = 0, torch.zeros(1), (1, 2), []
        self.draws, self.numbers, self.cell = torch.Generator(), np.random.default_rng(0), torch.zeros(1)

    def forward(self, what):
        if what == "count":
            self.count += 1
        if what == "last":
            self.last = torch.zeros(1)
        if what == "shape":
            self.shape = (1, 3)
        if what == "seen":
            self.seen.append(1)
        if what == "random":
            random.random()
        if what == "torch":
            torch.rand(())
        if what == "draws":
            torch.rand((), generator=self.draws)
        if what == "numbers":
            self.numbers.random()
        if what == "cell":
            self.cell.add_(1)
        if what == "nothing":
            self.shape, self.count = (1, 2), 0


@pytest.mark.parametrize(
    "what", ["count", "last", "shape", "seen", "random", "torch", "draws", "numbers", "cell", "nothing"]
)
def test_what_a_recording_would_freeze_is_seen(what):
    module = nn.Sequential(Restless())
    before = cuda_graphs._host_state(module)
    module(what)
    found = cuda_graphs._difference(before, cuda_graphs._host_state(module))
    if what == "nothing":
        assert found is None
    else:
        assert ("random numbers" in found) if what in ("random", "torch") else f"'0.{what}' changes" in found


def test_functions_and_optimizers_are_watched_too():
    counted = {"calls": 0}

    class Anneal:
        weight = 1.0

    anneal, vector, module = Anneal(), torch.zeros(3, requires_grad=True), nn.Identity()
    optimizer = torch.optim.SGD([vector], lr=0.1)

    def loss(outputs, targets):
        return counted["calls"] + anneal.weight

    def changed(change):
        before = cuda_graphs._host_state(module, (optimizer, loss))
        change()
        return cuda_graphs._difference(before, cuda_graphs._host_state(module, (optimizer, loss)))

    assert changed(lambda: None) is None
    assert "of loss: anneal.weight" in changed(lambda: setattr(anneal, "weight", 0.5))
    assert "of SGD: steps of vector 0" in changed(lambda: optimizer.state[vector].update(steps=1))
    assert changed(lambda: optimizer.param_groups[0].update(lr=0.2)) is None


class CountingLoss(nn.Module):
    """A loss that is a module, with another inside."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.CrossEntropyLoss(), 0

    def forward(self, outputs, targets):
        self.calls += 1
        return self.inner(outputs, targets)


class CountingObject:
    calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return outputs

    def method(self, outputs, targets):
        return self(outputs, targets)


def counting_function(outputs, targets):
    counting_function.calls += 1
    return outputs


counting_function.calls = 0
COUNTING = {
    "module": CountingLoss(),
    "object": CountingObject(),
    "method": CountingObject().method,
    "function": counting_function,
    "partial of a module": partial(CountingLoss()),
    "partial of a partial": partial(partial(CountingObject())),
}


@pytest.mark.parametrize("kind", COUNTING)
def test_capture_notices_a_loss_that_counts_its_calls(kind):
    loss, module = COUNTING[kind], nn.Identity()
    outputs, targets = torch.zeros(2, 3), torch.tensor([0, 1])
    loss(outputs, targets)
    before = cuda_graphs._host_state(module, (loss,))
    assert cuda_graphs._difference({**before}, cuda_graphs._host_state(module, (loss,))) is None
    loss(outputs, targets)
    assert "calls' changes in every step" in cuda_graphs._difference(before, cuda_graphs._host_state(module, (loss,)))


@pytest.mark.parametrize(
    "loss", [tw.classification().loss, nn.CrossEntropyLoss(), partial(nn.functional.cross_entropy)]
)
def test_capture_has_nothing_against_the_usual_losses(loss):
    module, outputs, targets = nn.Identity(), torch.zeros(2, 3), torch.tensor([0, 1])
    loss(outputs, targets)
    before = cuda_graphs._host_state(module, (loss, tw.classification().predict))
    loss(outputs, targets)
    assert cuda_graphs._difference(before, cuda_graphs._host_state(module, (loss, tw.classification().predict))) is None


def test_one_recording_serves_batches_of_one_form():
    x = torch.zeros(4, 3)
    forms = [x, x + 1, x[:2], x.double(), (x,), [x], {"a": x}, {"b": x}, x.T.contiguous().T, (x, "label"), (x, "other")]
    keys = [cuda_graphs.form_of(batch) for batch in forms]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(forms) - 1


def test_without_a_gpu_work_is_called_directly():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work = cuda_graphs.Replay(lambda batch: batch + 1, nn.Identity(), torch.device("cpu"), wanted=False)
        assert [work(k) for k in range(4)] == [1, 2, 3, 4]
