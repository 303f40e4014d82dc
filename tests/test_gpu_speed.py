"""On a CUDA GPU: captured, compiled and reduced-precision steps against plain ones. Run with `pytest -m gpu`."""

import random
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.runtime.accelerated import Accelerated
from thalweg.runtime.compute import Compute, Context
from thalweg.runtime.cuda_graphs import _Graph
from thalweg.runtime.streams import on_side_stream
from thalweg.training.arclength import ArclengthBends
from thalweg.training.sgd import make_optimizer
from thalweg.training.step import Network, Step, UniformBends
from thalweg.weightspace.probe import Probe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
EAGER = Compute(graph=False, compile=False)
CUDA = torch.device("cuda", 0)
MODES = {
    "captured": Compute(graph=True, compile=False),
    "compiled": Compute(graph=True, compile=True),
    "bf16": Compute("bf16", graph=True, compile=False),
    "bf16 compiled": Compute("bf16", graph=True, compile=True),
}
TOLERANCE = {"captured": 1e-5, "compiled": 1e-3, "bf16": 2e-2, "bf16 compiled": 2e-2}


@pytest.fixture
def replays(monkeypatch):
    """One entry for each step that was replayed: results alone would also agree if nothing were ever captured."""
    count, inner = [], _Graph.replay

    def counted(form, batch):
        count.append(form)
        return inner(form, batch)

    monkeypatch.setattr(_Graph, "replay", counted)
    return count


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


NETWORKS = {"vgg16": tw.models.vgg16, "preresnet": lambda: tw.models.preresnet(20), "mlp": mlp}


def network(name, dropout=False, seed=0):
    torch.manual_seed(seed)
    module = NETWORKS[name]()
    for part in module.modules():
        if isinstance(part, nn.Dropout) and not dropout:
            part.p = 0.0
    return module.cuda()


def patterns(count, batch=128, seed=0, strength=0.3):
    """Images of ten classes that can be told apart, but not at once."""
    g = torch.Generator().manual_seed(seed)
    means = nn.functional.interpolate(torch.randn(10, 3, 4, 4, generator=g), size=32)
    labels = [torch.randint(10, (batch,), generator=g) for _ in range(count)]
    return [(strength * means[y] + torch.randn(batch, 3, 32, 32, generator=g), y) for y in labels]


def trainable(kind, name, compute):
    module = network(name)
    if kind == "plain":
        return Network(Probe(module, None, compute))
    a, b = (tw.Weights.of(network(name, seed=seed)).bare() for seed in (0, 1))
    return (UniformBends if kind == "curve" else ArclengthBends)(Probe(module, a, compute), tw.Bezier(a, b), 3)


def accelerated(moving, compute, decay, make_batch=lambda drawn: drawn):
    optimizer = make_optimizer(moving.vectors, 0.9)
    return Accelerated(Step(moving, tw.classification(), optimizer, decay, None, make_batch), Context(), compute)


def gradient(kind, name, compute):
    """The gradient of the fifth step, at a rate of 0: what a momentum that was cleared before it holds after it. All
    labels are one, so that the gradients of examples add up; where they cancel, what is left is mostly rounding in any
    precision.
    """
    moving = trainable(kind, name, compute)
    moving.probe.module.train()
    step = accelerated(moving, compute, 5e-4)
    batches = [(x.cuda(), torch.ones_like(y).cuda()) for x, y in patterns(5)]
    with on_side_stream(CUDA):
        for k, batch in enumerate(batches):
            if k == 4:
                for state in step.plain.optimizer.state.values():
                    state["momentum_buffer"].zero_()
            step(batch, 0.0)
    assert (step.captured is not None) == compute.graph
    assert not compute.graph or step.captured.replay.active
    assert not compute.graph or all(form.graph is not None for form in step.captured.replay.graphs.values())
    assert (step.compiled is not None and step.compiled.function is not None) == compute.compile
    memory = [moving.probe.to_layout_order(step.plain.optimizer.state[v]["momentum_buffer"]) for v in moving.vectors]
    return torch.stack(memory)


