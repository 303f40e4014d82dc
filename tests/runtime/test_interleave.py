"""Several runs at once: each as if it were alone, and none left behind when one fails or all are stopped."""

import os
import random
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.runtime.compute import present
from thalweg.runtime.interleave import STRIDE, Interleaved, at_once
from thalweg.store.runs import LOG, POINTS, Run

METHOD = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)


def fitted(case, seed, **settings):
    return tw.fit(case.module(seed), case.task, case.batches(), epochs=3, lr=0.05, seed=seed, **settings).vector


@pytest.mark.parametrize("name", ZOO)
def test_together_gives_each_run_as_alone(name):
    case = ZOO[name]
    for seed, vector in zip((1, 2, 3), tw.together(*(lambda s=s: fitted(case, s) for s in (1, 2, 3))), strict=True):
        assert torch.equal(vector, fitted(case, seed))


def test_together_runs_different_jobs_of_different_lengths():
    case = ZOO["dropout"]
    module, (a, b) = case.module(1), case.ends()
    jobs = [
        lambda: fitted(case, 1),
        lambda: tw.connect(module, tw.Bezier(a, b), case.task, case.batches(), epochs=5, lr=0.05).bends[0].vector,
        lambda: torch.stack([w.vector for w in tw.walk(module, case.task, case.batches(), METHOD, epochs=2).members]),
        lambda: torch.zeros(1),
    ]
    assert all(torch.equal(one, job()) for one, job in zip(tw.together(*jobs), jobs, strict=True))


def scanned(case, points=5, batches=None, **settings):
    batches = batches or case.batches()
    curve = tw.Bezier(*case.ends())
    scan = tw.scan(case.module(1), curve, case.task, {"x": batches}, points=points, bn_batches=batches, **settings)
    return scan.values["x"]["loss"].tolist()


@pytest.mark.parametrize("name", ZOO)
def test_together_gives_each_scan_as_alone(name):
    case = ZOO[name]
    both = tw.together(lambda: scanned(case), lambda: fitted(case, 1), lambda: scanned(case, 3))
    assert both[0::2] == [scanned(case), scanned(case, 3)]
    assert torch.equal(both[1], fitted(case, 1))


def test_together_switches_between_scans_after_every_pass_over_the_data():
    case, order = ZOO["conv_bn"], []

    def predict(net, batch):
        order.append(present.get().job.number)
        return net(batch[0]), batch[1]

    task = tw.Task(case.task.loss, predict)
    jobs = [partial(scanned, replace(case, task=task), points) for points in (4, 4)]
    tw.together(*jobs)
    runs = [len(list(same)) for _, same in groupby(order)]
    batches = len(case.batches())
    assert runs.count(batches) >= 2 * 2 * 4  # two jobs, statistics and losses, four points
    assert max(runs[4:-4]) == batches


def test_together_scans_shuffled_data_with_a_shared_generator():
    case = ZOO["mlp"]
    x, y = (torch.cat(parts) for parts in zip(*case.batches(), strict=True))
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    alone = scanned(case, batches=loader)
    assert tw.together(*[lambda: scanned(case, batches=loader)] * 2) == [alone, alone]


def test_together_keeps_the_points_of_scans_when_stopped_and_resumes(tmp_path):
    case, calls = ZOO["conv_bn"], []

    def predict(net, batch):
        calls.append(1)
        if len(calls) == 60:
            interrupt()
        return net(batch[0]), batch[1]

    jobs = [
        partial(scanned, replace(case, task=tw.Task(case.task.loss, predict)), 6, run=tmp_path / name) for name in "ab"
    ]
    with pytest.raises(Stopped, match="make the same call again to resume"):
        tw.together(*jobs)
    kept = [len(Run(tmp_path / name).lines(POINTS)) for name in "ab"]
    assert all(0 < number < 6 for number in kept)
    assert tw.together(*jobs) == [scanned(case, 6)] * 2


def test_together_shares_data_with_a_generator_of_their_own():
    case = ZOO["mlp"]
    x, y = (torch.cat(parts) for parts in zip(*case.batches(), strict=True))
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))

    def job(seed):
        return tw.fit(case.module(1), case.task, loader, epochs=3, lr=0.05, seed=seed).vector

    state = loader.generator.get_state()
    both = tw.together(lambda: job(1), lambda: job(2))
    assert not torch.equal(*both)
    assert torch.equal(both[0], job(1))
    assert torch.equal(both[1], job(2))
    assert torch.equal(loader.generator.get_state(), state)


def test_together_jobs_draw_from_their_own_random_numbers():
    order, drawn = [], {0: [], 1: []}

    def job(number):
        def loss(outputs, targets):
            order.append(number)
            drawn[number].append((float(torch.rand(())), random.random(), float(np.random.rand())))
            return ZOO["mlp"].task.loss(outputs, targets)

        tw.fit(ZOO["mlp"].module(1), tw.Task(loss), ZOO["mlp"].batches(), epochs=2, lr=0.1, seed=7)

    tw.together(lambda: job(0), lambda: job(1))
    assert order == [0] * STRIDE + [1] * STRIDE + [0] * (6 - STRIDE) + [1] * (6 - STRIDE)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 6


