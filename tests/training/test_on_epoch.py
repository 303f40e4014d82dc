"""What `on_epoch` is called with, and that it leaves no trace in a training."""

import os
import random
import signal
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.store.runs import Run

FGE = tw.FGE(cycle=tw.Iterations(6), lr_max=0.1, lr_min=0.01)


def trainings(case, batches, task=None, **more):
    """Each kind of training for three epochs, and what it made."""
    task, module, (a, b) = task or case.task, case.module(1), case.ends()
    common = {"epochs": 3, "seed": 3, **more}
    return {
        "fit": lambda: [tw.fit(module, task, batches, lr=0.1, **common)],
        "connect": lambda: tw.connect(module, tw.Bezier(a, b, 2), task, batches, lr=0.1, **common).bends,
        "arclength": lambda: (
            tw.connect(module, tw.PolyChain(a, b), task, batches, lr=0.1, loss="arclength", **common).bends
        ),
        "walk": lambda: tw.walk(module, task, batches, FGE, start=[a, b], **common).members,
    }


def shuffled(case):
    examples = [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)]
    return DataLoader(examples, batch_size=4, shuffle=True, generator=torch.Generator())


def without_seconds(entries):
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def test_on_epoch_of_fit_gets_mean_loss_last_rate_and_time(monkeypatch):
    case, seen, clock = ZOO["mlp"], [], count()
    monkeypatch.setattr("thalweg.training.checkpoint.time", SimpleNamespace(monotonic=lambda: 10.0 ** next(clock)))
    tw.fit(case.module(1), case.task, case.batches(), epochs=3, schedule=lambda i: 0.1 / i, on_epoch=seen.append)
    net = case.module(1)
    optimizer, i = torch.optim.SGD(net.parameters(), lr=1, momentum=0.9), 0
    for epoch, entry in enumerate(seen, start=1):
        losses = []
        for x, y in case.batches():
            i += 1
            optimizer.param_groups[0]["lr"] = 0.1 / i
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert (entry["epoch"], entry["iteration"], entry["rate"]) == (epoch, i, 0.1 / i)
        assert entry["loss"] == pytest.approx(np.mean(losses), rel=1e-9)
        assert {type(value) for value in entry.values()} == {int, float}
    assert [entry["seconds"] for entry in seen] == [10 - 1, 1000 - 100, 100_000 - 10_000]  # asked before and after each
    assert "t" not in seen[0]


@pytest.mark.parametrize("loss", ["uniform", "arclength"])
def test_on_epoch_of_connect_gets_t(loss):
    case, seen = ZOO["mlp"], []
    curve, [batch, *_] = tw.Bezier(*case.ends()), case.batches()
    tw.connect(case.module(1), curve, case.task, [batch], epochs=2, lr=0.1, loss=loss, on_epoch=seen.append)
    net = case.module(1)
    curve.point(seen[0]["t"]).load_into(net)
    expected = torch.nn.functional.cross_entropy(net(batch[0]), batch[1])
    assert seen[0]["loss"] == pytest.approx(expected.item(), rel=1e-9)
    assert seen[0]["t"] != seen[1]["t"]


def test_on_epoch_of_walk_gets_the_start():
    case, seen = ZOO["mlp"], []
    trainings(case, case.batches(), on_epoch=seen.append)["walk"]()
    assert [(entry["start"], entry["epoch"]) for entry in seen] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    alone = []
    tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=2, on_epoch=alone.append)
    assert "start" not in alone[0]


@pytest.mark.parametrize("kind", ["fit", "connect", "arclength", "walk"])
def test_on_epoch_leaves_no_trace_in_the_training(kind):
    case = ZOO["dropout"]
    loader = shuffled(case)
    whole = trainings(case, loader)[kind]()
    module = case.module(1)

    def meddle(entry):
        entry.clear()
        torch.manual_seed(0)
        random.random()
        np.random.rand(3)
        list(loader)  # draws from the generator of the data
        torch.set_grad_enabled(False)
        module.train(False)
        for parameter in module.parameters():
            parameter.zero_()

    found = trainings(case, loader, on_epoch=meddle)[kind]()
    assert torch.is_grad_enabled()
    assert all(torch.equal(one.vector, two.vector) for one, two in zip(whole, found, strict=True))


@pytest.mark.parametrize("kind", ["fit", "connect", "walk"])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_on_epoch_of_a_resumed_run_gets_the_remaining_epochs(kind, stop, tmp_path):
    case, whole, seen, steps = ZOO["mlp"], [], [], []
    trainings(case, case.batches(), on_epoch=whole.append)[kind]()

    def predict(net, batch):
        if net.training and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            steps.append(1)
            if len(steps) == stop:
                os.kill(os.getpid(), signal.SIGTERM)
        return case.task.predict(net, batch)

    own = {"run": Run(tmp_path / "run", every=1), "on_epoch": seen.append}
    with pytest.raises(Stopped):
        trainings(case, case.batches(), tw.Task(case.task.loss, predict), **own)[kind]()
    assert len(seen) == (stop - 1) // 3  # a stop comes after a step, before the end of its epoch is reported
    trainings(case, case.batches(), **own)[kind]()
    assert without_seconds(seen) == without_seconds(whole)
    trainings(case, case.batches(), **own)[kind]()
    assert len(seen) == len(whole)  # nothing is trained, and nothing reported


def test_on_epoch_error_is_raised_and_the_run_resumes_after_that_epoch(tmp_path):
    case = ZOO["mlp"]
    [whole] = trainings(case, case.batches())["fit"]()

    def fails(entry):
        if entry["epoch"] == 2:
            raise LookupError("the tracker is gone")

    with pytest.raises(LookupError, match="the tracker is gone") as caught:
        trainings(case, case.batches(), run=tmp_path / "run", on_epoch=fails)["fit"]()
    assert any("thalweg was calling on_epoch" in note for note in caught.value.__notes__)
    seen = []
    [found] = trainings(case, case.batches(), run=tmp_path / "run", on_epoch=seen.append)["fit"]()
    assert [entry["epoch"] for entry in seen] == [3]
    assert torch.equal(found.vector, whole.vector)


def test_on_epoch_must_be_a_function():
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="on_epoch must be a function of a dict; got 'wandb'"):
        tw.fit(case.module(1), case.task, case.batches(), epochs=1, lr=0.1, on_epoch="wandb")
