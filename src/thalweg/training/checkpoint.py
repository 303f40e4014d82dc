"""The state of a run: what is saved, and how it is resumed as if it had not been interrupted."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import ThalwegError, during
from ..object_state import ABSENT, changed, numbered, traverse
from ..runtime.compute import Context
from ..runtime.rng import Snapshot, capture, reinstate, undisturbed
from ..store import files, packing
from ..store.runs import LOG, STATE, Run
from ..weightspace.checkpoint import PART, Checkpoint
from ..weightspace.weights import LARGE
from .loop import Observer, OnEpoch
from .side_state import HiddenState, SideState
from .step import Bends, Optimized, Step

NUMBER = "#"  # after the name of state that is a plain number


class TrainingProgress:
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
        optimizer: HiddenState,
        on_epoch: OnEpoch | None = None,
    ):
        self.run = run
        self.step = step
        self.observer = observer
        self.batches = batches
        self.passes = passes
        self.job = context.job
        self.optimizer = optimizer
        self.processes = context.processes
        self.on_epoch = on_epoch
        self.reports = context.processes.once(lambda: on_epoch is not None)  # rank 0 decides
        self.epoch, self.within, self.done = 1, 0, 0
        self.loss, self.t = _Sum(), _Sum()  # over the steps of this epoch
        self.clock = time.monotonic()
        self.first: Snapshot = capture(batches) if run is not None else {}
        self.beginning = self.present = self.first
        self.changed: set[str] = set()  # names of what has changed since the run began; only these are saved
        state = context.processes.once(lambda: run.load() if run is not None else None)
        if run is not None or state is not None:
            module = step.probe.module if step.probe.copied else nn.Module()  # one in shards has no other state
            self.extra = SideState(module, step.task, batches, step.optimizer)
        if state is not None:
            with files.reading(Path(STATE) if run is None else run.folder / STATE):
                self._restore(packing.unpacked(*(state if run is None else run.own(state))))
        if run is not None:
            logged = run.lines(LOG)
            with files.reading(run.folder / LOG):
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
        if self.run is not None or self.reports:
            t = self.step.trainable.t
            self.loss.terms.append(loss)
            device = getattr(t, "device", "cpu")
            self.t.terms += [] if t is None else [torch.as_tensor(t, dtype=torch.float64, device=device).clone()]
        if self.run is not None:
            self.extra.warn_if_unsaved()

    def after_epoch(self, lr: float) -> None:
        ended, loss, seconds = self.epoch, self.loss.total() / self.within, time.monotonic() - self.clock
        entry = {"epoch": ended, "iteration": self.done, "loss": loss, "rate": float(lr), "seconds": seconds}
        if self.reports and isinstance(self.step.trainable, Bends):  # the loss is already that of all ranks
            every = self.processes.gather(self.t.total() / self.within)
            entry["t"] = sum(every) / len(every)
        if self.run is not None:
            number = self.job.running() if self.job is not None else 1
            line = {"epoch": ended, "iteration": self.done, "lr": lr, "loss": loss, "seconds": round(seconds, 3)}
            self.run.append(LOG, line | ({"at_once": number} if number > 1 else {}))
        self.epoch, self.within, self.clock = ended + 1, 0, time.monotonic()
        self.loss, self.t = _Sum(), _Sum()
        if self.run is not None and self.run.due(ended):
            self.save()
        if self.reports:
            self._report(entry)

    def _report(self, entry: dict[str, float]) -> None:
        """Call `on_epoch` without a trace in the training; if it raises, a resumed run starts after this epoch."""

        def call() -> None:
            assert self.on_epoch is not None
            with during("calling on_epoch"), undisturbed(self.batches), torch.enable_grad():
                self.on_epoch(entry)

        try:
            self.processes.once(call)
        except BaseException:
            if self.run is not None:
                self.save()
            raise

    def _others(self) -> set[str]:
        """Names of what the data hold now and cannot be saved, though it was a plain value at first, such as None."""
        return traverse(numbered([self.batches])).others

    def save(self) -> None:
        assert self.run is not None
        present = capture(self.batches)
        beginning = self.beginning if self.within else present
        self.changed |= changed(self.first, beginning, present)
        names = sorted(self.changed - self._others())
        state = {
            "epoch": self.epoch,
            "within": self.within,
            "done": self.done,
            "losses": self.loss.total(),
            "t": self.t.total(),
            "beginning": {name: beginning.get(name, ABSENT) for name in names},
            "present": {name: present.get(name, ABSENT) for name in names},
            "step": state_of(self.step),
            "observer": self.observer.state(),
            "extra": self.extra.state(),
            "optimizer": self.optimizer.state(),
        }
        self.run.save(*packing.packed(state))

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["extra"]["frozen"]:  # which the network moves; otherwise they would be written into the caller's
            self.step.probe.unshare()
        set_state(self.step, state["step"])
        self.observer.set_state(state["observer"])
        self.extra.set_state(state["extra"])
        self.optimizer.set_state(state["optimizer"])
        self.epoch, self.within, self.done = (state[key] for key in ("epoch", "within", "done"))
        self.loss, self.t = _Sum(state["losses"]), _Sum(state.get("t", 0.0))  # states of 0.1.0 have no t
        self.changed = set(state["present"])
        self.beginning, self.present = self.first | state["beginning"], self.first | state["present"]
        reinstate(self.present, self.batches)


class _Sum:
    """A sum over steps, whose terms may still be computed by a GPU.

    Args:
        earlier: The sum from before the run was resumed.
    """

    def __init__(self, earlier: float = 0.0):
        self.earlier, self.terms = earlier, list[Tensor]()

    def total(self) -> float:
        return self.earlier + sum(torch.stack(self.terms).tolist() if self.terms else [])


def state_of(step: Step) -> dict[str, Any]:
    """Everything that a step changes: vectors, optimizer state, buffers, and what is added for a curve."""
    return {
        "motion": step.trainable.state(),
        "vectors": [step.probe.to_layout_order(vector.to(_where(step))) for vector in step.trainable.vectors],
        "optimizer": [_optimizer_state(step, row) for row in step.trainable.optimized],
        "buffers": dict(step.probe.module.named_buffers()),
        "unreached": sorted(step.probe.unreached),
    }


def set_state(step: Step, state: Mapping[str, Any]) -> None:
    """Restore what `state_of` returned."""
    step.trainable.set_state(state["motion"])
    for vector, value in zip(step.trainable.vectors, state["vectors"], strict=True):
        vector.copy_(step.probe.from_layout_order(value))
    for row, saved in zip(step.trainable.optimized, state["optimizer"], strict=True):
        _set_optimizer_state(step, row, saved)
    known = dict(step.probe.module.named_buffers())
    for name, value in state["buffers"].items():
        if name in known and (known[name].shape, known[name].dtype) == (value.shape, value.dtype):
            known[name].copy_(value)
        else:  # it grew, or was made in training
            parent, _, key = name.rpartition(".")
            step.probe.module.get_submodule(parent)._buffers[key] = value.to(step.probe.device, copy=True)
    step.probe.remember_reached(state["unreached"])
    step.probe.sync_parameters()


def checkpoint(step: Step, epoch: int, extra: HiddenState) -> Checkpoint:
    """The current weights and optimizer state of plain training."""
    weights, saved = step.probe.weights(), _optimizer_state(step, step.trainable.optimized[0])
    return Checkpoint(weights, saved, type(step.optimizer).__name__, epoch, extra.state())


def restore(step: Step, start: Checkpoint, extra: HiddenState) -> None:
    """Restore the optimizer state of a checkpoint; the weights are the probe's business."""
    kind = type(step.optimizer).__name__
    if start.kind != kind:
        raise ThalwegError(
            f"the start was kept with the state of {start.kind}, and cannot be resumed with {kind}: use the same "
            "optimizer, or start from weights without that state (in Python its .weights)"
        )
    _set_optimizer_state(step, step.trainable.optimized[0], start.optimizer)
    extra.set_state(start.extra)


