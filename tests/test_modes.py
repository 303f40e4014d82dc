"""Ways of computing: what they mean, what they refuse, and that the result is the same."""

import random
import warnings

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg import replay
from thalweg.training import engine
from thalweg.weightspace.probe import Probe

SETTINGS = {"epochs": 3, "lr": 0.05, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"precision": "fp16"}, "precision must be"), ({"compile": "yes"}, "compile must be True"), ({"graph": 3}, "graph must be")],
)
def test_modes_that_do_not_exist(settings, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Mode(**settings)


def test_what_is_decided_where_nothing_is_said():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not tw.Mode().compiles(cpu, 10**6)
    assert not tw.Mode().compiles(cuda, 100)
    assert tw.Mode().compiles(cuda, 10**6)
    assert not tw.Mode(compile=False).compiles(cuda, 10**6)
    assert tw.Mode().records(cuda)
    assert not tw.Mode(graph=False).records(cuda)
    assert tw.Mode("bf16").channels_last(cuda)
    assert not tw.Mode("bf16").channels_last(cpu)


def test_recording_needs_a_card_and_says_so_once():
    animal = ZOO["mlp"]
    with pytest.warns(tw.Slower, match="needs a CUDA card, and the network is on cpu") as heard:
        tw.fit(animal.module(1), animal.task, animal.batches(), mode=tw.Mode(graph=True), **SETTINGS)
    assert len(heard) == 1


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict", "two_inputs", "frozen"])
def test_compiled_steps_give_the_same_result(name, monkeypatch):
    """With the compiler's front end, which decides what is computed; its back end only decides how."""
    called = []

    def compiled():
        called.append(1)
        return torch.compile(engine._mean_loss, backend="eager", dynamic=False)

    monkeypatch.setattr(engine, "_compiled", compiled)
    animal, (a, b) = ZOO[name], ZOO[name].ends()
    for mode in (tw.Mode(compile=True), tw.Mode()):
        trained = tw.fit(animal.module(1), animal.task, animal.batches(), mode=mode, **SETTINGS)
        curve = tw.connect(animal.module(1), tw.Bezier(a, b), animal.task, animal.batches(), mode=mode, **SETTINGS)
        if mode.compile:
            first = trained, curve
    assert len(called) == 2
    assert torch.allclose(first[0].vector, trained.vector, rtol=1e-12, atol=1e-14)
    assert all(torch.allclose(x, y) for x, y in zip(first[0].buffers.values(), trained.buffers.values(), strict=True))
    assert torch.allclose(first[1].bends[0].vector, curve.bends[0].vector, rtol=1e-12, atol=1e-14)


def test_what_cannot_be_compiled_is_not_and_says_why(monkeypatch):
    def broken():
        raise RuntimeError("no such compiler\nand much more")

    monkeypatch.setattr(engine, "_compiled", broken)
    animal = ZOO["mlp"]
    with pytest.warns(tw.Slower, match="the network is not compiled: RuntimeError: no such compiler$") as heard:
        found = tw.fit(animal.module(1), animal.task, animal.batches(), mode=tw.Mode(compile=True), **SETTINGS)
    assert len(heard) == 1
    assert torch.equal(found.vector, tw.fit(animal.module(1), animal.task, animal.batches(), **SETTINGS).vector)


def test_bf16_keeps_float32_weights_and_stays_near_them():
    animal, found = ZOO["conv_bn"], []
    batches = [(x.float(), y) for x, y in animal.batches()]
    a, b = (tw.Weights.of(animal.module(seed).float()) for seed in (1, 2))
    for mode in (tw.Mode("bf16"), tw.Mode()):
        curve = tw.connect(animal.module(1).float(), tw.Bezier(a, b), animal.task, batches, mode=mode, **SETTINGS)
        scan = tw.scan(animal.module(1).float(), curve, animal.task, {"x": batches}, points=5, refresh=batches, mode=mode)
        found.append((curve.bends[0].vector, torch.tensor(scan.values["x"]["loss"])))
    assert found[0][0].dtype == torch.float32
    for reduced, plain in zip(*found, strict=True):
        assert torch.allclose(reduced, plain, rtol=0.05, atol=0.02)
        assert not torch.equal(reduced, plain)


def test_bf16_is_for_float32():
    animal = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="'bf16' is for networks with float32 weights; this one has torch"):
        tw.fit(animal.module(1), animal.task, animal.batches(), mode=tw.Mode("bf16"), **SETTINGS)


def test_gradients_parameter_by_parameter_are_the_flat_one():
    for name, animal in ZOO.items():
        probe = Probe(animal.module(1))
        values, _ = animal.task.losses(probe.module, animal.batches()[0])
        torch.manual_seed(0)
        probe.gather(probe.gradients(values.mean()))
        apart = probe.grad.clone()
        values, _ = animal.task.losses(probe.module, animal.batches()[0])
        if name == "dropout":
            continue  # another mask
        probe.backward(values.mean())
        assert torch.allclose(apart, probe.grad, rtol=1e-12)


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.last, self.shape, self.seen = 0, torch.zeros(1), (1, 2), []

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
        if what == "nothing":
            self.shape, self.count = (1, 2), 0


@pytest.mark.parametrize("what", ["count", "last", "shape", "seen", "random", "torch", "nothing"])
def test_what_a_recording_would_freeze_is_seen(what):
    module = nn.Sequential(Restless())
    before = replay._host_state(module)
    module(what)
    found = replay._difference(before, replay._host_state(module))
    if what == "nothing":
        assert found is None
    else:
        assert ("random numbers" in found) if what in ("random", "torch") else f"'0.{what}' changes" in found


def test_one_recording_serves_batches_of_one_form():
    x = torch.zeros(4, 3)
    forms = [x, x + 1, x[:2], x.double(), (x,), [x], {"a": x}, {"b": x}, x.T.contiguous().T, (x, "label"), (x, "other")]
    keys = [replay.form_of(batch) for batch in forms]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(forms) - 1


def test_without_a_card_work_is_simply_called():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work = replay.Replay(lambda batch: batch + 1, nn.Identity(), torch.device("cpu"), wanted=False)
        assert [work(k) for k in range(4)] == [1, 2, 3, 4]
