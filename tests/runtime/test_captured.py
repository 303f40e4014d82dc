"""A captured step does what a plain one does; with a stand-in for CUDA graphs that runs the captured work again."""

import sys
import warnings
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.batches import mapped, tensors_in
from thalweg.runtime import cuda_graphs, fused
from thalweg.runtime.accumulated import Accumulated, Parts
from thalweg.runtime.captured import Captured
from thalweg.runtime.cuda_graphs import _Graph
from thalweg.runtime.fused import adam_scales
from thalweg.training.arclength import ArclengthBends
from thalweg.training.loop import Settings
from thalweg.training.optimizers import parameter_optimizer
from thalweg.training.sgd import make_optimizer
from thalweg.training.step import Network, Step, UniformBends
from thalweg.weightspace.probe import Probe

RATES = [0.0625, 0.125, 0.03125, 0.0625, 0.25, 0.0625]  # exact in float32, in which a captured step reads them


@pytest.fixture
def replays(monkeypatch):
    """How often a stand-in for a graph was replayed."""
    capturing, count = [], []

    def capture(form, work, batch, pool):
        form.work, form.batch, form.graph = work, mapped(batch, torch.clone), True
        form.inputs = tensors_in(form.batch)

    def replay(form, batch):
        for fixed, tensor in zip(form.inputs, tensors_in(batch), strict=True):
            fixed.copy_(tensor)
        count.append(1)
        capturing.append(1)
        try:
            return form.work(form.batch)
        finally:
            capturing.pop()

    class Generator:
        def clone_state(self):
            return None

    monkeypatch.setattr(_Graph, "capture", capture)
    monkeypatch.setattr(_Graph, "replay", replay)
    monkeypatch.setattr(fused, "kernels", lambda: None)
    noted = cuda_graphs._noted  # on a GPU, tensors of the network may change
    monkeypatch.setattr(
        cuda_graphs, "_noted", lambda value, key: (None, None) if torch.is_tensor(value) else noted(value, key)
    )
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, stand_in in {
        "graph_pool_handle": object,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda level: None,
        "is_current_stream_capturing": lambda: bool(capturing),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "default_generators", [Generator()])
    for name in ("adam", "rmsprop"):
        monkeypatch.setattr(sys.modules[f"torch.optim.{name}"], "_get_capturable_supported_devices", lambda: ["cpu"])
    return count


def trainable(kind, case):
    a, b = case.ends()
    if kind == "network":
        found = Network(Probe(case.module(1)))
    else:
        bends = ArclengthBends if kind == "arclength" else UniformBends
        found = bends(Probe(case.module(1), a), tw.Bezier(a, b, 1 if kind == "one bend" else 2), 3)
    found.probe.module.train()
    return found


def made(moving, optimizer):
    """The default optimizer, or the user's."""
    settings = Settings(1, 0.1, 0.9, 0.0, None, optimizer, None, 0)
    return parameter_optimizer(moving, settings) if optimizer else make_optimizer(moving.vectors, 0.9)


def trained(wrap, kind, case, optimizer=None, clip=None):
    """The vectors and losses of a few steps on batches of one size, and what was wrapped."""
    moving = trainable(kind, case)
    step = Step(moving, case.task, made(moving, optimizer), 0.01, clip)
    call = wrap(step)
    torch.manual_seed(0)
    losses = [float(call(case.batches()[0], lr)) for lr in RATES]
    return torch.stack(moving.vectors).clone(), losses, call


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("kind", ["network", "one bend", "uniform", "arclength"])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "frozen", "tied_lstm"])
def test_captured_steps_are_plain_steps(name, kind, clip, replays):
    plain, before, _ = trained(lambda step: step, kind, ZOO[name], clip=clip)
    fast, after, call = trained(Captured, kind, ZOO[name], clip=clip)
    assert call.replay.active
    assert len(replays) == len(RATES) - 2  # the first two run as they are
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-13)
    assert after == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize("kind", ["network", "one bend", "uniform", "arclength"])
def test_captured_steps_accumulate(kind, replays):
    def accumulating(wrap):
        moving, case = trainable(kind, ZOO["mlp"]), ZOO["mlp"]
        step = Step(moving, case.task, made(moving, None), 0.01, 0.1)
        Accumulated(step)
        call, parts = wrap(step), Parts(case.batches())
        return [float(call(parts, lr)) for lr in RATES], torch.stack(moving.vectors).clone()

    (before, plain), (after, fast) = accumulating(lambda step: step), accumulating(Captured)
    assert len(replays) == len(RATES) - 2
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-13)
    assert after == pytest.approx(before, rel=1e-12)


