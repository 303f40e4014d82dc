"""Curves whose points lie elsewhere than the network, or in half precision, and what memory they need."""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.store.runs import Run
from thalweg.weightspace.probe import Probe

STREAM = tw.Compute(stream=True)
SETTINGS = {"epochs": 3, "lr": 0.05, "weight_decay": 0.01, "seed": 4}


@pytest.fixture
def small_pieces(monkeypatch):
    """So that every network here takes several."""
    monkeypatch.setattr("thalweg.training.step.BLOCK", 50)


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "channels_last", "tied_lstm", "frozen"])
def test_streaming_changes_nothing(name, kind, small_pieces):
    case = ZOO[name]
    curve = kind(*case.ends(), bends=2)
    usual, streamed = (
        tw.connect(case.module(1), curve, case.task, case.batches(), compute=compute, **SETTINGS)
        for compute in (None, STREAM)
    )
    for one, two in zip(usual.bends, streamed.bends, strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-10, atol=1e-12)
        assert not torch.equal(one.vector, curve.bends[0].vector)


def test_streamed_run_resumes_bit_for_bit(tmp_path, small_pieces):
    case = ZOO["conv_bn"]
    curve, calls = tw.Bezier(*case.ends(), bends=2), []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return case.task.loss(outputs, targets)

    def connect(task, run):
        return tw.connect(case.module(1), curve, task, case.batches(), compute=STREAM, run=run, **SETTINGS)

    whole = connect(case.task, None)
    with pytest.raises(KeyboardInterrupt):
        connect(tw.Task(loss), Run(tmp_path, every=1))
    resumed = connect(case.task, Run(tmp_path, every=1))
    assert [bend.digest() for bend in resumed.bends] == [bend.digest() for bend in whole.bends]


def test_half_precision_refuses_the_arclength_loss():
    ends = [tw.Weights.of(nn.Linear(4, 3).bfloat16()) for _ in range(2)]
    batches = [(torch.randn(8, 4).bfloat16(), torch.arange(8) % 3)]
    with pytest.raises(tw.ThalwegError, match="would lose small steps in"):
        tw.connect(
            nn.Linear(4, 3).bfloat16(),
            tw.Bezier(*ends),
            tw.classification(),
            batches,
            loss="arclength",
            epochs=1,
            lr=0.1,
        )


def test_stream_refuses_the_arclength_loss():
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="needs the whole curve on the network's device"):
        tw.connect(
            case.module(1),
            tw.Bezier(*case.ends()),
            case.task,
            case.batches(),
            loss="arclength",
            compute=STREAM,
            **SETTINGS,
        )


@pytest.mark.parametrize("stream", [False, True])
def test_half_precision_keeps_small_steps(stream, small_pieces):
    """Each step is far below what bfloat16 can add to a weight of 1; together they are not."""
    module = nn.Linear(64, 1, bias=False).bfloat16()
    with torch.no_grad():
        module.weight.fill_(1.0)
    ends = [tw.Weights.of(module) for _ in range(2)]
    task = tw.Task(lambda outputs, targets: outputs.float().sum(1), lambda net, batch: (net(batch), None))
    batches = [torch.ones(2, 64).bfloat16()] * 50
    curve = tw.connect(
        module,
        tw.Bezier(*ends),
        task,
        batches,
        epochs=20,
        momentum=0.0,
        schedule=lambda i: 1e-3,
        compute=tw.Compute(stream=stream),
    )
    moved = 1.0 - curve.bends[0].vector.float()
    assert curve.bends[0].vector.dtype == torch.bfloat16
    # the mean of 2 t (1 - t) is a third
    assert torch.allclose(moved, torch.full_like(moved, 1000 * 1e-3 / 3), rtol=0.1)


def test_half_precision_curve_meets_its_ends_exactly():
    ends = [tw.Weights.of(nn.Linear(8, 3).bfloat16()) for _ in range(2)]
    batches = [(torch.randn(4, 8).bfloat16(), torch.tensor([0, 1, 2, 0]))]
    curve = tw.connect(nn.Linear(8, 3).bfloat16(), tw.Bezier(*ends), tw.classification(), batches, epochs=2, lr=0.1)
    assert torch.equal(curve.point(0.0).vector, ends[0].vector)
    assert torch.equal(curve.point(1.0).vector, ends[1].vector)


SIDE = 700
MILLION = SIDE * SIDE * 2  # weights


def live():
    """Bytes of all tensors there are, each piece of memory once."""
    gc.collect()
    plain = (torch.Tensor, nn.Parameter)  # not what a compiler has left behind, which has no memory
    tensors = [item for item in gc.get_objects() if type(item) in plain and not item.is_meta]
    found = [tensor for tensor in tensors if tensor.layout is torch.strided]  # another test may have left sparse ones
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())


def wide(dtype=torch.float32):
    return nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Linear(SIDE, SIDE, bias=False)).to(dtype)


