"""Ways of computing: what they mean, what they refuse, and that the result is the same."""

import os
import random
import signal
import warnings

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.runtime import compiled as compiled_step
from thalweg.training.step import mean_loss
from thalweg.weightspace.batchnorm import counted_at_once

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
def test_compute_refuses_unknown_modes(settings, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Compute(**settings)


def test_networks_with_kernels_of_their_own_are_not_compiled_by_default_in_bf16():
    cuda, network = torch.device("cuda"), torch.nn.Sequential(tw.models.preresnet20())
    assert not tw.Compute("bf16").compiles(cuda, 10**6, network)
    assert tw.Compute("fp32").compiles(cuda, 10**6, network)
    assert tw.Compute("bf16", compile=True).compiles(cuda, 10, network)
    assert tw.Compute("bf16").compiles(cuda, 10**6, tw.models.vgg16())


def test_compute_defaults():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    network = torch.nn.Linear(1, 1)
    assert not tw.Compute().compiles(cpu, 10**6, network)
    assert not tw.Compute().compiles(cuda, 100, network)
    assert tw.Compute().compiles(cuda, 10**6, network)
    assert not tw.Compute(compile=False).compiles(cuda, 10**6, network)
    assert tw.Compute().captures(cuda)
    assert not tw.Compute(graph=False).captures(cuda)
    assert tw.Compute("bf16").channels_last(cuda)
    assert not tw.Compute("bf16").channels_last(cpu)


def test_capture_needs_a_gpu_and_warns_once():
    case = ZOO["mlp"]
    with pytest.warns(tw.SlowPathWarning, match="needs a CUDA GPU, and the network is on cpu") as heard:
        tw.fit(case.module(1), case.task, case.batches(), compute=tw.Compute(graph=True), **SETTINGS)
    assert len(heard) == 1


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict", "two_inputs", "frozen"])
def test_compiled_steps_give_the_same_result(name, monkeypatch):
    """With the compiler's front end, which decides what is computed; its back end only decides how."""
    called = []

    def compiled():
        called.append(1)
        return torch.compile(mean_loss, backend="eager", dynamic=False)

    monkeypatch.setattr(compiled_step, "_compiled", compiled)
    case, (a, b) = ZOO[name], ZOO[name].ends()
    for compute in (tw.Compute(compile=True), tw.Compute()):
        trained = tw.fit(case.module(1), case.task, case.batches(), compute=compute, **SETTINGS)
        curve = tw.connect(case.module(1), tw.Bezier(a, b), case.task, case.batches(), compute=compute, **SETTINGS)
        if compute.compile:
            first = trained, curve
    assert len(called) == 2
    assert torch.allclose(first[0].vector, trained.vector, rtol=1e-12, atol=1e-14)
    assert all(torch.allclose(x, y) for x, y in zip(first[0].buffers.values(), trained.buffers.values(), strict=True))
    assert torch.allclose(first[1].bends[0].vector, curve.bends[0].vector, rtol=1e-12, atol=1e-14)


def test_compile_failure_falls_back_to_eager_and_says_why(monkeypatch):
    def broken():
        raise RuntimeError("no such compiler\nand much more")

    monkeypatch.setattr(compiled_step, "_compiled", broken)
    case = ZOO["mlp"]
    with pytest.warns(
        tw.SlowPathWarning, match="the network is not compiled: RuntimeError: no such compiler$"
    ) as heard:
        found = tw.fit(case.module(1), case.task, case.batches(), compute=tw.Compute(compile=True), **SETTINGS)
    assert len(heard) == 1
    assert torch.equal(found.vector, tw.fit(case.module(1), case.task, case.batches(), **SETTINGS).vector)


def test_bf16_keeps_float32_weights_and_stays_near_them():
    case, found = ZOO["conv_bn"], []
    batches = [(x.float(), y) for x, y in case.batches()]
    a, b = (tw.Weights.of(case.module(seed).float()) for seed in (1, 2))
    for compute in (tw.Compute("bf16"), tw.Compute()):
        curve = tw.connect(case.module(1).float(), tw.Bezier(a, b), case.task, batches, compute=compute, **SETTINGS)
        scan = tw.scan(
            case.module(1).float(), curve, case.task, {"x": batches}, points=5, bn_batches=batches, compute=compute
        )
        found.append((curve.bends[0].vector, torch.tensor(scan.values["x"]["loss"])))
    assert found[0][0].dtype == torch.float32
    for reduced, plain in zip(*found, strict=True):
        assert torch.allclose(reduced, plain, rtol=0.05, atol=0.02)
        assert not torch.equal(reduced, plain)


def test_bf16_is_for_float32():
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="'bf16' is for networks with float32 weights; this one has torch"):
        tw.fit(case.module(1), case.task, case.batches(), compute=tw.Compute("bf16"), **SETTINGS)


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
def test_failed_compile_leaves_no_trace(works, monkeypatch):
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


def test_resume_restores_an_optimizers_plain_numbers(tmp_path):
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

    case = ZOO["mlp"]
    settings = {**SETTINGS, "optimizer": lambda vectors: Counting(vectors, lr=0.0)}
    with pytest.raises(Stopped):
        tw.fit(case.module(1), case.task, Deadly(case.batches()), run=tmp_path, **settings)
    found = tw.fit(case.module(1), case.task, case.batches(), run=tmp_path, **settings)
    assert torch.equal(found.vector, tw.fit(case.module(1), case.task, case.batches(), **settings).vector)


def test_batch_norm_counters_are_incremented_at_once():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3).eval())
    with counted_at_once(module):
        module(torch.randn(5, 3))
    assert [int(layer.num_batches_tracked) for layer in module] == [1, 1, 0]
