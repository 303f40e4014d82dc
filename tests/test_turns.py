"""Calls in several threads give what they give alone, and wait for nobody who does not exist."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from warnings import catch_warnings

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.runtime.interleave import Interleaved

CASE = ZOO["dropout"]
TASK, BATCHES = CASE.task, CASE.batches()
MODULE, ENDS = CASE.module(1), CASE.ends()  # made here, since making one draws from the global generators


def fitted(seed, task=TASK):
    return tw.fit(MODULE, task, BATCHES, epochs=3, lr=0.05, seed=seed).vector


def aligned(seed):
    return tw.align(MODULE, *ENDS, TASK, BATCHES, seed=seed).vector


def predicted(seed):
    return tw.Ensemble(MODULE, ENDS[:seed]).predict(TASK, BATCHES)[0]


def interleaved(seed):
    return torch.stack(tw.together(partial(fitted, seed), partial(fitted, seed + 10)))


def in_threads(*jobs):
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [running.result(timeout=100) for running in [pool.submit(job) for job in jobs]]


def test_calls_in_threads_give_what_they_give_alone():
    jobs = [partial(work, seed) for seed in (1, 2) for work in (fitted, aligned, predicted, interleaved)]
    alone, state = [job() for job in jobs], torch.get_rng_state()
    for one, two in zip(alone, in_threads(*jobs), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert all(part.training for part in MODULE.modules())


def test_jobs_interleaved_outside_of_a_call_keep_others_waiting():
    alone = [fitted(seed) for seed in (1, 2, 3)]
    jobs = [partial(fitted, seed) for seed in (1, 2)]
    both, third = in_threads(lambda: Interleaved(jobs, 2).run(), partial(fitted, 3))
    assert all(map(torch.equal, alone, [*both, third]))


@pytest.fixture
def busy():
    """Another thread is inside a call until this is set."""
    inside, done = threading.Event(), threading.Event()

    def loss(outputs, targets):
        inside.set()
        done.wait(timeout=100)
        return TASK.loss(outputs, targets)

    thread = threading.Thread(target=fitted, args=(1, tw.Task(loss)))
    thread.start()
    inside.wait(timeout=100)
    yield done
    done.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_while_another_thread_is_inside_a_call_does_not_hang(busy):
    with catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        signal.alarm(50)
        fitted(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_ctrl_c_ends_the_waiting_for_another_call(busy):
    stop = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    free = threading.Timer(20, busy.set)
    for timer in (stop, free):
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        fitted(2)
    stop.join()
    assert not busy.is_set()
    free.cancel()
    busy.set()
    fitted(2)
