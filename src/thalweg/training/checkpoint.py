"""The state of a run: what is saved, and how it is resumed as if it had not been interrupted."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batches import Batches
from ..errors import ThalwegError
from ..hidden import ABSENT, moved, numbered, walk
from ..runtime.compute import Context
from ..runtime.rng import Snapshot, capture, reinstate
from ..store.files import below, reading
from ..store.packing import packed, unpacked
from ..store.runs import LOG, STATE, Run
from ..weightspace.checkpoint import Checkpoint
from .extra import Extra, OptimizerExtra
from .loop import Observer
from .step import Step

NUMBER = "#"  # suffix for optimizer state that is a plain number


class Course:
    """Counts steps and epochs, saves the state when it is due, and starts from a saved one if there is one.

    In the middle of an epoch, the order of the data is that of its beginning: the random states of then and of now are
    both saved, the batches already seen are skipped, and the states of now are restored.
    """

    def __init__(
        self,
        run: Run | None,
        step: Step,
        observer: Observer,
        batches: Batches,
        passes: Callable[[], Iterator[Any]],
        context: Context,
        optimizer: OptimizerExtra,
    ):
        self.run, self.step, self.observer, self.batches, self.passes = run, step, observer, batches, passes
        self.slot, self.optimizer = context.slot, optimizer
        self.epoch, self.within, self.done = 1, 0, 0
        self.losses: list[Tensor] = []
        self.earlier = 0.0  # sum of the losses of this epoch from before the run was resumed
        self.clock = time.monotonic()
        self.first: Snapshot = capture(batches) if run is not None else {}
        self.beginning, self.present = self.first, self.first
        self.moved: set[str] = set()  # names of what has changed since the run began; only these are saved
        state = context.processes.once(lambda: run.load() if run is not None else None)
        if run is not None or state is not None:
            self.extra = Extra(step.probe.module, step.task, batches, step.optimizer)
        folder = Path() if run is None else run.folder
        if state is not None:
            with reading(folder / STATE):
                self._restore(*state)
        if run is not None:
            logged = run.lines(LOG)
            with reading(folder / LOG):
                still = [entry for entry in logged if entry["epoch"] < self.epoch]
            run.rewrite(LOG, still, changed=len(still) < len(logged))

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

    def after_epoch(self, lr: float) -> None:
        ended = self.epoch
        if self.run is not None:
            seconds = round(time.monotonic() - self.clock, 3)
            entry = {
                "epoch": ended,
                "iteration": self.done,
                "lr": lr,
                "loss": self._total() / self.within,
                "seconds": seconds,
            }
            number = self.slot.running() if self.slot is not None else 1
            self.run.append(LOG, entry | ({"at_once": number} if number > 1 else {}))
        self.epoch, self.within, self.losses, self.earlier, self.clock = ended + 1, 0, [], 0.0, time.monotonic()
        if self.run is not None and self.run.due(ended):
            self.save()

    def _total(self) -> float:
        return self.earlier + sum(torch.stack(self.losses).tolist() if self.losses else [])

    def _others(self) -> set[str]:
        """Names of what the data hold now and cannot be saved, though it was a plain value at first, such as None."""
        return walk(numbered([self.batches])).others

    def save(self) -> None:
        assert self.run is not None
        present = capture(self.batches)
        beginning = self.beginning if self.within else present
        self.moved |= moved(self.first, beginning, present)
        names = sorted(self.moved - self._others())
        chosen = [{name: state.get(name, ABSENT) for name in names} for state in (beginning, present)]
        parts = {"beginning": packed(chosen[0]), "present": packed(chosen[1]), "observer": self.observer.state()}
        parts |= {"extra": self.extra.state(), "optimizer": packed(self.optimizer.state())}
        tensors = {f"{part}.{name}": tensor for part, (own, _) in parts.items() for name, tensor in own.items()}
        counted = {"epoch": self.epoch, "within": self.within, "done": self.done, "losses": self._total()}
        about = {**counted, "unreached": sorted(self.step.probe.unreached)}
        self.run.save(state_of(self.step) | tensors, about | {part: story for part, (_, story) in parts.items()})

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        set_state(self.step, tensors)
        self.step.probe.remember_reached(about["unreached"])
        self.observer.set_state(below(tensors, "observer."), about["observer"])
        self.extra.set_state(below(tensors, "extra."), about["extra"])
        self.optimizer.set_state(unpacked(below(tensors, "optimizer."), about["optimizer"]))
        self.epoch, self.within, self.done, self.earlier = (about[key] for key in ("epoch", "within", "done", "losses"))
        beginning, present = (unpacked(below(tensors, f"{when}."), about[when]) for when in ("beginning", "present"))
        self.moved = set(present)
        self.beginning, self.present = self.first | beginning, self.first | present
        reinstate(self.present, self.batches)


def state_of(step: Step) -> dict[str, Tensor]:
    """Everything that changes, by name: vectors, optimizer state, buffers, and what the motion adds."""
    probe, found = step.probe, {f"motion.{key}": value for key, value in step.motion.state().items()}
    for k, vector in enumerate(step.motion.vectors):
        found[f"vector.{k}"] = probe.canonical(vector)
        found |= {f"optimizer.{k}.{key}": value for key, value in _memory(step, vector).items()}
    return found | {f"buffer.{name}": buffer for name, buffer in probe.module.named_buffers()}


def set_state(step: Step, state: Mapping[str, Tensor]) -> None:
    """Restore what `state_of` returned."""
    step.motion.set_state(below(state, "motion."))
    for k, vector in enumerate(step.motion.vectors):
        vector.copy_(step.probe.native(state[f"vector.{k}"]))
        _remember(step, vector, below(state, f"optimizer.{k}."))
    for name, value in below(state, "buffer.").items():
        _set_buffer(step, name, value)
    step.probe.moved()


def checkpoint(step: Step, epoch: int, extra: OptimizerExtra) -> Checkpoint:
    """The current weights and optimizer state of plain training."""
    memory = _memory(step, step.motion.vectors[0])
    return Checkpoint(step.probe.weights(), memory, type(step.optimizer).__name__, epoch, extra.state())


def restore(step: Step, start: Checkpoint, extra: OptimizerExtra) -> None:
    """Restore the optimizer state of a checkpoint; the weights are the probe's business."""
    kind = type(step.optimizer).__name__
    if start.kind != kind:
        raise ThalwegError(
            f"the start was kept with the state of {start.kind}, and cannot be resumed with {kind}: use the same "
            "optimizer, or start from its .weights alone"
        )
    _remember(step, step.motion.vectors[0], start.optimizer)
    extra.set_state(start.extra)