class Update:
    """What `kernels.Update` does, in torch."""

    def __init__(self, vectors, momenta, numbers, momentum, decay, sizes):
        self.vectors, self.momenta, self.numbers, self.momentum, self.decay, self.sizes = (
            vectors,
            momenta,
            numbers,
            momentum,
            decay,
            sizes,
        )
        self.settled = self.called = 0

    def __call__(self, gradients, point):
        self.called += 1
        flat = torch.cat(
            [torch.zeros(n) if g is None else g.reshape(-1) for g, n in zip(gradients, self.sizes, strict=True)]
        )
        slope, bent = flat + self.decay * point, self.vectors.data_ptr() != point.data_ptr()
        for i, (vector, momentum) in enumerate(zip(self.vectors, self.momenta, strict=True)):
            momentum.mul_(self.momentum).add_(slope * float(self.numbers[2 + i]) if bent else slope)
            vector.sub_(momentum, alpha=float(self.numbers[0]))

    def settle(self):
        self.settled += 1


class AdamUpdate:
    """What `kernels.AdamUpdate` does, in torch."""

    def __init__(self, vectors, state, controls, settings, penalty, decoupled, sizes):
        self.vectors, (self.means, self.squares, self.steps), self.controls = vectors, state, controls
        self.settings, self.penalty, self.decoupled, self.sizes = settings, penalty, decoupled, sizes
        self.settled = self.called = 0

    def __call__(self, gradients, point):
        self.called += 1
        self.steps += torch.tensor([float(g is not None) for g in gradients])
        scales, bent = adam_scales(self.steps, self.settings, self.controls[0]), len(self.controls) > 1
        where = zip(*(block.split(self.sizes, 1) for block in (self.vectors, self.means, self.squares)), strict=True)
        phi = point.clone().split(self.sizes)
        for k, (gradient, both) in enumerate(zip(gradients, where, strict=True)):
            for i, (vector, mean, square) in enumerate(zip(*both, strict=True) if gradient is not None else ()):
                _, first, second, eps, decay = self.settings[i, k].tolist()
                size, root, decoupled = scales[i, k]
                slope = (gradient.reshape(-1) + self.penalty * phi[k]) * (float(self.controls[2 + i]) if bent else 1)
                slope = slope if self.decoupled else slope + decay * vector
                mean.lerp_(slope, 1 - first)
                square.mul_(second).addcmul_(slope, slope, value=1 - second)
                vector.mul_(1 - decoupled if self.decoupled else 1).sub_(size * mean / (square.sqrt() * root + eps))

    def settle(self):
        self.settled += 1


def in_groups(kind, **settings):
    """Matrices with weight decay, and the others without, at half the rate."""
    return lambda named: kind(
        [
            {"params": [tensor for _, tensor in named if tensor.ndim > 1]},
            {"params": [tensor for _, tensor in named if tensor.ndim < 2], "weight_decay": 0.0, "lr": 0.05},
        ],
        lr=0.1,
        **settings,
    )


OPTIMIZERS = {
    "default": None,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": partial(torch.optim.Adam, weight_decay=0.1),
    "adamw": torch.optim.AdamW,
    "groups": in_groups(torch.optim.AdamW, weight_decay=0.2),
}


@pytest.mark.parametrize("optimizer", ["nesterov", "adamw", "rmsprop", "groups", "sgd in groups"])
@pytest.mark.parametrize("kind", ["network", "uniform"])
def test_captured_steps_with_the_users_optimizer_are_plain_steps(kind, optimizer, replays):
    chosen = {
        "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        "rmsprop": torch.optim.RMSprop,
        "sgd in groups": in_groups(torch.optim.SGD, momentum=0.5),
    }.get(optimizer) or OPTIMIZERS[optimizer]
    plain, before, _ = trained(lambda step: step, kind, ZOO["mlp"], chosen)
    fast, after, call = trained(Captured, kind, ZOO["mlp"], chosen)
    assert (call.replay.active, len(replays)) == (True, len(RATES) - 2)
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5)  # torch's corrections of a captured Adam are in float32
    assert after == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["network", "uniform"])
def test_captured_fused_update_gets_what_it_needs(kind, optimizer, replays, monkeypatch):
    def single(wrap):
        torch.manual_seed(0)
        module, other = (
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)) for _ in range(2)
        )
        batch = torch.randn(16, 4), torch.randint(3, (16,))
        a, b = tw.Weights.of(module), tw.Weights.of(other)
        moving = Network(Probe(module)) if kind == "network" else UniformBends(Probe(module, a), tw.Bezier(a, b, 2), 3)
        own = made(moving, OPTIMIZERS[optimizer])
        call = wrap(Step(moving, tw.classification(), own, 0.01 if optimizer in ("default", "sgd") else 0.0))
        for lr in RATES:
            call(batch, lr)
        return torch.stack(moving.vectors).clone(), call

    plain, _ = single(lambda step: step)
    monkeypatch.setattr(fused, "kernels", lambda: SimpleNamespace(Update=Update, AdamUpdate=AdamUpdate))
    fast, call = single(Captured)
    assert (call.fused.called, call.fused.settled) == (len(RATES) - 2, 1)
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5)