@pytest.mark.parametrize("way", MODES)
@pytest.mark.parametrize("kind", ["plain", "curve", "arclength"])
@pytest.mark.parametrize("name", ["vgg16", "preresnet"])
def test_captured_gradients_are_those_of_an_eager_step(name, kind, way):
    """Tensor cores round differently in every kernel, so convolutions do not use them where 1e-5 is required."""
    if kind == "arclength" and "compiled" in way:
        pytest.skip("the same as without")
    compute, before = MODES[way], torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        fast, eager, exact = (
            gradient(kind, name, m) for m in (compute, replace(EAGER, precision=compute.precision), EAGER)
        )
    finally:
        torch.backends.cudnn.allow_tf32 = before
    off, beside = (float((fast - other).norm() / other.norm()) for other in (eager, exact))
    print(f"{name} {kind} {way}: gradient off by {off:.1e} from the eager one, by {beside:.1e} from that in float32")
    assert off < TOLERANCE[way]
    assert beside < 10 * TOLERANCE[way]
    assert exact.norm() > 1e-3


@pytest.mark.parametrize("way", MODES)
@pytest.mark.parametrize(("name", "strength", "lr"), [("mlp", 0.1, 0.002), ("preresnet", 0.2, 0.01)])
def test_captured_training_is_eager_training(name, strength, lr, way):
    batches, found = patterns(25, strength=strength), []
    for compute in (EAGER, MODES[way]):
        trace, moving = [], Network(Probe(network(name), None, compute))
        moving.probe.module.train()
        step = accelerated(moving, compute, 5e-4)
        with on_side_stream(CUDA):
            for k in range(200):
                trace.append(step(tuple(t.cuda() for t in batches[k % 25]), lr))
        found.append(float(torch.stack(trace[150:]).mean()))
    assert 0.1 < found[0] < 2.2  # of 2.3 at the start
    print(f"{name} {way}: mean loss of steps 150 to 200: {found[0]:.4f} and {found[1]:.4f}")
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_draws_a_new_mask_in_every_replay(compiled):
    compute = Compute(graph=True, compile=compiled)
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)).cuda()
    moving = Network(Probe(module, None, compute))
    moving.probe.module.train()
    step = accelerated(moving, compute, 0.0)
    batch = torch.randn(32, 64, device="cuda"), torch.randint(10, (32,), device="cuda")
    with on_side_stream(CUDA):
        losses = [float(step(batch, 0.0)) for _ in range(12)]
    assert step.captured.replay.active
    assert len(set(losses[3:])) == 9


def test_captured_steps_do_not_wait_for_the_gpu():
    compute = Compute("bf16", graph=True, compile=False)
    train = images(256, 32, shuffle=True, crop=4, flip=True)
    for moving in (
        trainable("plain", "preresnet", compute),
        trainable("curve", "preresnet", compute),
        trainable("arclength", "preresnet", compute),
    ):
        moving.probe.module.train()
        step = accelerated(moving, compute, 5e-4, train.make_batch)
        with on_side_stream(CUDA):
            for drawn in train.draws():
                step(drawn, 0.01)
            torch.cuda.set_sync_debug_mode("error")
            try:
                losses = [step(drawn, 0.01) for drawn in train.draws()]
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert step.captured.replay.active
        assert torch.stack(losses).isfinite().all()


