"""A run folder is resumed only by the call that made it: whatever changes the result is refused and named."""

import itertools
import json
import os
import re
import threading
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from run_folders import edit_json
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, get_worker_info

import thalweg as tw
from thalweg.runtime.rng import seeded
from thalweg.store import files
from thalweg.store.runs import Run
from thalweg.training.step import mean_loss

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


class Net(nn.Module):
    def __init__(self, seed=1, slope=0.0, drop=0.0):
        super().__init__()
        with seeded(seed):
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.slope, self.drop = slope, drop

    def forward(self, x):
        return self.last(F.dropout(F.leaky_relu(self.first(x), self.slope), self.drop, self.training))


class Shifted(Net):
    """Gives all logits of an example the same addition, which its loss does not see."""

    def forward(self, x):
        return super().forward(x) + 3.0


class Normed(nn.Sequential):
    def __init__(self, momentum=0.1):
        super().__init__(Net(), nn.BatchNorm1d(3, momentum=momentum))


class Taught(Net):
    """A frozen part follows the other."""

    def __init__(self, decay=0.9):
        super().__init__()
        self.teacher, self.decay = nn.Linear(4, 8).requires_grad_(False), decay
        nn.init.ones_(self.teacher.weight), nn.init.ones_(self.teacher.bias)

    def forward(self, x):
        if self.training:
            self.teacher.weight.data.lerp_(self.first.weight.data, 1 - self.decay)
        return super().forward(x)


class Bow(tw.Curve):
    def __init__(self, *ends, lean=1.0):
        super().__init__(*ends)
        self.lean = lean

    def coefficients(self, t):
        return [1 - t - self.lean * t * (1 - t), 2 * self.lean * t * (1 - t), t - self.lean * t * (1 - t)]


def batches(changed=(), number=5):
    g = torch.Generator().manual_seed(0)
    made = [(torch.randn(6, 4, generator=g), torch.randint(3, (6,), generator=g)) for _ in range(number)]
    return [(x, (y + 1) % 3) if k in changed else (x, y) for k, (x, y) in enumerate(made)]


def smoothed(smoothing=0.0, in_training=0.0):
    def predict(net, batch):
        return SimpleNamespace(logits=net(batch[0]), smoothing=in_training if net.training else smoothing), batch[1]

    def loss(outputs, targets):
        return F.cross_entropy(outputs.logits, targets, reduction="none", label_smoothing=outputs.smoothing)

    return tw.Task(loss, predict)


def ends():
    return [tw.Weights.of(Net(seed)) for seed in (2, 3)]


def kept(trained={}):  # noqa: B006
    if not trained:
        trained.update(tw.fit(Net(), tw.classification(), batches(), epochs=1, lr=0.1, keep=[1]).kept)
    return trained[1]


def fit(run, module=None, task=None, data=None, **settings):
    chosen = {"epochs": 3, "lr": None if "schedule" in settings else 0.1, **settings}
    return tw.fit(module or Net(), task or smoothed(), batches() if data is None else data, run=run, **chosen).vector


def connect(run, curve=None, module=None, task=None, data=None, **settings):
    curve = curve or tw.Bezier(*ends())
    chosen = {"epochs": 3, "lr": 0.1, **settings}
    return tw.connect(module or Net(), curve, task or smoothed(), data or batches(), run=run, **chosen).bends[0].vector


def walk(run, module=None, task=None, data=None, method=FGE, watch=None, **settings):
    watch = {"test": batches(number=2)} if watch is None else watch
    chosen = {"epochs": 3, **settings}
    found = tw.walk(module or Net(), task or smoothed(), data or batches(), method, watch=watch, run=run, **chosen)
    return torch.cat([member.vector for member in found.members])


def scan(run, target=None, module=None, task=None, data=None, **settings):
    target = tw.Segment(*ends()) if target is None else target
    made = {"test": batches()} if data is None else data
    spaced = {"points": 5} if isinstance(target, tw.Curve) else {}
    found = tw.scan(module or Net(), target, task or smoothed(), made, run=run, **{**spaced, **settings})
    return torch.tensor(found.values["test"]["loss"])


