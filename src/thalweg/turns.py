"""Several runs at once on one card: each step of a small network leaves most of the card free for another's."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from .crew import Crew
from .randomness import World
from .replay import place
from .store.runs import Interrupts

T = TypeVar("T")
STRIDE = 4  # steps of one job before the next has its turn: a change of turn costs more of the host than a short step


def together(*jobs: Callable[[], T]) -> list[T]:
    """Do several jobs at once and give their results, which are those of doing one after another.

    >>> import thalweg as tw
    >>> from functools import partial
    >>> batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(6)]
    >>> job = partial(tw.fit, torch.nn.Linear(4, 3), tw.classification(), batches, epochs=2, lr=0.1)
    >>> both = tw.together(partial(job, seed=1), partial(job, seed=2))
    >>> [bool((weights.vector == job(seed=seed).vector).all()) for weights, seed in zip(both, (1, 2))]
    [True, True]

    jobs: calls of `fit`, `connect` or `walk`, each with its own `seed`. They take turns, a few training steps each, every one
        with random numbers of its own (what a job draws beside, for a new network say, it should seed itself); on a CUDA card
        their steps then run side by side. Data that keep a position of their own, such as a DataLoader with persistent
        workers, must not be shared between them.

    The first job that fails ends the others, which can be gone on with if they have a run folder.
    """
    return Turns(jobs).run() if jobs else []


def at_once(jobs: Sequence[Callable[[], T]], device: torch.device, number: int = 3) -> list[T]:
    """`together`, so many at a time, on a card; one after another elsewhere, where nothing would be gained."""
    if device.type != "cuda" or Crew.present.size > 1:
        return [job() for job in jobs]
    return [result for start in range(0, len(jobs), number) for result in together(*jobs[start : start + number])]


def turn() -> None:
    """After a step: let the others have theirs."""
    turns = getattr(place, "turns", None)
    if turns is not None:
        turns.pass_on()


def at_present() -> int:
    """How many runs take turns now, this one included."""
    turns = getattr(place, "turns", None)
    return 1 if turns is None else len(turns.left)


class Turns:
    """One thread per job, of which one at a time is awake: the next in the circle, after every few steps."""

    def __init__(self, jobs: tuple[Callable[[], Any], ...]):
        self.jobs, self.results = jobs, [None] * len(jobs)
        self.awake = [threading.Semaphore(0) for _ in jobs]
        self.left = list(range(len(jobs)))
        self.taken = [0] * len(jobs)
        self.failure: BaseException | None = None
        chosen = torch.get_default_device()  # which threads do not inherit
        self.place = nullcontext() if chosen.type == "cpu" else chosen

    def run(self) -> list[Any]:
        device = torch.cuda.current_device() if torch.cuda.is_available() else None  # asking makes the cards' generators
        threads = [threading.Thread(target=self._work, args=(k, device)) for k in range(len(self.jobs))]
        own, above = World(), World.present
        shared: dict[int, tuple[Any, Any]] = {}
        seeds = torch.randint(
            2**31, (len(self.jobs),), device="cpu"
        ).tolist()  # each begins elsewhere, as one after another would
        self.worlds = [World(seed, shared) for seed in seeds]
        _settle()
        try:
            with Interrupts() as self.interrupts:
                for thread in threads:
                    thread.start()
                self.awake[0].release()
                self._wait(threads)
        finally:
            _settle()
            own.enter()
            World.present = above
        if self.failure is not None:
            raise self.failure
        return self.results

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt as error:  # the second one, or a further; the jobs end at their next turn
                    self.failure = self.failure or error

    def pass_on(self) -> None:
        number = place.number - 1
        following = self.left[(self.left.index(number) + 1) % len(self.left)]
        self.taken[number] += 1
        if following != number and self.taken[number] % STRIDE == 0:
            self.worlds[number].leave()
            self.awake[following].release()
            self.awake[number].acquire()
            self.worlds[number].enter()
        saves = self.interrupts.asked is not None and place.resumable  # and ends by itself
        if self.failure is not None and not saves:
            raise _Ended
        if self.interrupts.asked is not None and not saves:
            raise KeyboardInterrupt

    def _work(self, number: int, device: int | None) -> None:
        place.number, place.turns, place.interrupts, place.resumable = number + 1, self, self.interrupts, False
        self.awake[number].acquire()
        try:
            self.worlds[number].enter()
            if device is not None:
                torch.cuda.set_device(device)
            if self.failure is None:
                with self.place:
                    self.results[number] = self.jobs[number]()
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            position = self.left.index(number)
            self.left.remove(number)
            if self.left:
                self.awake[self.left[position % len(self.left)]].release()


def _settle() -> None:
    """What was begun on any stream is there for every other."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class _Ended(BaseException):
    """Another of the jobs has failed."""