class Routed(torch.nn.Module):
    """Each batch goes through one of two layers, and none through the third."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        return self.layers[len(x) % 2](x)


@pytest.mark.parametrize("kind", ["network", "uniform"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kernels", [False, True])
def test_captured_steps_leave_parameters_without_gradient_alone(kernels, optimizer, kind, replays, monkeypatch):
    def routed(wrap):
        torch.manual_seed(0)
        module, a, b = Routed(), *(tw.Weights.of(Routed()) for _ in range(2))
        batches = {n: (torch.randn(n, 4), torch.randint(3, (n,))) for n in (4, 5)}
        moving = Network(Probe(module)) if kind == "network" else UniformBends(Probe(module, a), tw.Bezier(a, b, 2), 3)
        call = wrap(Step(moving, tw.classification(), made(moving, OPTIMIZERS[optimizer])))
        for n in (4, 4, 4, 5, 5, 5, 4, 4, 4, 5, 5, 4, 5, 4):
            call(batches[n], 0.0625)
        return torch.stack(moving.vectors).clone()

    plain = routed(lambda step: step)
    if kernels:
        monkeypatch.setattr(fused, "kernels", lambda: SimpleNamespace(Update=Update, AdamUpdate=AdamUpdate))
    torch.testing.assert_close(routed(Captured), plain, rtol=0, atol=2e-5)
    assert len(replays) >= 5


def test_step_that_draws_on_the_cpu_is_not_captured(replays):
    case = ZOO["mlp"]

    def noisy(outputs, targets):
        torch.rand(())
        return case.task.loss(outputs, targets)

    moving = trainable("network", case)
    call = Captured(Step(moving, tw.Task(noisy), make_optimizer(moving.vectors, 0.9)))
    batch = case.batches()[0]
    call(batch, 0.1)
    with pytest.warns(tw.SlowPathWarning, match="draws random numbers on the CPU"):
        call(batch, 0.1)
    call(batch, 0.1)
    assert not replays
    assert not call.replay.active


def test_step_that_waits_is_not_captured_and_its_line_is_named(replays):
    def waiting(outputs, targets):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return ZOO["mlp"].task.loss(outputs, targets)

    moving = trainable("network", ZOO["mlp"])
    call = Captured(Step(moving, tw.Task(waiting), make_optimizer(moving.vectors, 0.9)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        call(ZOO["mlp"].batches()[0], 0.1)
    with pytest.warns(
        tw.SlowPathWarning, match=r"test_captured\.py, line \d+: 'warnings\.warn.*keep the value in a tens"
    ):
        call(ZOO["mlp"].batches()[0], 0.1)
    assert not call.replay.active


def test_network_with_hooks_on_its_parameters_is_not_captured(replays):
    """They would run only while a step is captured."""

    def hooked(wrap):
        torch.manual_seed(0)
        module, calls = torch.nn.Linear(4, 3).double(), []
        module.weight.register_hook(lambda gradient: calls.append(1) or 2 * gradient)
        moving = Network(Probe(module))
        call = wrap(Step(moving, tw.classification(), make_optimizer(moving.vectors, 0.9), 0.01))
        for lr in RATES:
            call((torch.ones(5, 4).double(), torch.tensor([0, 1, 2, 0, 1])), lr)
        return moving.vectors[0].clone(), len(calls)

    plain = hooked(lambda step: step)
    with pytest.warns(tw.SlowPathWarning, match="parameters have hooks"):
        found = hooked(Captured)
    assert not replays
    assert torch.equal(found[0], plain[0])
    assert found[1] == plain[1] == len(RATES)


def test_closed_replay_frees_its_graphs(replays):
    moving = trainable("network", ZOO["mlp"])
    call = Captured(Step(moving, ZOO["mlp"].task, make_optimizer(moving.vectors, 0.9)))
    for lr in RATES:
        call(ZOO["mlp"].batches()[0], lr)
    [form] = map(weakref.ref, call.replay.graphs.values())
    assert form().graph is not None
    call.replay.close()
    assert form() is None


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict", "tied_lstm"])
def test_captured_scans_are_plain_scans(name, replays, monkeypatch):
    case = ZOO[name]
    settings = {"points": 5, "weight_decay": 0.01, "bn_batches": case.batches(), "progress": False}

    def scan():
        data = {"train": case.batches() * 3, "test": case.batches()[:1] * 4}
        return tw.scan(case.module(1), tw.Segment(*case.ends()), case.task, data, **settings)

    plain = scan()
    assert not replays
    monkeypatch.setattr(tw.Compute, "captures", lambda compute, device: True)
    fast = scan()
    assert replays
    for data, entry in plain.values.items():
        for quantity, values in entry.items():
            assert fast.values[data][quantity].tolist() == pytest.approx(values.tolist(), rel=1e-12), (data, quantity)