def compare(run, make=Net, task=None, train=None, test=None, methods=(tw.Independent, FGE), **settings):
    chosen = {"budget": 6, "multiples": [1], "seeds": [0, 1], "lr": 0.1, **settings}
    methods = [tw.FGE(tw.Iterations(2), 0.1, 0.01, starts=(0.5,)) if method is FGE else method for method in methods]
    found = tw.compare(
        make, task or smoothed(), train or batches(), test or batches(number=2), methods, run=run, **chosen
    )
    return torch.tensor([run["error"] for entry in found.entries.values() for run in entry["runs"]])


class Record:
    """A batch as an object, with slots."""

    __slots__ = ("wanted", "x")

    def __init__(self, x, wanted):
        self.x, self.wanted = x, wanted


@dataclass
class Example:
    x: torch.Tensor
    wanted: object


def arrays(changed=()):
    return [(np.asarray(x), np.asarray(y)) for x, y in batches(changed)]


def objects(kind, changed=()):
    return [kind(x, y) for x, y in batches(changed)]


cross_entropy = partial(F.cross_entropy, reduction="none")
from_arrays = tw.Task(cross_entropy, lambda net, b: (net(torch.from_numpy(b[0])), torch.from_numpy(b[1])))
from_objects = tw.Task(cross_entropy, lambda net, b: (net(b.x), b.wanted))


def loader(size=6, shuffle=True, changed=(), **options):
    examples = [(x, y) for xs, ys in batches(changed) for x, y in zip(xs, ys, strict=True)]
    return DataLoader(examples, batch_size=size, shuffle=shuffle, **options)


class Streamed:
    """Neither a list nor a loader."""

    def __init__(self, changed=()):
        self.changed = changed

    def __len__(self):
        return 5

    def __iter__(self):
        yield from batches(self.changed)


def sgd(momentum=0.9, **more):
    return lambda vectors: torch.optim.SGD(vectors, lr=0.1, momentum=momentum, **more)


def grouped(momentum):
    """One group for matrices, one for the rest."""
    return lambda named: torch.optim.SGD(
        [
            {"params": [p for _, p in named if p.ndim > 1]},
            {"params": [p for _, p in named if p.ndim < 2], "momentum": momentum},
        ],
        lr=0.1,
        momentum=0.9,
    )


def adam(second=0.999):
    return lambda vectors: torch.optim.Adam(vectors, lr=0.1, betas=(0.9, second))


def dipping(first, last):
    return lambda i: 0.05 if first <= i <= last else 0.1


def scaled(factor):
    class Scaled(torch.optim.SGD):
        def step(self, closure=None):
            for vector in self.param_groups[0]["params"]:
                vector.grad.mul_(factor)
            return super().step(closure)

    return lambda vectors: Scaled(vectors, lr=0.1)


def images(labels=0, **more):
    pixels = torch.arange(24 * 16, dtype=torch.uint8).reshape(24, 1, 4, 4)
    return tw.data.DeviceBatches(
        pixels, (torch.arange(24) + (torch.arange(24) > 12) * labels) % 3, 6, shuffle=True, **more
    )


flat = tw.Task(cross_entropy, lambda net, batch: (net(batch[0].flatten(2)[..., 0, :4]), batch[1]))
percentage = tw.Task(
    smoothed().loss,
    smoothed().predict,
    metrics={"top": lambda outputs, targets: (outputs.logits.argmax(1) == targets) * 1.0},
)
tripled = tw.Task(
    smoothed().loss,
    smoothed().predict,
    metrics={"top": lambda outputs, targets: (outputs.logits.argmax(1) == targets) * 3.0},
)

