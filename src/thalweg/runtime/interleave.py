"""Several runs interleaved on one GPU: a step of a small network leaves most of it idle."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..store.interrupts import Interrupts
from ..turns import own_turn
from .compute import present
from .rng import RandomStates

T = TypeVar("T")
STRIDE = 4  # steps of one job before the next: switching costs the CPU more than a short step


def together(*jobs: Callable[[], T]) -> list[T]:
    """Interleave several training runs or scans; the results are the same as one after another.

    Examples:
        >>> import thalweg as tw
        >>> from functools import partial
        >>> batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(6)]
        >>> job = partial(tw.fit, torch.nn.Linear(4, 3), tw.classification(), batches, epochs=2, lr=0.1)
        >>> both = tw.together(partial(job, seed=1), partial(job, seed=2))
        >>> [bool((weights.vector == job(seed=seed).vector).all()) for weights, seed in zip(both, (1, 2))]
        [True, True]

    On a GPU, the steps of the jobs overlap, and so do the points of scans. The first job that fails ends the others,
    which can be resumed if they have a run folder.

    Args:
        jobs: Calls of `fit`, `connect`, `walk` or `scan`, each with its own `seed` and random state; seed other
            randomness inside a job, such as the initialisation of a network, yourself. Jobs must not share data that
            keeps a position, such as a DataLoader with persistent workers.

    Returns:
        The results, in the order of the jobs.
    """
    return Interleaved(jobs, len(jobs)).run() if jobs else []


def at_once(jobs: Sequence[Callable[[], T]], device: torch.device, number: int = 3) -> list[T]:
    """`together` on a GPU, but at most `number` at a time, the next beginning when one ends; one after another
    elsewhere, where interleaving would gain nothing.
    """
    if device.type != "cuda" or present.get().processes.size > 1:
        return [job() for job in jobs]
    return Interleaved(jobs, number).run() if jobs else []


class Job:
    """One of the interleaved jobs, in a thread of its own; its number, from 1, selects its CUDA stream, which it takes
    over from the job that it succeeds.
    """

    def __init__(self, work: Callable[[], Any], number: int, states: RandomStates, group: "Interleaved"):
        self.work = work
        self.number = number
        self.states = states
        self.group = group
        self.interrupts, self.awake, self.steps = group.interrupts, threading.Semaphore(0), 0
        self.resumable = False  # whether it saves its state when it is asked to stop

    def start(self) -> None:
        self.thread = threading.Thread(target=copy_context().run, args=(self._run,))
        self.thread.start()

    def running(self) -> int:
        """How many jobs are running, including this one."""
        return len(self.group.left)

    def wait(self, device: torch.device) -> None:
        """Let the other jobs run until a GPU has finished what this one has begun; on a CPU, let each run once."""
        if device.type != "cuda":
            return self.switch(1)
        done = torch.cuda.Event()
        done.record()
        while self.running() > 1 and not done.query():
            self.switch(1)

    def switch(self, stride: int = STRIDE) -> None:
        """After a step: let the other jobs run, if it is the last of a stride."""
        self.steps += 1
        following = self.group.left[(self.group.left.index(self) + 1) % self.running()]
        if following is not self and self.steps % stride == 0:
            self.states.leave()
            following.awake.release()
            self.awake.acquire()
            self.states.enter()
        saves = self.interrupts.requested is not None and self.resumable  # and ends by itself
        if self.group.failure is not None and not saves:
            raise _Ended
        if self.interrupts.requested is not None and not saves:
            raise KeyboardInterrupt

    def _run(self) -> None:
        present.set(replace(present.get(), job=self))
        self.awake.acquire()
        try:
            self.states.enter()
            if self.group.gpu is not None:
                torch.cuda.set_device(self.group.gpu)
            if self.group.failure is None:
                with self.group.place:
                    self.result = self.work()
        except BaseException as error:
            self.group.failure = self.group.failure or error
        finally:
            left, position = self.group.left, self.group.left.index(self)
            left.remove(self)
            if self.group.waiting:
                left.insert(position, self.group.waiting.pop(0))
                left[position].number = self.number
            if left:
                left[position % len(left)].awake.release()


class Interleaved:
    """Jobs of which only one is awake at a time; the next one wakes after every few steps. No more than `number` have
    begun and not ended.
    """

    def __init__(self, works: Sequence[Callable[[], Any]], number: int):
        self.interrupts = Interrupts(job=present.get().job)
        self.failure: BaseException | None = None
        chosen = torch.get_default_device()  # which threads do not inherit, nor the current GPU
        self.place = nullcontext() if chosen.type == "cpu" else chosen
        # asking creates the GPUs' generators
        self.gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self.before, shared = RandomStates(), dict[int, tuple[Any, Any]]()
        seeds = torch.randint(2**31, (len(works),), device="cpu").tolist()  # each starts elsewhere
        numbered = enumerate(zip(works, seeds, strict=True), start=1)
        jobs = [Job(work, place, RandomStates(seed, shared), self) for place, (work, seed) in numbered]
        self.left, self.waiting = jobs[:number], jobs[number:]

    def run(self) -> list[Any]:
        jobs = [*self.left, *self.waiting]
        _synchronize()
        try:
            with own_turn(), self.interrupts:
                for job in jobs:
                    job.start()
                jobs[0].awake.release()
                for job in jobs:
                    self._wait(job.thread)
        finally:
            _synchronize()
            self.before.enter()
        if self.failure is not None:
            raise self.failure
        return [job.result for job in jobs]

    def _wait(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as error:  # the second one, or a further; the jobs end after their next step
                self.failure = self.failure or error


def _synchronize() -> None:
    """What was begun on any stream is there for every other."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class _Ended(BaseException):
    """Another of the jobs has failed."""