def test_together_leaves_the_callers_random_states():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    tw.together(*(lambda s=s: fitted(ZOO["dropout"], s) for s in (1, 2)))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_together_jobs_draw_different_numbers_outside_of_training():
    first, second = tw.together(*[lambda: (float(torch.rand(())), random.random(), float(np.random.rand()))] * 2)
    assert len({*first, *second}) == 6


def test_together_leaves_the_callers_random_states_when_jobs_draw_outside_of_training():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tw.together(*[lambda: torch.rand(5)] * 3)
    assert torch.equal(state, torch.get_rng_state())


def test_together_passes_the_default_device_to_jobs():
    with torch.device("meta"):
        assert tw.together(lambda: torch.zeros(1).device.type) == ["meta"]


def test_together_ends_all_jobs_at_the_first_failure():
    case, steps = ZOO["mlp"], []

    def counting(outputs, targets):
        steps.append(1)
        return case.task.loss(outputs, targets)

    def failing():
        return tw.fit(case.module(1), case.task, case.batches(), epochs=2, schedule=lambda i: float("inf"))

    def endless():
        return tw.fit(case.module(1), tw.Task(counting), case.batches(), epochs=10_000, lr=1e-3)

    threads = threading.active_count()
    with pytest.raises(tw.Diverged, match="with learning rate inf"):
        tw.together(endless, failing)
    assert len(steps) < 10
    assert threading.active_count() == threads


def stopping(case, seed, after):
    """Batches that send this process a Ctrl-C after this many."""

    class Deadly(list):
        seen = 0

        def __iter__(self):
            for batch in super().__iter__():
                self.seen += 1
                if self.seen == after:
                    interrupt()
                yield batch

    return Deadly(case.batches())


def interrupt():
    """A Ctrl-C, noted by the main thread before this returns."""
    heard = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    os.kill(os.getpid(), signal.SIGINT)
    while heard is not None and heard.requested is None:
        time.sleep(0.001)


def test_together_saves_all_jobs_when_stopped_and_resumes(tmp_path):
    case = ZOO["dropout"]

    def job(seed, batches):
        run = tmp_path / str(seed)
        return tw.fit(case.module(seed), case.task, batches, epochs=6, lr=0.05, seed=seed, run=run).vector

    with pytest.raises(Stopped, match="make the same call again to resume"):
        tw.together(lambda: job(1, case.batches()), lambda: job(2, stopping(case, 2, 7)))
    assert all((tmp_path / name / "state.safetensors").is_file() for name in "12")
    found = tw.together(*(lambda s=s: job(s, case.batches()) for s in (1, 2)))
    for seed, vector in zip((1, 2), found, strict=True):
        plain = tw.fit(case.module(seed), case.task, case.batches(), epochs=6, lr=0.05, seed=seed)
        assert torch.equal(vector, plain.vector)


def test_together_logs_how_many_were_interleaved(tmp_path):
    """So that their time can be divided; the last epoch of the longer run was its own."""
    case, epochs = ZOO["mlp"], (2, 30)

    def job(number):
        tw.fit(case.module(1), case.task, case.batches(), epochs=number, lr=0.01, run=tmp_path / str(number))

    tw.together(*(partial(job, number) for number in epochs))
    short, long = ([line.get("at_once", 1) for line in Run(tmp_path / str(number)).lines(LOG)] for number in epochs)
    assert short == [2, 2]
    assert (long[0], long[-1]) == (2, 1)


def test_together_limits_the_jobs_at_a_time(tmp_path):
    """A job that ends makes room for the next one, which takes over its stream."""
    case, epochs = ZOO["dropout"], (2, 12, 3, 1, 4)
    begun, most, streams = [], [], []

    def job(seed):
        begun.append(seed)
        job = present.get().job
        most.append(len(job.group.left))
        streams.append(job.number)
        settings = {"epochs": epochs[seed], "lr": 0.05, "seed": seed, "run": tmp_path / str(seed)}
        return tw.fit(case.module(seed), case.task, case.batches(), **settings).vector

    found = Interleaved([partial(job, seed) for seed in range(5)], 2).run()
    assert begun == [0, 1, 2, 3, 4]
    assert max(most) == 2
    assert streams == [1, 2, 1, 1, 1]  # the second is the longest
    assert [line.get("at_once", 1) for line in Run(tmp_path / "1").lines(LOG)][:5] == [2] * 5
    for seed, vector in enumerate(found):
        alone = tw.fit(case.module(seed), case.task, case.batches(), epochs=epochs[seed], lr=0.05, seed=seed)
        assert torch.equal(vector, alone.vector)


def test_together_starts_no_waiting_job_after_a_failure():
    begun = []

    def fails():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Interleaved([fails, *(partial(begun.append, k) for k in range(3))], 1).run()
    assert begun == []


def test_together_without_folders_ends_all_at_ctrl_c():
    case = ZOO["mlp"]

    def job(batches):
        return tw.fit(case.module(1), case.task, batches, epochs=10_000, lr=1e-3)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tw.together(lambda: job(case.batches()), lambda: job(stopping(case, 2, 7)))
    assert signal.getsignal(signal.SIGINT) is before


def test_together_of_no_jobs_and_of_one_at_a_time():
    assert tw.together() == []
    assert at_once([lambda: 1, lambda: 2], torch.device("cpu")) == [1, 2]
