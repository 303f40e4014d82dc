"""Several runs at once: each as if it were alone, and none left behind when one fails or all are stopped."""

import os
import random
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.runtime.interleave import STRIDE, at_once
from thalweg.store.runs import LOG, Run

METHOD = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)


def fitted(animal, seed, **settings):
    return tw.fit(animal.module(seed), animal.task, animal.batches(), epochs=3, lr=0.05, seed=seed, **settings).vector


@pytest.mark.parametrize("name", ZOO)
def test_each_run_is_what_it_is_alone(name):
    animal = ZOO[name]
    for seed, vector in zip((1, 2, 3), tw.together(*(lambda s=s: fitted(animal, s) for s in (1, 2, 3))), strict=True):
        assert torch.equal(vector, fitted(animal, seed))


def test_different_jobs_of_different_lengths():
    animal = ZOO["dropout"]
    module, (a, b) = animal.module(1), animal.ends()
    jobs = [
        lambda: fitted(animal, 1),
        lambda: tw.connect(module, tw.Bezier(a, b), animal.task, animal.batches(), epochs=5, lr=0.05).bends[0].vector,
        lambda: torch.stack(
            [w.vector for w in tw.walk(module, animal.task, animal.batches(), METHOD, epochs=2).members]
        ),
        lambda: torch.zeros(1),
    ]
    assert all(torch.equal(one, job()) for one, job in zip(tw.together(*jobs), jobs, strict=True))


def test_data_with_a_generator_of_their_own_may_be_shared():
    animal = ZOO["mlp"]
    x, y = (torch.cat(parts) for parts in zip(*animal.batches(), strict=True))
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))

    def job(seed):
        return tw.fit(animal.module(1), animal.task, loader, epochs=3, lr=0.05, seed=seed).vector

    state = loader.generator.get_state()
    both = tw.together(lambda: job(1), lambda: job(2))
    assert not torch.equal(*both)
    assert torch.equal(both[0], job(1))
    assert torch.equal(both[1], job(2))
    assert torch.equal(loader.generator.get_state(), state)


def test_interleaved_jobs_draw_from_their_own_random_numbers():
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


def test_the_callers_random_states_stay():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    tw.together(*(lambda s=s: fitted(ZOO["dropout"], s) for s in (1, 2)))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_what_jobs_draw_outside_of_training_is_not_the_same_in_all():
    first, second = tw.together(*[lambda: (float(torch.rand(())), random.random(), float(np.random.rand()))] * 2)
    assert len({*first, *second}) == 6


def test_the_callers_random_states_stay_though_jobs_draw_outside_of_training():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tw.together(*[lambda: torch.rand(5)] * 3)
    assert torch.equal(state, torch.get_rng_state())


def test_the_default_device_reaches_the_jobs():
    with torch.device("meta"):
        assert tw.together(lambda: torch.zeros(1).device.type) == ["meta"]


def test_the_first_failure_ends_all():
    animal, steps = ZOO["mlp"], []

    def counting(outputs, targets):
        steps.append(1)
        return animal.task.loss(outputs, targets)

    def failing():
        return tw.fit(animal.module(1), animal.task, animal.batches(), epochs=2, schedule=lambda i: float("inf"))

    def endless():
        return tw.fit(animal.module(1), tw.Task(counting), animal.batches(), epochs=10_000, lr=1e-3)

    threads = threading.active_count()
    with pytest.raises(tw.Diverged):
        tw.together(endless, failing)
    assert len(steps) < 10
    assert threading.active_count() == threads


def stopping(animal, seed, after):
    """Batches that send this process a Ctrl-C after so many."""

    class Deadly(list):
        seen = 0

        def __iter__(self):
            for batch in super().__iter__():
                self.seen += 1
                if self.seen == after:
                    heard = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
                    os.kill(os.getpid(), signal.SIGINT)
                    while heard is not None and heard.asked is None:  # by the main thread, when it comes to it
                        time.sleep(0.001)
                yield batch

    return Deadly(animal.batches())


def test_all_are_saved_when_they_are_stopped_and_resume(tmp_path):
    animal = ZOO["dropout"]

    def job(seed, batches):
        run = tmp_path / str(seed)
        return tw.fit(animal.module(seed), animal.task, batches, epochs=6, lr=0.05, seed=seed, run=run).vector

    with pytest.raises(Stopped, match="make the same call again to resume"):
        tw.together(lambda: job(1, animal.batches()), lambda: job(2, stopping(animal, 2, 7)))
    assert all((tmp_path / name / "state.safetensors").is_file() for name in "12")
    found = tw.together(*(lambda s=s: job(s, animal.batches()) for s in (1, 2)))
    for seed, vector in zip((1, 2), found, strict=True):
        plain = tw.fit(animal.module(seed), animal.task, animal.batches(), epochs=6, lr=0.05, seed=seed)
        assert torch.equal(vector, plain.vector)


def test_logs_say_how_many_were_interleaved(tmp_path):
    """So that their time can be divided; the last epoch of the longer run was its own."""
    animal, epochs = ZOO["mlp"], (2, 30)

    def job(number):
        tw.fit(animal.module(1), animal.task, animal.batches(), epochs=number, lr=0.01, run=tmp_path / str(number))

    tw.together(*(partial(job, number) for number in epochs))
    short, long = ([line.get("at_once", 1) for line in Run(tmp_path / str(number)).lines(LOG)] for number in epochs)
    assert short == [2, 2]
    assert (long[0], long[-1]) == (2, 1)


def test_without_folders_a_ctrl_c_ends_all():
    animal = ZOO["mlp"]

    def job(batches):
        return tw.fit(animal.module(1), animal.task, batches, epochs=10_000, lr=1e-3)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tw.together(lambda: job(animal.batches()), lambda: job(stopping(animal, 2, 7)))
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_to_do_and_one_after_another():
    assert tw.together() == []
    assert at_once([lambda: 1, lambda: 2], torch.device("cpu")) == [1, 2]
