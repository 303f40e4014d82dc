"""Several runs interleaved on one GPU: a step of a small network leaves most of it idle."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..store.runs import Interrupts
from .compute import present
from .rng import World

T = TypeVar("T")
STRIDE = 4  # steps of one job before the next: switching costs the CPU more than a short step


def together(*jobs: Callable[[], T]) -> list[T]:
    """Run several trainings interleaved; the results are the same as one after another.

    Examples:
        >>> import thalweg as tw
        >>> from functools import partial
        >>> batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(6)]
        >>> job = partial(tw.fit, torch.nn.Linear(4, 3), tw.classification(), batches, epochs=2, lr=0.1)
        >>> both = tw.together(partial(job, seed=1), partial(job, seed=2))
        >>> [bool((weights.vector == job(seed=seed).vector).all()) for weights, seed in zip(both, (1, 2))]
        [True, True]

    On a GPU, the steps of the jobs overlap. The first job that fails ends the others, which can be resumed if they have
    a run folder.

    Args:
        jobs: Calls of `fit`, `connect` or `walk`, each with its own `seed` and random state; seed other randomness
            inside a job, such as the initialisation of a network, yourself. Jobs must not share data that keeps a
            position, such as a DataLoader with persistent workers.

    Returns:
        The results, in the order of the jobs.
    """
    return Interleaved(jobs).run() if jobs else []


def at_once(jobs: Sequence[Callable[[], T]], device: torch.device, number: int = 3) -> list[T]:
    """`together` in groups of `number` on a GPU; one after another elsewhere, where it would gain nothing."""
    if device.type != "cuda" or present.get().processes.size > 1:
        return [job() for job in jobs]
    return [result for start in range(0, len(jobs), number) for result in together(*jobs[start : start + number])]


class Job:
    """The slot of one of the interleaved jobs; see `context.Slot`."""

    def __init__(self, all_jobs: "Interleaved", number: int, world: World):
        self.all, self.number, self.world = all_jobs, number, world
        self.interrupts, self.resumable, self.steps = all_jobs.interrupts, False, 0

    def running(self) -> int:
        """How many jobs are running, including this one."""
        return len(self.all.left)

    def pass_on(self) -> None:
        """After a step: let the other jobs run."""
        self.steps += 1
        following = self.all.left[(self.all.left.index(self.number) + 1) % len(self.all.left)]
        if following != self.number and self.steps % STRIDE == 0:
            self.world.leave()
            self.all.awake[following].release()
            self.all.awake[self.number].acquire()
            self.world.enter()
        saves = self.interrupts.asked is not None and self.resumable  # and ends by itself
        if self.all.failure is not None and not saves:
            raise _Ended
        if self.interrupts.asked is not None and not saves:
            raise KeyboardInterrupt


class Interleaved:
    """One thread per job, of which only one is awake at a time; the next one wakes after every few steps."""

    def __init__(self, jobs: tuple[Callable[[], Any], ...]):
        self.jobs = dict(enumerate(jobs, start=1))
        self.results: dict[int, Any] = {}
        self.awake = {number: threading.Semaphore(0) for number in self.jobs}
        self.left = list(self.jobs)
        self.failure: BaseException | None = None
        self.interrupts = Interrupts(slot=present.get().slot)
        chosen = torch.get_default_device()  # which threads do not inherit
        self.place = nullcontext() if chosen.type == "cpu" else chosen

    def run(self) -> list[Any]:
        # asking creates the GPUs' generators
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        own, shared = World(), dict[int, tuple[Any, Any]]()
        seeds = torch.randint(2**31, (len(self.jobs),), device="cpu").tolist()  # each starts elsewhere
        slots = [Job(self, number, World(seed, shared)) for number, seed in zip(self.jobs, seeds, strict=True)]
        threads = [threading.Thread(target=copy_context().run, args=(self._work, slot, device)) for slot in slots]
        _settle()
        try:
            with self.interrupts:
                for thread in threads:
                    thread.start()
                self.awake[1].release()
                self._wait(threads)
        finally:
            _settle()
            own.enter()
        if self.failure is not None:
            raise self.failure
        return [self.results[number] for number in self.jobs]

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt as error:  # the second one, or a further; the jobs end after their next step
                    self.failure = self.failure or error

    def _work(self, slot: Job, device: int | None) -> None:
        present.set(replace(present.get(), slot=slot))
        self.awake[slot.number].acquire()
        try:
            slot.world.enter()
            if device is not None:
                torch.cuda.set_device(device)
            if self.failure is None:
                with self.place:
                    self.results[slot.number] = self.jobs[slot.number]()
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            position = self.left.index(slot.number)
            self.left.remove(slot.number)
            if self.left:
                self.awake[self.left[position % len(self.left)]].release()


def _settle() -> None:
    """What was begun on any stream is there for every other."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class _Ended(BaseException):
    """Another of the jobs has failed."""
