"""On a CUDA GPU: the same numbers as on the CPU, in float64. Run with `pytest -m gpu`."""

import gc
import os
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.runtime.interleave import at_once
from thalweg.weightspace.probe import Probe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
SETTINGS = {"epochs": 3, "lr": 0.05, "weight_decay": 0.01}
NAMES = [name for name in ZOO if name != "dropout"]  # another device draws other masks


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "dropout"])
def test_runs_in_a_pool_smaller_than_their_number_are_each_as_alone(name):
    """The next begins on the stream of one that has ended."""
    case = ZOO[name]

    def job(seed):
        return tw.fit(case.module(seed).cuda(), case.task, case.batches(), epochs=3 + seed, lr=0.05, seed=seed).vector

    found = at_once([partial(job, seed) for seed in range(5)], torch.device("cuda", 0), 2)
    for seed, vector in enumerate(found):
        assert torch.allclose(vector, job(seed), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "conv_bn"])
def test_scans_interleaved_with_training_are_each_as_alone(name):
    case = ZOO[name]
    module, batches = case.module(1).cuda(), case.batches()

    def scan(points):
        curve = tw.Bezier(*(end.to("cuda") for end in case.ends()))
        found = tw.scan(module, curve, case.task, {"x": batches}, points=points, bn_batches=batches)
        return torch.tensor(found.values["x"]["loss"])

    def fit(seed):
        return tw.fit(module, case.task, batches, epochs=20, lr=0.05, seed=seed).vector

    jobs = [partial(scan, 9), partial(fit, 1), partial(scan, 4), partial(scan, 21), partial(fit, 2)]
    for found, job in zip(at_once(jobs, torch.device("cuda", 0), 3), jobs, strict=True):
        assert torch.allclose(found, job(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_fit_connect_and_scan_agree_with_the_cpu(name):
    case, found = ZOO[name], {}
    for device in ("cpu", "cuda"):
        module = case.module(1).to(device)
        before = bits(module)
        ends = [w.to(device) for w in case.ends()]
        trained = tw.fit(module, case.task, case.batches(), **SETTINGS)
        curves = [
            tw.connect(module, tw.Bezier(*ends, bends=2), case.task, case.batches(), loss=loss, **SETTINGS)
            for loss in ("uniform", "arclength")
        ]
        batches = case.batches()
        scan = tw.scan(module, curves[0], case.task, {"x": batches}, points=4, weight_decay=0.01, bn_batches=batches)
        assert same_bits(before, bits(module))
        assert trained.vector.device.type == device
        vectors = [trained.vector, *(bend.vector for curve in curves for bend in curve.bends)]
        found[device] = [v.cpu().numpy() for v in vectors] + [scan.values["x"]["loss"]]
    for one, two in zip(found["cpu"], found["cuda"], strict=True):
        assert np.allclose(one, two, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("by", ["weights", "activations"])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict"])
def test_alignment_agrees_with_the_cpu(name, by):
    case, found = ZOO[name], {}
    for device in ("cpu", "cuda"):
        ends = [w.to(device) for w in case.ends()]
        aligned = tw.align(case.module(1).to(device), *ends, case.task, case.batches(), by=by)
        assert aligned.vector.device.type == device
        assert aligned.after <= aligned.before
        found[device] = aligned.vector.cpu()
    assert torch.equal(found["cpu"], found["cuda"])


@pytest.mark.parametrize("name", ["mlp", "conv_bn"])
def test_barriers_and_soups_agree_with_the_cpu(name):
    """The networks after the first are on the CPU, as members of a walk are."""
    case, found = ZOO[name], {}
    for device in ("cpu", "cuda"):
        module, batches = case.module(1).to(device), case.batches()
        first, *others = (tw.Weights.of(case.module(seed)) for seed in (1, 2, 3))
        networks, settings = [first.to(device), *others], {"bn_batches": batches}
        matrix = tw.barriers(module, networks, case.task, batches, align=True, points=4, **settings)
        with warnings.catch_warnings(action="ignore"):  # of a barrier
            soup = tw.soup(module, networks, case.task, batches, how="uniform", **settings)
        assert soup.vector.device.type == device
        found[device] = [matrix.matrix, matrix.between(aligned=True), np.array(soup.score), soup.vector.cpu().numpy()]
    for one, two in zip(found["cpu"], found["cuda"], strict=True):
        assert np.allclose(one, two, rtol=1e-7, atol=1e-9)


def test_recurrent_layers_keep_the_layout_of_cudnn():
    """cuDNN warns when the weights of an LSTM do not lie as it wants them; warnings are errors here."""
    case = ZOO["tied_lstm"]
    assert not Probe(case.module(1).cuda()).views
    assert Probe(ZOO["mlp"].module(1).cuda()).views


def test_dropout_draws_and_the_callers_cuda_state_stays():
    case = ZOO["dropout"]
    state = torch.cuda.get_rng_state()
    runs = [tw.fit(case.module(1).cuda(), case.task, case.batches(), seed=seed, **SETTINGS) for seed in (1, 1, 2)]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert not torch.equal(runs[0].vector, runs[2].vector)
    assert torch.equal(state, torch.cuda.get_rng_state())


def test_diverged_fit_is_found_after_the_epoch():
    case = ZOO["mlp"]
    with pytest.raises(tw.Diverged, match="in step"):
        tw.fit(case.module(1).cuda(), case.task, case.batches(), epochs=4, schedule=lambda i: float("inf"))


def test_gpu_batches_live_on_the_gpu():
    images, labels = torch.randint(256, (64, 3, 8, 8)).to(torch.uint8), torch.randint(10, (64,))
    batches = tw.data.DeviceBatches(images, labels, 16, shuffle=True, crop=2, flip=True, device="cuda")
    x, y = next(iter(batches))
    assert x.is_cuda
    assert y.is_cuda
    assert torch.equal(next(iter(batches.clean()))[0].cpu(), images[:16].float() / 255)


@pytest.mark.parametrize("name", NAMES)
def test_walks_and_ensembles_agree_with_the_cpu(name):
    case, found = ZOO[name], {}
    method = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)
    for device in ("cpu", "cuda"):
        module = case.module(1).to(device)
        trained = tw.fit(module, case.task, case.batches(), keep=[2], **SETTINGS)
        members = tw.walk(module, case.task, case.batches(), method, epochs=4, start=trained.kept[2]).members
        assert {member.vector.device.type for member in members} == {"cpu"}
        outputs, _ = tw.Ensemble(module, members).predict(case.task, case.batches())
        found[device] = [*(member.vector for member in members), outputs]
    for one, two in zip(found["cpu"], found["cuda"], strict=True):
        assert torch.allclose(one, two, rtol=1e-7, atol=1e-9)


def test_curves_under_the_callers_autocast():
    case = ZOO["conv_bn"]
    module, (a, b) = case.module(1).float().cuda(), (tw.Weights.of(case.module(s).float().cuda()) for s in (1, 2))
    batches = [(x.float(), y) for x, y in case.batches()]
    found = []
    for inside in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=inside):
            scan = tw.scan(module, tw.Segment(a, b), case.task, {"x": batches}, points=5, bn_batches=batches)
        found.append(scan.values["x"]["loss"])
    assert np.allclose(*found, rtol=0.03)
    assert np.ptp(found[0]) > 0.02


def test_labels_out_of_range_never_end_the_process():
    module, x = torch.nn.Linear(4, 3).cuda(), torch.randn(5, 4)
    good, bad = (x, torch.tensor([0, 1, 2, 0, 1])), (x, torch.tensor([0, 1, 2, 3, 1]))
    with pytest.raises(tw.ThalwegError, match="labels must lie between 0 and 2"):
        tw.fit(module, tw.classification(), [bad], epochs=1, lr=0.1)
    with pytest.raises(tw.Diverged, match="became nan in step 2"):
        tw.fit(module, tw.classification(), [good, bad], epochs=1, lr=0.1)
    assert float(torch.ones(1, device="cuda").sum()) == 1


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "dropout", "tied_lstm"])
@pytest.mark.parametrize("call", ["fit", "connect", "walk"])
def test_resume_on_a_gpu(call, name, tmp_path):
    """Kernels on a GPU need not repeat bit for bit, so the results are compared closely."""
    case = ZOO[name]
    module = case.module(1).cuda()
    a, b = (weights.to("cuda") for weights in case.ends())
    method = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)

    class Deadly(list):
        seen = 0

        def __iter__(self):
            for batch in super().__iter__():
                self.seen += 1
                if self.seen == 9:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    def go(batches, run):
        common = {"epochs": 4, "weight_decay": 0.01, "run": run}
        if call == "fit":
            return [tw.fit(module, case.task, batches, lr=0.05, **common).vector]
        if call == "connect":
            return [w.vector for w in tw.connect(module, tw.Bezier(a, b), case.task, batches, lr=0.05, **common).bends]
        return [member.vector for member in tw.walk(module, case.task, batches, method, **common).members]

    with pytest.raises(Stopped):
        go(Deadly(case.batches()), tmp_path / "run")
    for one, two in zip(go(case.batches(), tmp_path / "run"), go(case.batches(), None), strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)


