"""How far a run has come: who watches it, what is saved of it, and how it goes on as if nothing had happened."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batches import Batches
from ..crew import Crew
from ..hidden import ABSENT, moved, numbered, walk
from ..randomness import Snapshot, capture, reinstate
from ..store.files import below, reading
from ..store.packing import packed, unpacked
from ..store.runs import LOG, STATE, Interrupts, Run
from ..turns import at_present
from .engine import Engine
from .extra import Extra


class Observer:
    """Told of everything the loop does; does nothing by itself."""

    def begin(self, engine: Engine, steps: int) -> None:
        """Before the first step, with `steps` to come in each epoch."""

    def after_step(self, i: int, lr: float, loss: Tensor) -> None:
        """After the update of iteration i."""

    def after_epoch(self, epoch: int) -> None:
        """After an epoch, counted from 1, once it is known to be in order."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What it needs to go on: tensors, and what JSON can hold."""
        return {}, {}

    def set_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Go on from there."""


class Saver:
    """Counts steps and epochs, saves the state when it is due, and starts from a saved one if there is one.

    In the middle of an epoch, the order of the data is that of the epoch's beginning: random states of then and of now are
    both kept, the batches already seen are passed over, and the states of now are put back.
    """

    def __init__(
        self, run: Run | None, engine: Engine, observer: Observer, batches: Batches, passes: Callable[[], Iterator[Any]]
    ):
        self.run, self.engine, self.observer, self.batches, self.passes = run, engine, observer, batches, passes
        self.epoch, self.within, self.done = 1, 0, 0
        self.losses: list[Tensor] = []
        self.earlier = 0.0  # sum of the losses of this epoch from before the run was resumed
        self.clock = time.monotonic()
        self.first: Snapshot = capture(batches) if run is not None else {}
        self.beginning, self.present = self.first, self.first
        self.moved: set[str] = set()  # names of what has changed since the run began, of which alone a state speaks
        state = Crew.present.first_does(lambda: run.load() if run is not None else None)
        if run is not None or state is not None:
            self.extra = Extra(engine.motion.probe.module, engine.task, batches, engine.optimizer)
        folder = Path() if run is None else run.folder
        if state is not None:
            with reading(folder / STATE):
                self._restore(*state)
        if run is not None:
            told = run.lines(LOG)
            with reading(folder / LOG):
                still = [entry for entry in told if entry["epoch"] < self.epoch]
            run.rewrite(LOG, still, changed=len(still) < len(told))

    def rest_of_epoch(self) -> Iterator[Any]:
        """The batches of this epoch that have not been seen."""
        rest = self.passes()
        if self.within:
            reinstate(self.beginning, self.batches)
            for _ in range(self.within):
                next(rest)
            reinstate({name: self.present[name] for name in self.present.keys() - self._others()}, self.batches)
        elif self.run is not None:
            self.beginning = capture(self.batches)
        yield from rest

    def count(self, loss: Tensor) -> None:
        self.done += 1
        self.within += 1
        if self.run is not None:
            self.losses.append(loss)
            self.extra.look()

    def after_step(self, interrupts: Interrupts) -> None:
        """Save if it is time, or if somebody wants to stop."""
        exchange = self.engine.exchange
        stop, due = self._wishes(interrupts) if exchange is None else exchange.granted(self.done)
        if self.run is not None and (stop or due):
            self._save()
        if stop and interrupts.wanted:
            interrupts.grant(self.run, f"step {self.done}, in epoch {self.epoch}")

    def before_step(self, interrupts: Interrupts) -> None:
        if self.engine.exchange is not None:
            self.engine.exchange.wish(*self._wishes(interrupts))

    def _wishes(self, interrupts: Interrupts) -> tuple[bool, bool]:
        return interrupts.asked is not None, self.run is not None and self.run.due(None)

    def after_epoch(self, lr: float) -> None:
        ended = self.epoch
        if self.run is not None:
            seconds = round(time.monotonic() - self.clock, 3)
            entry = {"epoch": ended, "iteration": self.done, "lr": lr, "loss": self._total() / self.within, "seconds": seconds}
            self.run.append(LOG, entry | ({"at_once": number} if (number := at_present()) > 1 else {}))
        self.epoch, self.within, self.losses, self.earlier, self.clock = ended + 1, 0, [], 0.0, time.monotonic()
        if self.run is not None and self.run.due(ended):
            self._save()

    def _total(self) -> float:
        return self.earlier + sum(torch.stack(self.losses).tolist() if self.losses else [])

    def _others(self) -> set[str]:
        """Names of what the data keep now and cannot be saved, though it was a value at first, such as None."""
        return walk(numbered([self.batches])).others

    def _save(self) -> None:
        assert self.run is not None
        present = capture(self.batches)
        beginning = self.beginning if self.within else present
        self.moved |= moved(self.first, beginning, present)
        names = sorted(self.moved - self._others())
        chosen = [{name: state.get(name, ABSENT) for name in names} for state in (beginning, present)]
        parts = {"beginning": packed(chosen[0]), "present": packed(chosen[1]), "observer": self.observer.state()}
        parts |= {"extra": self.extra.state(), "optimizer": packed(self.engine.extra.state())}
        tensors = {f"{part}.{name}": tensor for part, (own, _) in parts.items() for name, tensor in own.items()}
        counted = {"epoch": self.epoch, "within": self.within, "done": self.done, "losses": self._total()}
        about = {**counted, "unreached": sorted(self.engine.motion.probe.unreached)}
        self.run.save(self.engine.state() | tensors, about | {part: story for part, (_, story) in parts.items()})

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        self.engine.set_state(tensors)
        self.engine.motion.probe.remember_reached(about["unreached"])
        self.observer.set_state(below(tensors, "observer."), about["observer"])
        self.extra.set_state(below(tensors, "extra."), about["extra"])
        self.engine.extra.set_state(unpacked(below(tensors, "optimizer."), about["optimizer"]))
        self.epoch, self.within, self.done, self.earlier = (about[key] for key in ("epoch", "within", "done", "losses"))
        beginning, present = (unpacked(below(tensors, f"{when}."), about[when]) for when in ("beginning", "present"))
        self.moved = set(present)
        self.beginning, self.present = self.first | beginning, self.first | present
        reinstate(self.present, self.batches)