class Noisy(nn.Module):
    """Everything that a capture would freeze, one thing at a time."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.what, self.calls, self.last = nn.Linear(4, 3), what, 0, None
        self.story = []

    def forward(self, x):
        y = self.linear(x)
        if self.what == "waits":
            y = y * (1 + float(y.detach().sum()) * 0)
        if self.what == "random":
            y = y * random.random()
        if self.what == "numpy":
            y = y * float(np.random.rand())
        if self.what == "torch":
            y = y * torch.rand(()).item()
        if self.what == "counts":
            self.calls += 1
        if self.what == "keeps":
            self.last = y.detach()
        if self.what == "collects":
            self.story.append(1)
        return y


REASONS = {
    "waits": r"synchronizes with the GPU \(.*test_gpu_speed.py, line",
    "random": "draws random numbers on the CPU",
    "numpy": "draws random numbers on the CPU",
    "torch": "draws random numbers on the CPU",
    "counts": "attribute 'calls' changes",
    "keeps": "attribute 'last' changes",
    "collects": "attribute 'story' changes",
    "hooks": "has hooks",
}


@pytest.mark.parametrize("what", REASONS)
def test_capture_failure_falls_back_to_eager_and_says_why(what):
    g = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 4, generator=g), torch.randint(3, (8,), generator=g)) for _ in range(6)]
    torch.manual_seed(0)
    module = Noisy(what).cuda()
    if what == "hooks":
        module.linear.register_forward_hook(lambda *_: None)
    with pytest.warns(tw.SlowPathWarning, match=REASONS[what]) as heard:
        found = tw.fit(module, tw.classification(), batches, epochs=4, lr=0.1)
    assert len(heard) == 1
    plain = tw.fit(module, tw.classification(), batches, epochs=4, lr=0.1, compute=EAGER)
    assert torch.allclose(found.vector, plain.vector, rtol=1e-5, atol=1e-7)


def test_compile_failure_falls_back_to_eager_and_says_why(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such compiler\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("thalweg.runtime.compiled._compiled", lambda: torch.compile())
    case = ZOO["mlp"]
    with pytest.warns(tw.SlowPathWarning, match="not compiled: RuntimeError: no such compiler"):
        tw.fit(case.module(1).cuda(), case.task, case.batches(), epochs=3, lr=0.1, compute=Compute(compile=True))


def test_failed_capture_leaves_the_run_whole():
    """What the watching cannot see: the loss does something forbidden only while it is captured."""

    case = ZOO["dropout"]

    def loss(outputs, targets):
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return case.task.loss(outputs, targets)

    with pytest.warns(tw.SlowPathWarning, match="capture failed"):
        found = tw.fit(case.module(1).cuda(), tw.Task(loss), case.batches(), epochs=5, lr=0.1)
    plain = tw.fit(case.module(1).cuda(), case.task, case.batches(), epochs=5, lr=0.1, compute=EAGER)
    assert torch.allclose(found.vector, plain.vector, rtol=1e-9)
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(4, device="cuda")  # the generator is no longer one of a graph
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), drawn)
    assert len(set(drawn.tolist())) == 4


def in_groups(named):
    matrices, rest = ([p for _, p in named if (p.ndim > 1) == wide] for wide in (True, False))
    return torch.optim.AdamW([{"params": matrices}, {"params": rest, "weight_decay": 0.0, "lr": 5e-4}], lr=1e-3)


@pytest.mark.parametrize(
    "factory", ["sgd", "adam", "nesterov", "sgd_subclass", "nesterov_class", "adamw", "groups", "rmsprop"]
)
def test_any_optimizer_gives_the_eager_result(factory, replays):
    class Own(torch.optim.SGD):
        pass

    make = {
        "sgd": None,
        "adam": lambda v: torch.optim.Adam(v, lr=0.0),
        "nesterov": lambda v: torch.optim.SGD(v, lr=0.0, momentum=0.9, nesterov=True, fused=True),
        "sgd_subclass": lambda v: Own(v, lr=0.0, momentum=0.9, fused=True),
        "nesterov_class": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        "adamw": torch.optim.AdamW,
        "groups": in_groups,
        "rmsprop": torch.optim.RMSprop,
    }[factory]
    decay = 0.0 if factory in ("adamw", "groups") else 0.01
    # Adam makes whole steps of the noise that is the gradient of a bias before batch norm
    case, found = ZOO["conv_bn" if factory.startswith(("sgd", "nesterov")) else "mlp"], []
    batches = [(x.float(), y) for x, y in case.batches()]
    for compute in (Compute(), EAGER):
        settings = {"epochs": 6, "lr": 0.01, "weight_decay": decay, "optimizer": make, "compute": compute}
        found.append(tw.fit(case.module(1).float().cuda(), case.task, batches, **settings).vector)
    assert len(replays) >= 3 * len(batches)
    assert torch.allclose(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("bends", [1, 3])
def test_curves_with_our_kernels_are_those_of_plain_torch(bends, clip, replays):
    case, found = ZOO["conv_bn"], []
    batches = [(x.float(), y) for x, y in case.batches()]
    a, b = (tw.Weights.of(case.module(seed).float().cuda()) for seed in (1, 2))
    for compute in (Compute(), EAGER):
        settings = {"epochs": 6, "lr": 0.01, "weight_decay": 0.01, "compute": compute, "clip": clip}
        curve = tw.connect(case.module(1).float().cuda(), tw.Bezier(a, b, bends), case.task, batches, **settings)
        found.append(torch.stack([bend.vector for bend in curve.bends]))
    assert len(replays) >= 3 * len(batches)
    assert torch.allclose(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_language_models_with_padding_are_captured(accumulate, replays):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)

        def forward(self, tokens):
            return self.head(torch.tanh(self.embedding(tokens)))

    torch.manual_seed(0)
    module, tokens, found = Reader().double().cuda(), torch.randint(7, (4, 5, 6)), []
    following = tokens.roll(-1, 2)
    for k in range(3):
        following[k, k, 1 + k :] = -100
    batches = list(zip(tokens, following, strict=True))
    for compute in (Compute(), EAGER):
        settings = {"epochs": 6, "lr": 0.1, "accumulate": accumulate, "compute": compute}
        found.append(tw.fit(module, tw.language_modelling(), batches, **settings).vector.cpu())
    assert len(replays) >= 8
    assert torch.allclose(*found, rtol=1e-6, atol=1e-8)
    on_cpu = tw.fit(deepcopy(module).cpu(), tw.language_modelling(), batches, epochs=6, lr=0.1, accumulate=accumulate)
    assert torch.allclose(found[0], on_cpu.vector, rtol=1e-6, atol=1e-8)


def test_transformers_with_padding_are_captured(replays):
    transformers = pytest.importorskip("transformers")
    from thalweg.integrations.transformers import own_loss

    tiny = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            **tiny, intermediate_size=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    )
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny, intermediate_size=32, use_cache=False))
    tokens = torch.randint(1, 20, (4, 6, 8))
    masks = (torch.arange(8) < torch.randint(3, 9, (4, 6, 1))).long()
    for task, model in ((tw.classification(), bert), (None, llama)):
        labels = torch.randint(3, (4, 6)) if task else tokens.where(masks.bool(), -100)
        batches = [
            {"input_ids": x, "attention_mask": mask, "labels": y}
            for x, mask, y in zip(tokens, masks, labels, strict=True)
        ]
        before, found = len(replays), []
        for compute in (Compute(), EAGER):
            settings = {"epochs": 4, "lr": 1e-3, "optimizer": partial(torch.optim.AdamW, eps=1e-3), "compute": compute}
            found.append(tw.fit(model.cuda(), task or own_loss(model), batches, **settings).vector)
        assert len(replays) >= before + 8
        assert torch.allclose(*found, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("optimizer", [None, in_groups])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_captured_steps_accumulate_as_eager_ones(optimizer, clip, replays):
    case, found = ZOO["mlp"], []
    for compute in (Compute(), EAGER):
        settings = {"lr": 0.01, "optimizer": optimizer, "clip": clip, "accumulate": 2, "compute": compute}
        found.append(tw.fit(case.module(1).cuda(), case.task, case.batches(), epochs=8, **settings).vector)
    assert len(replays) >= 8  # of two batches, and of the third alone
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        return self.layers[len(x) % 2](x)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", [partial(torch.optim.AdamW, eps=1e-3), partial(torch.optim.SGD, momentum=0.9)])
def test_captured_steps_leave_parameters_without_gradient_alone(optimizer, accumulate, replays):
    """As on the CPU, where a test compares with plain torch."""
    torch.manual_seed(0)
    module = Routed()
    batches = [(torch.randn(n, 4), torch.randint(3, (n,))) for n in (4, 4, 5, 5, 4, 4)]
    settings = {"epochs": 6, "lr": 0.02, "optimizer": optimizer, "accumulate": accumulate}
    on_cpu = tw.fit(module, tw.classification(), batches, **settings)
    ours = tw.fit(deepcopy(module).cuda(), tw.classification(), batches, **settings)
    assert len(replays) >= 8
    assert torch.allclose(ours.vector.cpu(), on_cpu.vector, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, in_groups])
@pytest.mark.parametrize(("bends", "decay_at"), [(1, "bends"), (3, "bends"), (2, "phi")])
def test_curves_by_adam_with_our_kernel_are_those_of_plain_torch(bends, decay_at, optimizer, replays):
    case, found = ZOO["mlp"], []
    batches = [(x.float(), y) for x, y in case.batches()]
    a, b = (tw.Weights.of(case.module(seed).float().cuda()) for seed in (1, 2))
    for compute in (Compute(), EAGER):
        settings = {"epochs": 6, "lr": 0.01, "optimizer": optimizer, "decay_at": decay_at, "compute": compute}
        curve = tw.connect(case.module(1).float().cuda(), tw.Bezier(a, b, bends), case.task, batches, **settings)
        found.append(torch.stack([bend.vector for bend in curve.bends]))
    assert len(replays) >= 3 * len(batches)
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "dropout", "tied_lstm"])
def test_together_gives_each_run_as_alone(name, replays):
    case = ZOO[name]

    def job(seed):
        return tw.fit(case.module(seed).cuda(), case.task, case.batches(), epochs=6, lr=0.05, seed=seed).vector

    state = torch.cuda.get_rng_state()
    both = tw.together(*(lambda seed=seed: job(seed) for seed in (1, 2, 3)))
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert name == "tied_lstm" or len(replays) >= 9 * len(case.batches())
    for seed, vector in zip((1, 2, 3), both, strict=True):
        assert torch.allclose(vector, job(seed), rtol=1e-9, atol=1e-12)


def images(count, batch, **settings):
    g = torch.Generator().manual_seed(count)
    pixels, labels = (
        torch.randint(256, (count, 3, 32, 32), generator=g).to(torch.uint8),
        torch.randint(10, (count,), generator=g),
    )
    return tw.data.DeviceBatches(pixels, labels, batch, mean=(0.5,) * 3, std=(0.25,) * 3, device="cuda", **settings)


def test_augmentation_is_drawn_anew_in_captured_steps(replays):
    """As close to the eager run as rounding on its way through training allows, and far from one with other crops."""
    train, start = images(200, 32, shuffle=True, crop=4, flip=True), tw.Weights.of(network("preresnet")).vector
    same, other = ({"epochs": 3, "lr": 0.01, "seed": seed} for seed in (0, 1))
    captured, eager, different = (
        tw.fit(network("preresnet"), tw.classification(), train, compute=compute, **settings).vector - start
        for compute, settings in ((Compute(), same), (EAGER, same), (EAGER, other))
    )
    assert len(replays) >= len(train)
    assert (captured - eager).norm() < 0.05 * eager.norm()
    assert (different - eager).norm() > 0.3 * eager.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_scan_equals_an_eager_one(precision, replays):
    a, b = (tw.Weights.of(network("preresnet", seed=seed)) for seed in (0, 1))
    clean, test, found = images(300, 64), images(150, 64), []
    for compute in (Compute(precision), EAGER):
        data = {"train": clean, "test": test}
        curve = tw.Segment(a, b)
        scan = tw.scan(
            network("preresnet"), curve, tw.classification(), data, points=9, bn_batches=clean, compute=compute
        )
        found.append(np.concatenate([scan.values[name][key] for name in data for key in ("loss", "error")]))
    assert len(replays) >= 4 * (len(clean) + len(test))
    assert np.allclose(*found, rtol=1e-3 if precision == "fp32" else 3e-2, atol=1e-3 if precision == "fp32" else 2e-2)


def test_loaders_copy_while_the_gpu_computes(replays):
    x, y = torch.randn(256, 4), torch.randint(3, (256,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    module = nn.Linear(4, 3).cuda()
    found = [
        tw.fit(module, tw.classification(), loader, epochs=4, lr=0.1, seed=1, compute=compute).vector
        for compute in (Compute(), EAGER)
    ]
    assert len(replays) >= 2 * len(loader)
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7)
    assert torch.allclose(
        found[0].cpu(), tw.fit(module.cpu(), tw.classification(), loader, epochs=4, lr=0.1, seed=1).vector, atol=1e-5
    )
