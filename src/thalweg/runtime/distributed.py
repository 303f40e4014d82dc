"""A run in several processes, started by torchrun: which rank this is, its part of a batch, and what all ranks exchange
in a step.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ..batches import mapped, tensors_in
from ..error_notes import explained
from ..errors import ThalwegError, first_line
from ..store.facts import differences, is_fact
from ..store.files import digest
from ..tasks import Number
from ..training.step import Bends, Step
from ..weightspace.layout import batch_norms
from .compute import Processes, present
from .rng import seeded
from .transfer import Parts

T = TypeVar("T")
PATIENCE = timedelta(hours=1)  # for a process that hangs; one point of a scan may take long
SEED_STRIDE = 1_000_003  # between the seeds of two steps, and of two ranks
REPORTED = "thalweg has reported what went wrong"
STATISTICS = ("running_mean", "running_var")
CHECK_EVERY = 4  # steps between checks for requests on a device where checking synchronizes


class RankLost(ThalwegError):
    """Another process of the run has ended."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a distributed run: `rank` is the number of this one, from 0, and `size` how many there are."""

    rank: int
    size: int
    store: Any = None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which reads and writes run folders, and reports."""
        return self.rank == 0

    def share(self, batch: Any) -> tuple[Any, bool]:
        """This rank's part of a batch; if there are too few examples, one of them, and False: it has weight zero."""
        if isinstance(batch, Parts):
            shares = [self.share(part) for part in batch]
            own = [part for part, counts in shares if counts]
            return Parts(own or [shares[0][0]]), bool(own)
        length = next((len(tensor) for tensor in tensors_in(batch) if tensor.ndim), 0)
        if not length:
            raise ThalwegError(
                "a batch is divided along the first dimension of its tensors, and this one has none: batches that "
                "carry state from one to the next, such as TokenBatches, need one process"
            )
        _check_divisible(batch)
        low, high = (length * rank // self.size for rank in (self.rank, self.rank + 1))
        some = slice(low, high) if high > low else slice(0, 1)
        return mapped(batch, lambda item: _cut(item, length, some)), high > low

    def once(self, work: Callable[[], T]) -> T:
        """Run by rank 0 and broadcast, be it a result or an error."""
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        collective(dist.broadcast_object_list, box, src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]

    def gather(self, item: T) -> list[T]:
        """The items of all ranks, in order."""
        found: list[Any] = [None] * self.size
        collective(dist.all_gather_object, found, item)
        return found

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise, naming what differs, unless all ranks have the same facts."""
        first, *others = self.gather(dict(facts))
        for rank, other in enumerate(others, start=1):
            for name in (name for name in first if differences({name: first[name]}, {name: other.get(name)})):
                both = f"is {first[name]!r} in process 0 and {other.get(name)!r} in process {rank}"
                odd = f"{name} in process 0 and in process {rank} differ" if is_fact(first[name]) else f"{name} {both}"
                raise ThalwegError(
                    f"the processes of a run must agree, but {odd}: start all with the same arguments, and seed "
                    "everything random"
                )

    def own_randomness(self, seed: int, step: int) -> AbstractContextManager[None]:
        """For one step: random numbers of this rank alone, seeded independently of what came before."""
        return seeded(((seed * SEED_STRIDE + step) * SEED_STRIDE + self.rank + 1) % 2**63)

    def reports(self) -> bool:
        """Whether this rank should report an error: the first that asks."""
        try:
            return self.store is None or self.store.add(REPORTED, 1) == 1
        except RuntimeError:  # the store is gone with the process that kept it
            return True


class RankStep(ABC):
    """A step of all ranks together, each with its part of the batch. The random numbers of a step follow from the seed,
    the rank and `done`, the number of steps.
    """

    message: Tensor  # what all ranks exchange
    requested: Tensor  # of which this part is requests to stop and to save

    def __init__(self, step: Step, ranks: Ranks, seed: int):
        self.step = step
        self.ranks = ranks
        self.seed = seed
        self.done = 0
        self.requests: Callable[[], tuple[bool, bool]] = lambda: (False, False)  # to stop, to save after the step
        step.allows_empty = True

    @abstractmethod
    def __call__(self, batch: Any, lr: float) -> Tensor:
        """Like `Step`."""

    def granted(self) -> tuple[bool, bool]:
        """What any rank requested in the last step; the same on all ranks."""
        if self.message.is_cuda and self.done % CHECK_EVERY:
            return False, False
        stop, save = map(bool, self.requested.tolist())
        return stop, save

    def check_buffers(self) -> None:
        """Batch-norm statistics are averaged over ranks; all other buffers must be equal by themselves."""
        buffers = self.step.probe.weights().bare().buffers
        found = {name: digest("buffer", {name: buffer}, "")[:8] for name, buffer in buffers.items()}
        self.ranks.agree({f"after an epoch, the buffer '{name}'": short for name, short in found.items()})


class DistributedStep(RankStep):
    """A step of all ranks together: each has its part of the batch, and all make the same update.

    Ranks at the same point all-reduce the gradient there; ranks with a t of their own all-reduce the gradients of the
    bends, including weight decay. Batch-norm statistics, which parameters were reached, the loss, and requests to save
    or stop travel in the same message, so that all ranks stay equal.
    """

    def __init__(self, step: Step, ranks: Ranks, seed: int):
        super().__init__(step, ranks, seed)
        trainable, probe = step.trainable, step.probe
        step.decays_early = step.decays_early or not trainable.same_t
        if isinstance(trainable, Bends) and not trainable.same_t:
            trainable.uniform = partial(self._own, trainable.uniform)  # type: ignore[method-assign]
        self.gradient = probe.grad if trainable.same_t else trainable.gradient
        dtype, device = torch.promote_types(self.gradient.dtype, torch.float32), self.gradient.device
        self.reached = torch.zeros(len(probe.layout.names), dtype=dtype, device=device)
        sizes = [part.numel() for part in self._parts()]
        self.message = torch.empty(sum(sizes) + 4, dtype=dtype, device=device)
        *self.pieces, self.last, self.requested = self.message.split([*sizes, 2, 2])
        self.normalised = any(batch_norms(probe.module))

    def _own(self, uniform: Callable[[], float]) -> float:
        """Every rank draws for all, so that each knows where the others are."""
        return [uniform() for _ in range(self.ranks.size)][self.ranks.rank]

    def __call__(self, batch: Any, lr: float) -> Tensor:
        step, trainable = self.step, self.step.trainable
        part, counts = self.ranks.share(batch)
        if self.normalised and max(len(tensor) for tensor in tensors_in(part) if tensor.ndim) == 1:
            raise ThalwegError(
                f"batch norm cannot learn from the single example that rank {self.ranks.rank} has of a batch: use "
                "larger batches, and leave out a short last one (drop_last=True)"
            )
        with self.ranks.own_randomness(self.seed, self.done), explained(step.probe.module, part):
            loss = step.forward(part, step.draw())
            step.probe.backward(loss)
            loss, number = loss.detach(), step.number * counts
            if trainable.same_t:
                loss = self._exchange(loss, number)
            step.chain_rule(loss)
            if not trainable.same_t:
                loss = self._exchange(loss, number)
            step.update(lr)
        self.done += 1
        return loss

    def _parts(self) -> list[Tensor]:
        """What each rank has its own of before the exchange, and all ranks have the same of after it. Looked up each
        time, since a network may replace its statistics by other tensors.
        """
        module = self.step.probe.module
        statistics = [layer.get_buffer(name) for _, layer in batch_norms(module) for name in STATISTICS]
        averaged = () if self.step.trainable.same_t else self.step.trainable.averaged
        return [self.gradient, *averaged, *statistics, self.reached]

    def _exchange(self, loss: Tensor, number: Number) -> Tensor:
        """The mean loss of the whole batch, of which this rank has `number` examples."""
        probe, parts = self.step.probe, self._parts()
        self.reached.fill_(1)
        for k in (k for k, name in enumerate(probe.layout.names) if name in probe.skipped):
            self.reached[k] = 0
        for piece, part in zip(self.pieces, parts, strict=True):
            piece.copy_(part.reshape(-1))
        self.last[0], self.last[1] = loss, 1.0
        self.message.mul_(number) if number else self.message.zero_()
        self.requested.copy_(torch.tensor(self.requests(), device="cpu"))
        collective(dist.all_reduce, self.message)
        self.message[:-2].div_(self.last[1].clone())
        for piece, part in zip(self.pieces, parts, strict=True):
            part.copy_(piece.reshape(part.shape))
        if probe.skipped:
            names = zip(probe.layout.names, self.reached.tolist(), strict=True)
            probe.skipped.intersection_update([name for name, share in names if not share])
            probe.remember_reached(probe.skipped)
        return self.last[0].to(loss.dtype, copy=True)  # the next step writes here


@contextmanager
def distributed() -> Iterator[Processes]:
    """Join the run that torchrun started; every call inside is made by all ranks. Without torchrun it does nothing.

    Examples:
        >>> with distributed() as processes:
        ...     processes.rank, processes.size
        (0, 1)

    All ranks pass the same batches to `fit`, `connect` and `walk`, and each takes its part of every batch. Points of a
    scan and members of an ensemble are divided among the ranks. Only rank 0 reads and writes run folders.
    """
    above = present.get()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield above.processes
        return
    own = not dist.is_initialized()
    store = _begin() if own else None
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), store)
    before = present.set(replace(above, processes=ranks))
    try:
        yield ranks
    finally:
        present.reset(before)
        if own:
            dist.destroy_process_group()


def _begin() -> Any:
    os.environ.update(_own_gpu(os.environ, torch.cuda.device_count()))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise ThalwegError(
            f"WORLD_SIZE asks for several processes, which cannot reach each other (start them with torchrun): {error}"
        ) from error
    return store


def _own_gpu(environment: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Each process sees one GPU, if there are any."""
    if not gpus:
        return {}
    listed = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    number, names = int(environment.get("LOCAL_RANK", "0")), listed.split(",")
    if number >= len(names):
        raise ThalwegError(
            f"each process needs its own GPU; there are {len(names)}, and this is process {number} on its machine"
        )
    return {"CUDA_VISIBLE_DEVICES": names[number]}


def _cut(item: Any, length: int, some: slice) -> Any:
    if not isinstance(item, Tensor):
        raise ThalwegError(
            f"a batch is divided along the first dimension of its tensors; a {type(item).__name__} cannot be"
        )
    if item.ndim and len(item) != length:
        raise ThalwegError(
            f"a batch is divided along the first dimension of its tensors, here {length}; one of shape "
            f"{tuple(item.shape)} does not fit"
        )
    return item[some] if item.ndim else item


def _check_divisible(item: Any) -> None:
    """Numbers outside tensors would go to every rank undivided."""
    match item:
        case Mapping():
            _check_divisible(list(item.values()))
        case list() | tuple():
            for part in item:
                _check_divisible(part)
            if len(item) > 1 and all(isinstance(part, int | float | str) for part in item):
                raise ThalwegError(
                    f"a batch is divided along the first dimension of its tensors; the list {item!r:.60} is none"
                )
        case np.ndarray():
            raise ThalwegError(
                "a batch is divided along the first dimension of its tensors; make tensors of its numpy arrays"
            )


def collective(exchange: Callable[..., object], *tensors: Any, **settings: Any) -> None:
    """One of torch.distributed's exchanges between all ranks."""
    try:
        exchange(*tensors, **settings)
    except RuntimeError as error:
        raise RankLost(
            f"another process of this run has ended or does not answer ({first_line(error)[:200]}); what was saved "
            "last is kept: start all of them again to resume (on the command line with --resume)"
        ) from error