def held(call, dtype=torch.float32):
    """Vectors of the network's size and dtype that are alive in the last pass of `call(task, batches)`, and were not
    before.
    """
    seen = []

    def predict(net, batch):
        seen.append(live())
        return net(batch), None

    batches = [torch.randn(4, SIDE).to(dtype)]
    before = live()
    call(tw.Task(lambda outputs, targets: outputs.float().square().mean(1), predict), batches)
    return (seen[-1] - before) / (MILLION * dtype.itemsize)


def needed(bends, optimizer, compute=None, dtype=torch.float32):
    """What connect holds beside the module and the curve it was given."""
    module, curve = wide(dtype), tw.Bezier(*(tw.Weights.of(wide(dtype)) for _ in range(2)), bends=bends)
    settings = {"epochs": 3, "lr": 1e-3, "optimizer": optimizer, "compute": compute}
    return held(lambda task, batches: tw.connect(module, curve, task, batches, **settings), dtype)


@pytest.mark.parametrize("bends", [1, 3])
@pytest.mark.parametrize(("optimizer", "kept"), [(None, 1), (torch.optim.Adam, 2)])
def test_memory_is_what_the_formula_says(bends, optimizer, kept):
    """phi and its gradient; the control points; per bend its gradient, unless it is the only one, optimizer state, and
    the last good one.
    """
    own = bends * ((bends > 1) + kept + 1)
    assert needed(bends, optimizer) == pytest.approx(2 + (bends + 2) + own, abs=0.1)
    assert needed(bends, optimizer, STREAM) == pytest.approx(2 + bends + own, abs=0.1)


def test_memory_in_half_precision():
    """The bends, their gradients and momenta take twice the bytes; the ends are not held again."""
    assert needed(1, None, dtype=torch.bfloat16) == pytest.approx(2 + 2 * 3 + 1, abs=0.1)


FUSED = functools.partial(torch.optim.AdamW, fused=True)  # which takes no memory for what it computes


def by_hand(batches):
    module = wide()
    optimizer = FUSED(module.parameters())
    for batch in batches:
        module(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("large", "stream", "held"), [(False, False, 5), (True, False, 3), (False, True, 3)])
def test_peak_of_one_bend_beyond_plain_training(peak_bytes, monkeypatch, large, stream, held):
    """Plain training has weights, their gradient and both moments. So has connect, whose weights are phi. In addition
    it has a bend, its last good value, and phi while the copy of the network is proven; both of these are on the CPU if
    they are large. The ends are copied into one block with the bend, unless they are large or streamed.
    """
    monkeypatch.setattr("thalweg.training.step.BLOCK", 10_000)
    if large:
        for place in ("runtime.accelerated", "training.loop", "weightspace.probe"):
            monkeypatch.setattr(f"thalweg.{place}.LARGE", 1000)
    batches, vector = [torch.randn(4, SIDE)] * 3, MILLION * 4
    task = tw.Task(lambda outputs, targets: outputs.square().mean(1), lambda net, batch: (net(batch), None))
    module, curve = wide(), tw.Bezier(*(tw.Weights.of(wide()) for _ in range(2)))
    settings = {"epochs": 1, "lr": 1e-3, "optimizer": FUSED, "compute": tw.Compute(stream=stream)}
    plain = peak_bytes(lambda: by_hand(batches))
    connected = peak_bytes(lambda: tw.connect(module, curve, task, batches, **settings))
    assert plain / vector == pytest.approx(4, abs=0.1)
    assert (connected - plain) / vector == pytest.approx(held, abs=0.1)


def test_memory_is_free_after_a_call_without_garbage_collection():
    batches, task = [torch.randn(4, SIDE)] * 4, tw.Task(lambda o, t: o.mean(1), lambda net, batch: (net(batch), None))
    module, curve = wide(), tw.Bezier(*(tw.Weights.of(wide()) for _ in range(2)))
    settings = {"epochs": 1, "lr": 1e-6, "optimizer": torch.optim.AdamW, "accumulate": 2}
    tw.connect(module, curve, task, batches, **settings)  # torch's first optimizer leaves garbage
    probes = weakref.WeakSet()
    original = Probe.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "__init__", lambda self, *a, **k: (probes.add(self), original(self, *a, **k))[1])
        gc.collect()
        gc.disable()
        try:
            tw.connect(module, curve, task, batches, **settings)
            assert not probes
        finally:
            gc.enable()


def test_memory_of_the_other_verbs():
    module, fge = wide(), tw.FGE(cycle=tw.Iterations(4), lr_max=1e-3, lr_min=1e-4)
    line = tw.Segment(*(tw.Weights.of(wide()) for _ in range(2)))
    assert held(lambda task, batches: tw.fit(module, task, batches, epochs=3, lr=1e-3)) == pytest.approx(3 + 1, abs=0.1)
    walked = held(lambda task, batches: tw.walk(module, task, batches * 4, fge, epochs=1))
    # the last is the network collected after the second of four steps
    assert walked == pytest.approx(4 + 1 + 1, abs=0.1)
    assert held(lambda task, batches: tw.scan(module, line, task, {"x": batches}, points=3)) == pytest.approx(
        2 + 1, abs=0.1
    )
