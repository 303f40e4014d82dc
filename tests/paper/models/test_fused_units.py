"""Residual units computed by our own kernels, and when they are not."""

import os
import subprocess
import sys
import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import thalweg as tw
from thalweg import models
from thalweg.paper.models import fusable, fused_units, residual
from thalweg.weightspace.batchnorm import StatisticsHook
from thalweg.weightspace.probe import Probe
from thalweg.weightspace.proof import compare
from thalweg.weightspace.watch import watched

NETWORKS = [models.preresnet164, models.resnet_bottleneck164, models.resnet158]


@pytest.mark.parametrize("programs", [3, 264])
def test_kernels_compute_what_the_modules_do_in_float64(programs):
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_units.py")
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    quiet = "-W", "error", "-W", "ignore::RuntimeWarning"  # numpy's, of the NaN in one of the tests
    command = [sys.executable, *quiet, script, str(programs)]
    done = subprocess.run(command, env=interpreted, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class OnGpu:
    """A tensor as far as `applicable` looks at it."""

    is_cuda, dtype, shape = True, torch.bfloat16, torch.Size((2, 256, 8, 8))

    def numel(self):
        return self.shape.numel()


@pytest.fixture
def units(monkeypatch):
    monkeypatch.setattr("thalweg.runtime.fused.kernels", object)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
    return [part for part in models.preresnet(38) if residual._keeps_shape(part)][-3:]


def test_kernels_are_used_for_units_that_are_what_they_were_made(units):
    assert fusable.applicable(units, OnGpu())


def attach(part):
    part.register_forward_hook(lambda *_: None)


def prune_by_hand(unit):
    """To a width that is no power of two."""
    unit.conv1, unit.norm2 = nn.Conv2d(256, 24, 1, bias=False), nn.BatchNorm2d(24)
    unit.conv2, unit.norm3 = nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
    unit.conv3 = nn.Conv2d(24, 256, 1, bias=False)


OTHERWISE = {
    "hook": lambda unit: attach(unit.conv2),
    "hook of a batch norm": lambda unit: attach(unit.norm2),
    "hook of the unit": attach,
    "gradient hook": lambda unit: unit.register_full_backward_hook(lambda *_: None),
    "another forward": lambda unit: setattr(unit, "forward", unit.forward),
    "another layer": lambda unit: setattr(unit, "norm1", nn.SyncBatchNorm(unit.norm1.num_features)),
    "parametrization": lambda unit: nn.utils.parametrizations.weight_norm(unit.conv1),
    "another dtype": lambda unit: unit.conv3.double(),
    "eval mode": lambda unit: unit.eval(),
    "one in eval mode": lambda unit: unit.norm3.eval(),
    "cumulative statistics": lambda unit: setattr(unit.norm3, "momentum", None),
    "dilation": lambda unit: setattr(unit.conv2, "dilation", (2, 2)),
    "bias": lambda unit: setattr(unit.conv2, "bias", nn.Parameter(torch.zeros(64))),
    "other slope": lambda unit: setattr(unit, "leak", 0.1),
    "the active input added": lambda unit: setattr(unit, "shared", True),
    "statistics not tracked": lambda unit: setattr(unit.norm2, "track_running_stats", False),
    "no gain": lambda unit: setattr(unit.norm2, "weight", None),
    "gain in a column": lambda unit: setattr(unit.norm2, "weight", nn.Parameter(torch.ones(64, 2)[:, 0])),
    "mean in a column": lambda unit: setattr(unit.norm2, "running_mean", torch.ones(64, 2)[:, 0]),
    "weights of another shape": lambda unit: setattr(unit.conv2, "weight", nn.Parameter(torch.ones(64, 64, 1, 1))),
    "a batch norm twice": lambda unit: setattr(unit, "norm3", unit.norm2),
    "pruned": prune_by_hand,
    "another width": lambda unit: setattr(unit, "conv2", nn.Conv2d(64, 32, 3, padding=1, bias=False)),
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_kernels_are_not_used_for_units_that_were_changed(units, change):
    OTHERWISE[change](units[-1])
    assert not fusable.applicable(units, OnGpu())


@pytest.mark.parametrize("shape", [(2, 128, 8, 8), (1, 256, 1, 1)])
def test_kernels_are_not_used_for_inputs_that_the_modules_refuse(units, shape, monkeypatch):
    monkeypatch.setattr(OnGpu, "shape", torch.Size(shape))
    assert not fusable.applicable(units, OnGpu())


def test_kernels_are_not_used_for_units_that_are_the_same(units):
    """A pass for statistics would see its batch norms once."""
    assert not fusable.applicable([units[0], units[0]], OnGpu())


def test_kernels_are_not_used_in_another_precision(units, monkeypatch):
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.float16)
    assert not fusable.applicable(units, OnGpu())


def hooked_everywhere():
    return nn.modules.module.register_module_forward_pre_hook(lambda *_: None)


def count_operations():
    return FlopCounterMode(display=False)


@pytest.mark.parametrize("around", [hooked_everywhere, count_operations, BaseTorchDispatchMode, forward_ad.dual_level])
def test_kernels_are_not_used_where_operations_are_followed(units, around):
    with around():
        assert not fusable.applicable(units, OnGpu())
    assert fusable.applicable(units, OnGpu())


def test_kernels_are_not_used_in_transforms(units):
    seen = []
    torch.func.vmap(lambda x: seen.append(fusable.applicable(units, OnGpu())) or x)(torch.ones(2))
    assert seen == [False]


def test_passes_that_are_observed_see_what_units_are_made_of(monkeypatch):
    network = models.preresnet20()
    monkeypatch.setattr(fusable, "applicable", lambda *_: not fusable._operations_matter())
    probe = Probe(network.eval())
    watch, _ = watched(probe, lambda: probe.module(torch.randn(2, 3, 8, 8)), seed=0)
    assert watch is not None
    assert watch.made_of == 2 ** len(probe.moving) - 1
    compare(probe, watch)


@pytest.mark.parametrize("make", [partial(models.preresnet, 11), models.preresnet20])
def test_symbolic_trace(make):
    network, x = make().eval(), torch.randn(2, 3, 8, 8)
    assert torch.equal(torch.fx.symbolic_trace(network)(x), network(x))


class Skipping(residual.Bottleneck):
    def forward(self, x):
        return x


def test_units_of_other_classes_or_with_other_shortcuts_are_called(units):
    assert len(units) == 3
    assert not residual._keeps_shape(Skipping(64, 16, 1, False))
    units[0].shortcut = nn.Dropout()
    assert not residual._keeps_shape(units[0])


def test_kernels_are_used_in_a_pass_for_statistics_in_spite_of_its_hooks(units):
    norms = [norm for unit in units for norm, _ in unit.layers]
    for norm in norms:
        norm.register_forward_hook(StatisticsHook(lambda *_: None), with_kwargs=True)
    assert not fusable.applicable(units, OnGpu())
    with torch.no_grad():
        assert fusable.applicable(units, OnGpu())
        norms[0].momentum = 1.0
        attach(norms[0])  # of the user, which may change what the batch norm gives
        assert not fusable.applicable(units, OnGpu())


def test_kernels_are_not_used_where_results_must_be_deterministic(units, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not fusable.applicable(units, OnGpu())


@pytest.mark.parametrize("make", NETWORKS)
def test_network_is_the_modules_one_after_another(make):
    torch.manual_seed(0)
    network, x = make(), torch.randn(2, 3, 8, 8)
    inner = x
    for part in network.eval():
        inner = part(inner)
    assert torch.equal(network(x), inner)


def plainly(network, x):
    for part in network:
        x = part(x)
    return x


def results(network, x, y, forward):
    """Logits and gradients, and buffers after a step in training mode."""
    logits = forward(x)
    found = torch.autograd.grad(F.cross_entropy(logits.to(x.dtype), y), [*network.parameters()])
    return (
        logits.detach(),
        torch.cat([g.reshape(-1) for g in found]),
        torch.cat([b.reshape(-1) for b in network.buffers()]),
    )


def distance(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture
def calls(monkeypatch):
    """Of the kernels."""
    seen, computed = [], fused_units.computed
    monkeypatch.setattr(fused_units, "computed", lambda *given: seen.append(1) or computed(*given))
    return seen


def cast(network, call):
    def forward(x):
        with torch.autocast("cuda", torch.bfloat16):
            return call(network, x)

    return forward


@pytest.mark.gpu
@pytest.mark.parametrize("make", NETWORKS)
def test_kernels_are_as_exact_as_the_modules(make, calls):
    torch.manual_seed(0)
    network = make(classes=100).cuda().to(memory_format=torch.channels_last)
    for norm in (part for part in network.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.2)
    x, y = torch.randn(64, 3, 32, 32).cuda(), torch.randint(100, (64,)).cuda()
    other, reference = deepcopy(network), deepcopy(network).double()
    expected = results(reference, x.double(), y, reference)
    ours = results(network, x, y, cast(network, lambda network, x: network(x)))
    theirs = results(other, x, y, cast(other, plainly))
    assert len(calls) == 3
    for found, usual, exact in zip(ours, theirs, expected, strict=True):
        assert distance(found, exact) < 1.2 * distance(usual, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("make", NETWORKS)
def test_training_curves_and_scans_with_kernels_are_as_without(make, calls, monkeypatch):
    """Three steps after each other, captured from the third, with batch-norm statistics and measurements."""
    torch.manual_seed(0)
    images, labels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (64,))
    batches = tw.data.DeviceBatches(images, labels, 16, shuffle=True, device="cuda")
    task, bf16 = tw.classification(), tw.Compute("bf16", compile=False)

    def run():
        torch.manual_seed(1)
        module = make(classes=10).cuda()
        ends = [tw.fit(module, task, batches, epochs=1, lr=0.01, seed=seed, compute=bf16) for seed in (0, 1)]
        curve = tw.connect(module, tw.Bezier(*ends), task, batches, epochs=2, lr=0.01, compute=bf16)
        scan = tw.scan(module, curve, task, {"train": batches}, points=3, bn_batches=batches, compute=bf16)
        return [*(end.vector for end in ends), torch.tensor(scan.values["train"]["loss"])]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = run()
        assert calls
        monkeypatch.setattr(fusable, "applicable", lambda *_: False)
        for found, expected in zip(ours, run(), strict=True):
            assert distance(found, expected.double()) < 0.02