def _optimizer_state(step: Step, row: Sequence[Optimized]) -> dict[str, Tensor]:
    """The optimizer state of a vector: as a vector in the order of the layout what all of it has, one value for each
    element; the rest by the number of the parameter.
    """
    held = [(tensor, step.optimizer.state.get(tensor, {})) for _, tensor, _ in row]
    known: dict[str, Tensor] = {}
    for key in dict.fromkeys(key for _, state in held for key in state):
        values = [state.get(key) for _, state in held]
        if all(isinstance(v, Tensor) and v.shape == tensor.shape for v, (tensor, _) in zip(values, held, strict=True)):
            parts = [value.to(_where(step)) for value in values]
            known[key] = step.probe.to_layout_order(parts[0]) if _is_whole(row) else step.probe.layout.join(parts)
            continue
        named = {f"{key}{PART}{k}": value for k, value in enumerate(values)}
        known |= {name: value.clone() for name, value in named.items() if isinstance(value, Tensor)}
        known |= {
            name + NUMBER: torch.tensor(v, device="cpu") for name, v in named.items() if isinstance(v, int | float)
        }
    return known


def _set_optimizer_state(step: Step, row: Sequence[Optimized], saved: Mapping[str, Tensor]) -> None:
    """Into existing tensors, whose addresses a kernel may know."""
    on_device = step.state_on_device or any(group.get("fused") for group in step.optimizer.param_groups)
    for name, value in saved.items():
        key, _, part = name.removesuffix(NUMBER).partition(PART)
        places = row[int(part) :][:1] if part else row
        parts: Sequence[Tensor] = [value] * len(places)  # in files of version 0.1, once for all
        if not part and value.shape == (step.probe.layout.size,):
            there = value if step.probe.copied else value.to(row[0][1].device)
            parts = (
                [step.probe.from_layout_order(value)]
                if _is_whole(row)
                else list(step.probe.layout.split(there).values())
            )
        for (_, tensor, _), new in zip(places, parts, strict=True):
            known = step.optimizer.state[tensor]
            if name.endswith(NUMBER):
                known[key] = new.item()
            elif isinstance(known.get(key), Tensor):
                known[key].copy_(new)
            else:
                known[key] = new.to(tensor.device if on_device or new.shape == tensor.shape else new.device, copy=True)


def _where(step: Step) -> torch.device:
    """Where vectors are put in order: on the CPU if they are large."""
    return torch.device("cpu") if step.probe.point.nbytes > LARGE else step.trainable.block.device


def _is_whole(row: Sequence[Optimized]) -> bool:
    """Whether the optimizer moves the vector as a whole."""
    return not row[0][0]