def _set_buffer(step: Step, name: str, value: Tensor) -> None:
    """In place if possible; a buffer that grew, or was made in training, has another shape or was not there."""
    parent, _, key = name.rpartition(".")
    part = step.probe.module.get_submodule(parent)
    known = part._buffers.get(key)
    if known is not None and (known.shape, known.dtype) == (value.shape, value.dtype):
        known.copy_(value)
    else:
        part._buffers[key] = value.to(step.probe.device, copy=True)


def _memory(step: Step, vector: Tensor) -> dict[str, Tensor]:
    """The optimizer state of a vector, in the order of the layout."""
    state = step.optimizer.state[vector].items()
    known = {key: value for key, value in state if isinstance(value, Tensor)}
    known |= {key + NUMBER: torch.tensor(value) for key, value in state if isinstance(value, int | float)}
    return {key: step.probe.canonical(v) if v.shape == vector.shape else v.clone() for key, v in known.items()}


def _remember(step: Step, vector: Tensor, memory: Mapping[str, Tensor]) -> None:
    """Into existing tensors, whose addresses a kernel may know."""
    known = step.optimizer.state[vector]
    for key, value in memory.items():
        if key.endswith(NUMBER):
            known[key.removesuffix(NUMBER)] = value.item()
            continue
        new = step.probe.native(value).to(vector.device) if value.shape == vector.shape else value.clone()
        if isinstance(known.get(key), Tensor):
            known[key].copy_(new)
        else:
            fused = any(group.get("fused") for group in step.optimizer.param_groups)
            known[key] = new.to(vector.device) if step.memory_on_device or fused else new