A, PLANE = {}, tw.Plane(*ends(), tw.Weights.of(Net(7)))
CASES = {  # the call, what it was started with, what it is given then, what must be named
    "fit: another loss": (
        fit,
        A,
        {"task": smoothed(0.2, 0.2)},
        r"the loss of the first batch was 0\.\d+ when this run began and is 0\.\d+ now; .*: the task, the model or the "
        "data has changed; use another folder",
    ),
    "fit: outputs of another network with the same loss": (
        fit,
        A,
        {"module": Shifted()},
        "was made by a different call: the output of the first batch was",
    ),
    "fit: a loss that differs in training only": (
        fit,
        A,
        {"task": smoothed(0, 0.1)},
        "the loss of the first batch in training mode",
    ),
    "fit: lambda schedule": (
        fit,
        {"schedule": lambda i: 0.1},
        {"schedule": lambda i: 0.1 if i < 9 else 0.01},
        "the learning rate at iteration 9 was 0.1 and is 0.01",
    ),
    "fit: last rate of a schedule": (
        fit,
        {"epochs": 60, "schedule": dipping(0, 0)},
        {"epochs": 60, "schedule": dipping(300, 300)},
        "the learning rate at iteration 300 was 0.1 and is 0.05",
    ),
    "fit: rates of a thirtieth of the run": (
        fit,
        {"epochs": 60, "schedule": dipping(0, 0)},
        {"epochs": 60, "schedule": dipping(150, 160)},
        r"the learning rate at iteration 1[56]\d was 0.1 and is 0.05",
    ),
    "fit: precision": (fit, A, {"compute": tw.Compute("bf16")}, "precision was 'fp32' and is 'bf16'"),
    **{
        f"{call.__name__}: compiled": (call, A, {"compute": tw.Compute(compile=True)}, "compile was None and is True")
        for call in (fit, connect, walk, compare)
    },
    "walk: precision": (walk, A, {"compute": tw.Compute("bf16")}, "precision was 'fp32' and is 'bf16'"),
    "compare: precision": (compare, A, {"compute": tw.Compute("bf16")}, "precision was 'fp32' and is 'bf16'"),
    "fit: optimizer setting": (
        fit,
        {"optimizer": sgd()},
        {"optimizer": sgd(0.5)},
        "the optimizer's momentum was 0.9 and is 0.5",
    ),
    "fit: optimizer default": (
        fit,
        {"optimizer": adam()},
        {"optimizer": adam(0.9)},
        r"the optimizer's betas was \(0.9, 0.999\) and is \(0.9, 0.9\)",
    ),
    "fit: accumulated batches": (
        fit,
        {"accumulate": 2},
        {"accumulate": 3},
        "accumulate was 2 and is 3",
    ),
    "fit: optimizer class": (
        fit,
        {"optimizer": torch.optim.Adam},
        {"optimizer": torch.optim.NAdam},
        "the optimizer's class was",
    ),
    "fit: forward": (fit, A, {"module": Net(slope=0.3)}, "the loss of the first batch"),
    "fit: dropout": (fit, A, {"module": Net(drop=0.3)}, "the loss of the first batch in training mode"),
    "fit: momentum of batch norm": (
        fit,
        {"module": Normed()},
        {"module": Normed(momentum=0.3)},
        "the effect on buffers of the first batch in training mode was",
    ),
    "fit: a teacher's decay": (
        fit,
        {"module": Taught()},
        {"module": Taught(decay=0.5)},
        "the effect on frozen parameters of the first batch in training mode was",
    ),
    "fit: what the optimizer does": (
        fit,
        {"optimizer": scaled(0.5)},
        {"optimizer": scaled(0.25)},
        "the result of a few steps of the optimizer was",
    ),
    "fit: start": (fit, A, {"module": Net(5)}, "the starting network has changed"),
    "fit: keep": (fit, A, {"keep": [2]}, r"keep was \[\] and is \[2\]"),
    "fit: labels of the first batch": (
        fit,
        A,
        {"data": batches({0})},
        "the first batch of the training data has changed",
    ),
    "fit: labels from the second batch on": (
        fit,
        A,
        {"data": batches({1, 2, 3, 4})},
        "the last batch of the training data has changed",
    ),
    "fit: labels of one batch": (
        fit,
        A,
        {"data": batches({2})},
        "a batch in the middle of the training data has changed",
    ),
    "fit: numpy": (
        fit,
        {"task": from_arrays, "data": arrays()},
        {"task": from_arrays, "data": arrays({2})},
        "a batch in the middle",
    ),
    "fit: dataclasses": (
        fit,
        {"task": from_objects, "data": objects(Example)},
        {"task": from_objects, "data": objects(Example, {4})},
        "the last batch",
    ),
    "fit: objects": (
        fit,
        {"task": from_objects, "data": objects(Record)},
        {"task": from_objects, "data": objects(Record, {4})},
        "the last batch",
    ),
    "fit: stream": (fit, {"data": Streamed()}, {"data": Streamed({3})}, "a batch in the middle"),
    "fit: batch size": (fit, {"data": loader(6)}, {"data": loader(7)}, "the order of the training data has changed"),
    "fit: shuffle": (
        fit,
        {"data": loader(6)},
        {"data": loader(6, False)},
        "the order of the training data has changed",
    ),
    "fit: sampler": (
        fit,
        {"data": loader(6)},
        {"data": loader(6, None, sampler=range(29, -1, -1))},
        "the order of the training data",
    ),
    "fit: loader": (
        fit,
        {"data": loader(6, False)},
        {"data": loader(6, False, {4})},
        "the last batch of the training data has changed",
    ),
    "fit: device batches": (
        fit,
        {"task": flat, "data": images()},
        {"task": flat, "data": images(1)},
        "the content of the training data has changed",
    ),
    "fit: augmentation": (
        fit,
        {"task": flat, "data": images()},
        {"task": flat, "data": images(crop=1)},
        "the content of the training data has changed",
    ),
    "connect: loss": (connect, A, {"task": smoothed(0.1, 0.1)}, "the loss of the first batch was"),
    "connect: bends": (connect, A, {"curve": tw.Bezier(*ends(), 2)}, "the curve had 1 bend and has 2"),
    "connect: end": (
        connect,
        A,
        {"curve": tw.Bezier(ends()[0], tw.Weights.of(Net(9)))},
        "the end of the curve has changed",
    ),
    "connect: kind": (connect, A, {"curve": tw.PolyChain(*ends())}, "the curve's class was"),
    "connect: attribute": (
        connect,
        {"curve": Bow(*ends())},
        {"curve": Bow(*ends(), lean=1.5)},
        "the curve's lean was 1.0 and is 1.5",
    ),
    "connect: data": (connect, A, {"data": batches({3})}, "a batch in the middle"),
    "connect: where the optimizer decays": (
        connect,
        {"optimizer": torch.optim.AdamW},
        {"optimizer": torch.optim.AdamW, "decay_at": "phi"},
        "decay_at was None and is 'phi'",
    ),
    "connect: optimizer group": (
        connect,
        {"curve": tw.Bezier(*ends(), 2), "optimizer": grouped(0.9)},
        {"curve": tw.Bezier(*ends(), 2), "optimizer": grouped(0.5)},
        "the optimizer's momentum in group 2 was 0.9 and is 0.5",
    ),
    "connect: rate": (connect, A, {"lr": 0.2}, "lr was 0.1 and is 0.2"),
    "connect: precision": (connect, A, {"compute": tw.Compute("bf16")}, "precision was 'fp32' and is 'bf16'"),
    "connect: forward": (connect, A, {"module": Net(slope=0.5)}, "the loss of the first batch"),
    "walk: start": (walk, A, {"module": Net(4)}, "start 1 has changed"),
    "walk: optimizer state": (
        walk,
        {"start": kept()},
        {"start": kept().weights},
        "the optimizer state of start 1 was given and is not now",
    ),
    "walk: another optimizer state": (
        walk,
        {"start": kept()},
        {"start": replace(kept(), optimizer={name: 2 * state for name, state in kept().optimizer.items()})},
        "was made by a different call: the optimizer state of start 1 has changed;",
    ),
    "walk: forward": (walk, A, {"module": Net(slope=0.3)}, "the loss of the first batch was"),
    "walk: optimizer": (walk, {"optimizer": sgd()}, {"optimizer": sgd(0.5)}, "the optimizer's momentum was 0.9"),
    "walk: method": (
        walk,
        A,
        {"method": tw.FGE(cycle=tw.Iterations(6), lr_max=0.1, lr_min=0.01)},
        "the method's cycle was Iterations",
    ),
    "walk: watched data": (
        walk,
        A,
        {"watch": {"test": batches({1}, 2)}},
        "the last batch of the data 'test' has changed",
    ),
    "walk: metrics": (
        walk,
        {"task": percentage},
        {"task": tripled},
        "the metric 'top' of the first batch of 'test' was",
    ),
    "walk: loss": (walk, A, {"task": smoothed(0.1, 0.1)}, "the loss of the first batch was"),
    "scan: loss": (scan, A, {"task": smoothed(0.1)}, "the loss of the first batch of 'test' was"),
    "scan: forward": (scan, A, {"module": Net(slope=0.3)}, "the loss of the first batch of 'test' was"),
    "scan: outputs of another network with the same loss": (
        scan,
        A,
        {"module": Shifted()},
        "the output of the first batch of 'test' was",
    ),
    "scan: metrics": (scan, {"task": percentage}, {"task": tripled}, "the metric 'top' of the first batch of 'test'"),
    "scan: data": (scan, A, {"data": {"test": batches({3})}}, "a batch in the middle of the data 'test' has changed"),
    "scan: precision": (scan, A, {"compute": tw.Compute("bf16")}, "precision was 'fp32' and is 'bf16'"),
    "scan: attribute": (
        scan,
        {"target": Bow(*ends())},
        {"target": Bow(*ends(), lean=2.0)},
        "the curve's lean was 1.0 and is 2.0",
    ),
    "scan: points": (scan, A, {"points": 7}, "the spacing in t has changed"),
    "scan: kind": (
        scan,
        A,
        {"target": ends()},
        "of was 'Segment' and is 'Weights'; use another folder",
    ),
    "scan: grid of a plane": (
        scan,
        {"target": PLANE, "grid": (2, 2)},
        {"target": PLANE, "grid": (3, 2)},
        "the spacing in x has changed",
    ),
    "scan: corner of a plane": (
        scan,
        {"target": PLANE, "grid": (2, 2)},
        {"target": tw.Plane(*ends(), tw.Weights.of(Net(8))), "grid": (2, 2)},
        "point 3 of the plane has changed",
    ),
    "scan: units": (
        scan,
        {"task": percentage},
        {"task": replace(percentage, units={"top": "%"})},
        "units was {} and is {'top': '%'}",
    ),
    "scan: list": (scan, {"target": ends()}, {"target": ends()[::-1]}, "point 1 of the list has changed"),
    "scan: refresh": (
        scan,
        {"bn_batches": batches()},
        {"bn_batches": batches({1})},
        "a batch in the middle of the data of bn_batches has changed",
    ),
    "compare: loss": (compare, A, {"task": smoothed(0.1, 0.1)}, "the loss of the first batch was"),
    "compare: forward": (compare, A, {"make": lambda seed: Net(seed, slope=0.3)}, "the loss of the first batch was"),
    "compare: test data": (compare, A, {"test": batches({1}, 2)}, "the last batch of the data 'test' has changed"),
    "compare: training data": (compare, A, {"train": batches({4})}, "the last batch of the training data has changed"),
    "compare: networks": (
        compare,
        A,
        {"make": lambda seed: Net(seed + (seed == 1))},
        "the fresh network of seed 1 has changed",
    ),
    "compare: method": (
        compare,
        A,
        {"methods": [tw.Independent, tw.SWA(lr=0.1)]},
        "method 2's class was 'FGE' and is 'SWA'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_resume_refuses_changed_arguments_and_names_them(case, tmp_path):
    call, before, then, message = CASES[case]
    first = call(tmp_path / "r", **before)
    with pytest.raises(tw.ThalwegError, match=message) as caught:
        call(tmp_path / "r", **then)
    assert "use another folder, or restore what it was" in str(caught.value)
    assert not re.search("[0-9a-f]{16}", str(caught.value)), "a hash is of no use to the reader"
    assert torch.equal(call(tmp_path / "r", **before), first)


@pytest.mark.parametrize("call", [fit, connect, walk, scan, compare])
def test_run_folder_changes_no_result_and_is_read_again_without_writing(call, tmp_path, monkeypatch):
    alone, kept_there = call(None), call(tmp_path / "r")
    assert torch.equal(alone, kept_there)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def refuse(*arguments, **settings):
        raise OSError(30, "Read-only file system")

    for name in ("write", "save_json", "save_tensors"):
        monkeypatch.setattr(files, name, refuse)
    monkeypatch.setattr("thalweg.store.runs._locked", refuse)
    assert torch.equal(call(tmp_path / "r"), alone)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.filterwarnings("ignore::thalweg.SlowPathWarning")
@pytest.mark.parametrize("same", [{"compile": False}, {"graph": False}, {"graph": True}, {"stream": True}], ids=str)
@pytest.mark.parametrize("call", [fit, connect, walk, scan, compare])
def test_resume_accepts_compute_settings_that_change_no_number(call, same, tmp_path):
    first = call(tmp_path)
    assert torch.equal(call(tmp_path, compute=tw.Compute(**same)), first)


def test_resume_refuses_no_compile_where_compile_is_the_default(tmp_path, monkeypatch):
    """As on a GPU, where long trainings are compiled unless that is forbidden."""
    monkeypatch.setattr(tw.Compute, "compiles", lambda self, *_: self.compile is not False)
    monkeypatch.setattr("thalweg.runtime.compiled._compiled", lambda: mean_loss)
    compiled = fit(tmp_path)
    assert torch.equal(fit(tmp_path, compute=tw.Compute(compile=True)), compiled)
    with pytest.raises(tw.ThalwegError, match="compile was None and is False"):
        fit(tmp_path, compute=tw.Compute(compile=False))


def test_resume_refuses_compute_settings_that_change_numbers(tmp_path):
    def stop(entry):
        if entry["epoch"] == 2:
            raise InterruptedError

    whole = connect(None)
    with pytest.raises(InterruptedError):
        connect(tmp_path, on_epoch=stop)
    for compute, said in (
        (tw.Compute("bf16"), "precision was 'fp32' and is 'bf16'"),
        (tw.Compute(compile=True), "compile was None and is True"),
    ):
        with pytest.raises(tw.ThalwegError, match=f"made by a different call: {said}; use another folder"):
            connect(tmp_path, compute=compute)
    assert torch.allclose(connect(tmp_path, compute=tw.Compute(stream=True)), whole, atol=1e-6)


def test_resume_accepts_compile_for_a_scan(tmp_path):
    first = scan(tmp_path)
    assert torch.equal(scan(tmp_path, compute=tw.Compute(compile=True)), first)


def test_resume_refuses_a_schedule_that_counts(tmp_path):
    asked = iter(range(10**6))
    with pytest.raises(
        tw.ThalwegError, match=r"a schedule must always give the same rate for the same iteration, .* for iteration 1"
    ):
        fit(tmp_path / "r", schedule=lambda i: 0.1 / (1 + next(asked)))


class InWorkers(Dataset):
    """Opens what it reads in each worker, as one does with files that survive no fork."""

    opened = None

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if self.opened is None:
            self.opened = os.getpid(), [(x, y) for xs, ys in batches() for x, y in zip(xs, ys, strict=True)]
        assert get_worker_info() is not None
        assert self.opened[0] == os.getpid()
        return self.opened[1][index]


def test_fingerprint_fetches_data_in_workers_as_the_loader_does(tmp_path):
    expected = fit(None, data=loader(6, shuffle=False))
    for workers in (1, 2):  # which does not change the fingerprint
        found = fit(tmp_path / "r", data=DataLoader(InWorkers(), batch_size=6, num_workers=workers))
        assert torch.equal(found, expected)


class Noisy(Dataset):
    """Draws random numbers, in each worker its own."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.randn(4), index % 3


def test_resume_refuses_another_number_of_workers_where_they_draw_random_numbers(tmp_path):
    def noisy(workers):
        return DataLoader(Noisy(), batch_size=6, num_workers=workers)

    for begun, then in ((1, 2), (2, 1)):
        first = fit(tmp_path / f"{begun}", data=noisy(begun), epochs=1)
        with pytest.raises(tw.ThalwegError, match="the number of workers of the training data has changed"):
            fit(tmp_path / f"{begun}", data=noisy(then), epochs=1)
        assert torch.equal(fit(tmp_path / f"{begun}", data=noisy(begun), epochs=1), first)


def test_fingerprint_ends_with_an_endless_sampler(tmp_path):
    class Endless(list):
        def __iter__(self):
            yield from itertools.islice(itertools.cycle(range(30)), 1000)
            raise AssertionError("it was asked for more and more")

    with pytest.raises(tw.ThalwegError, match="of the batches is 5, but iterating gave more"):
        fit(tmp_path / "r", data=loader(6, None, sampler=Endless(range(30))))


def test_run_takes_batches_that_cannot_be_copied(tmp_path):
    """What is read from a batch only once is there for the call, as without a folder."""

    def predict(net, batch):
        next(batch["once"])
        return smoothed().predict(net, batch["both"])

    def data(once):
        held = {"lock": threading.Lock(), "once": once}
        return {"test": [MappingProxyType({"both": both, **held}) for both in batches()]}

    task, numbers = tw.Task(smoothed().loss, predict), [(n for n in range(10**6)) for _ in range(2)]
    with_folder, without = (
        scan(tmp_path, task=task, data=data(numbers[0])),
        scan(None, task=task, data=data(numbers[1])),
    )
    assert torch.equal(with_folder, without)
    assert next(numbers[0]) == next(numbers[1])
    assert torch.equal(scan(tmp_path, task=task, data=data(numbers[1])), without)


def test_run_compares_the_pass_over_batches_with_a_graph(tmp_path):
    torch.manual_seed(0)
    encoder = nn.Linear(4, 4)
    data = {"test": [(encoder(x), y) for x, y in batches()]}
    scan(tmp_path, data=data)
    with pytest.raises(tw.ThalwegError, match="the first batch of 'test'"):
        scan(tmp_path, data=data, task=smoothed(0.1))


def test_resume_refuses_a_folder_of_an_older_version(tmp_path):
    fit(tmp_path)
    record = files.load_json(tmp_path / "run.json", "run")
    del record["facts"]
    files.save_json(tmp_path / "run.json", "run", record)
    with pytest.raises(
        tw.ThalwegError, match="was written by an older thalweg, which did not record what its run would compute"
    ):
        fit(tmp_path)


def test_resume_does_not_compare_a_quantity_that_does_not_repeat(tmp_path):
    """A loss with noise of its own is nobody's business to refuse."""
    import os

    def noisy(outputs, targets):
        return smoothed().loss(outputs, targets) + int.from_bytes(os.urandom(6)) / 2**40

    fit(tmp_path, task=tw.Task(noisy, smoothed().predict))
    fit(tmp_path, task=tw.Task(noisy, smoothed().predict))


def test_fingerprint_leaves_counters_in_a_loss_alone(tmp_path):
    def counted():
        seen = []

        def loss(outputs, targets):
            seen.append(1)
            return smoothed().loss(outputs, targets) * (1 + 0.01 * len(seen))

        return tw.Task(loss, smoothed().predict)

    assert torch.equal(fit(tmp_path, task=counted()), fit(None, task=counted()))


def test_resume_does_not_depend_on_rounding(tmp_path):
    fit(tmp_path)
    record = files.load_json(tmp_path / "run.json", "run")
    for name in ("the first batch", "the first batch in training mode"):
        record["facts"][name]["values"]["loss"][0] *= 1 + 1e-7
    files.save_json(tmp_path / "run.json", "run", record)
    fit(tmp_path)


def interrupted(folder, **settings):
    """A scan of five points that was killed after three."""
    scan(folder, **settings)
    edit_json(folder / "run.json", "run", lambda record: record.pop("finished"))
    (folder / "scan.json").unlink()
    lines = (folder / "points.jsonl").read_text().splitlines(keepends=True)[:3]
    (folder / "points.jsonl").write_text("".join(lines))
    return lines


@pytest.mark.parametrize(
    "changed",
    [
        {"task": smoothed(0.1)},
        {"module": Net(slope=0.3)},
        {"data": {"test": batches({3})}},
        {"compute": tw.Compute("bf16")},
    ],
    ids=["loss", "forward", "data", "precision"],
)
def test_resume_refuses_points_of_a_changed_scan(changed, tmp_path):
    whole, lines = scan(None), interrupted(tmp_path)
    with pytest.raises(tw.ThalwegError, match="was made by a different call"):
        scan(tmp_path, **changed)
    assert (tmp_path / "points.jsonl").read_text() == "".join(lines)
    assert torch.equal(scan(tmp_path), whole)


def test_points_file_lines_say_which_point_they_are(tmp_path):
    whole, lines = scan(None), interrupted(tmp_path)
    assert [json.loads(line)["entry"]["point"] for line in lines] == [1, 2, 3]
    assert [json.loads(line)["entry"]["t"] for line in lines] == [0.0, 0.25, 0.5]
    assert torch.equal(scan(tmp_path), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lines: [lines[0], lines[2]],
            r"line 2 of .* is point 3 \(t = 0.5\), where point 2 \(t = 0.25\) is expected",
        ),
        (lambda lines: [lines[0], lines[0]], r"is point 1 \(t = 0\), where point 2"),
        (lambda lines: [lines[1], lines[0]], r"line 1 of .* is point 2"),
        (lambda lines: [lines[0]] * 6, "lines were lost, doubled, reordered or added"),
    ],
)
def test_resume_refuses_lost_doubled_and_reordered_points(change, message, tmp_path):
    lines = interrupted(tmp_path)
    (tmp_path / "points.jsonl").write_text("".join(change(lines)))
    with pytest.raises(tw.ThalwegError, match=message):
        scan(tmp_path)