def test_streaming_takes_two_vectors_on_the_gpu_and_changes_nothing():
    """Beside the module, phi and its gradient, and what a step needs in passing; the curve lies on the CPU."""
    module = torch.nn.Sequential(*(torch.nn.Linear(2000, 2000, bias=False) for _ in range(4))).cuda()
    ends = [tw.Weights.of(module).to("cpu"), tw.average([tw.Weights.of(module)]).to("cpu")]
    ends[1].vector.mul_(0.5)
    task = tw.Task(lambda outputs, targets: outputs.square().mean(1), lambda net, batch: (net(batch), None))
    batches = [torch.randn(8, 2000)] * 3
    found, peaks = [], []
    for compute in (tw.Compute(graph=False), tw.Compute(stream=True)):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.append(tw.connect(module, tw.Bezier(*ends), task, batches, compute=compute, **SETTINGS))
        peaks.append((torch.cuda.max_memory_allocated() - before) / ends[0].vector.nbytes)
    assert torch.allclose(*(curve.bends[0].vector for curve in found), rtol=1e-3, atol=1e-6)
    assert peaks[0] > 6.5
    assert peaks[1] < 3.5


def test_memory_of_a_large_network_beyond_plain_training(monkeypatch):
    """With AdamW, one bend and the curve on the CPU: 4 vectors by hand, 8 for `connect`, 3 streamed."""
    for place in ("runtime.accelerated", "training.loop", "weightspace.probe"):
        monkeypatch.setattr(f"thalweg.{place}.LARGE", 1000)
    monkeypatch.setattr("thalweg.training.step.BLOCK", 1 << 20)
    batches, vector = [torch.randn(8, 1000)] * 4, 4 * 16 * 1000**2
    task = tw.Task(lambda outputs, targets: outputs.square().mean(1), lambda net, batch: (net(batch), None))

    def network():
        return torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False) for _ in range(16))).cuda()

    def by_hand(module):
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)
        for batch in batches:
            module(batch.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def connect(module, stream=False):
        ends = [tw.Weights.of(module).to("cpu") for _ in range(2)]
        torch.cuda.reset_peak_memory_stats()
        how = {"optimizer": torch.optim.AdamW, "compute": tw.Compute(graph=False, stream=stream)}
        tw.connect(module, tw.Bezier(*ends), task, batches, epochs=1, **how)

    peaks = []
    for way in (by_hand, by_hand, connect, partial(connect, stream=True)):
        gc.collect()
        before = torch.cuda.memory_allocated()
        module = network()
        torch.cuda.reset_peak_memory_stats()
        way(module)
        peaks.append((torch.cuda.max_memory_allocated() - before) / vector)
        del module
    assert peaks[1] == pytest.approx(4, abs=0.3)
    assert peaks[2] == pytest.approx(8, abs=0.5)
    assert peaks[3] == pytest.approx(3, abs=0.5)


def test_two_ranks_on_one_gpu_do_what_one_does(tmp_path):
    worker = str(Path(__file__).parent / "rank_worker.py")
    for start in (
        [sys.executable],
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    ):
        done = subprocess.run([*start, worker, "gpu", str(tmp_path)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
    alone, *both = (torch.load(tmp_path / f"gpu-{name}.pt") for name in ("1-0", "2-0", "2-1"))
    for each in both:
        for name, values in alone.items():
            # a captured step reads its rate in float32
            assert torch.allclose(each[name], values, rtol=1e-7, atol=1e-8), name