def test_resume_refuses_points_of_another_scan_and_of_an_older_version(tmp_path):
    interrupted(tmp_path / "a")
    foreign = interrupted(tmp_path / "b", points=9)
    (tmp_path / "a" / "points.jsonl").write_text("".join(foreign))
    with pytest.raises(tw.ThalwegError, match=r"line 2 of .* is point 2 \(t = 0.125\)"):
        scan(tmp_path / "a")
    (tmp_path / "a" / "points.jsonl").unlink()
    Run(tmp_path / "a").append("points.jsonl", {"test": {"loss": 1.0, "data_loss": 1.0}})
    with pytest.raises(tw.ThalwegError, match="written by an older thalweg, and line 1 does not say which point it is"):
        scan(tmp_path / "a")


def test_finished_run_folders_are_complete_and_can_be_loaded(tmp_path):
    scan(tmp_path / "scan"), walk(tmp_path / "walk"), compare(tmp_path / "compare")
    fit(tmp_path / "fit"), connect(tmp_path / "connect")
    assert torch.equal(torch.tensor(tw.Scan.load(tmp_path / "scan").values["test"]["loss"]), scan(None))
    members = tw.Ensemble.load(tmp_path / "walk", Net()).members
    assert torch.equal(torch.cat([member.vector for member in members]), walk(None))
    assert tw.Trace.load(tmp_path / "walk").collected == tw.Trace.load(tmp_path / "walk" / "start-1").collected
    assert tw.Comparison.load(tmp_path / "compare").seeds == [0, 1]
    assert torch.equal(tw.Weights.load(tmp_path / "fit").vector, fit(None))
    assert torch.equal(tw.Curve.load(tmp_path / "connect").bends[0].vector, connect(None))
    with pytest.raises(
        tw.ThalwegError, match=r"holds no curve\.safetensors, but a run of scan, which has finished: give a file"
    ):
        tw.Curve.load(tmp_path / "scan")


def test_unfinished_scan_cannot_be_loaded(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(
        tw.ThalwegError, match=r"holds no scan\.json, but a run of scan, which has not finished: resume it"
    ):
        tw.Scan.load(tmp_path)


def test_resume_finished_plane_with_another_overlay(tmp_path):
    a, b = ends()
    plane, curve = tw.Plane(a, b, tw.Weights.of(Net(7))), tw.Bezier(a, b)
    arguments = {"grid": (2, 2), "run": tmp_path}
    tw.scan(Net(), plane, smoothed(), {"test": batches()}, **arguments)
    again = tw.scan(Net(), plane, smoothed(), {"test": batches()}, overlay={"new": curve}, **arguments)
    assert list(again.paths) == ["new"]
