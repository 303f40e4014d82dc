"""A run in several processes, started by torchrun: which rank this is, its part of a batch, and collectives."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ..batches import mapped, tensors_in
from ..errors import ThalwegError
from ..store.facts import differences, is_fact
from .compute import Processes, present
from .rng import seeded

T = TypeVar("T")
PATIENCE = timedelta(hours=1)  # for a process that hangs; one point of a scan may take long
APART = 1_000_003  # between the seeds of two steps, and of two ranks
REPORTED = "thalweg has reported what went wrong"


class Parted(ThalwegError):
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
        box: list[Any] = [_tried(work) if self.first else None]
        _meeting(lambda: dist.broadcast_object_list(box, src=0))
        found, error = box[0]
        if error is not None:
            raise error
        return found

    def gather(self, item: T) -> list[T]:
        """The items of all ranks, in order."""
        found: list[Any] = [None] * self.size
        _meeting(lambda: dist.all_gather_object(found, item))
        return found

    def all_reduce(self, message: Tensor) -> None:
        """Sum over all ranks, in place."""
        _meeting(lambda: dist.all_reduce(message))

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise, naming what differs, unless all ranks have the same facts."""
        first, *others = self.gather(dict(facts))
        for rank, other in enumerate(others, start=1):
            for name in (name for name in first if differences({name: first[name]}, {name: other.get(name)})):
                odd = f"{name} is {first[name]!r} in process 0 and {other.get(name)!r} in process {rank}"
                odd = f"{name} in process 0 and in process {rank} differ" if is_fact(first[name]) else odd
                raise ThalwegError(
                    f"the processes of a run must agree, but {odd}: start all with the same arguments, and seed "
                    "everything random"
                )

    def apart(self, seed: int, step: int) -> AbstractContextManager[None]:
        """For one step: random numbers of this rank alone, seeded independently of what came before."""
        return seeded(((seed * APART + step) * APART + self.rank + 1) % 2**63)

    def reports(self) -> bool:
        """Whether this rank should report an error: the first that asks."""
        try:
            return self.store is None or self.store.add(REPORTED, 1) == 1
        except RuntimeError:  # the store is gone with the process that kept it
            return True


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


def _tried(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


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
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple):
        for part in item:
            _check_divisible(part)
        plain = [part for part in item if isinstance(part, int | float | str)]
        if len(plain) > 1 and len(plain) == len(item):
            raise ThalwegError(
                f"a batch is divided along the first dimension of its tensors; the list {item!r:.60} is none"
            )
    elif isinstance(item, np.ndarray):
        raise ThalwegError(
            "a batch is divided along the first dimension of its tensors; make tensors of its numpy arrays"
        )


def _meeting(exchange: Callable[[], object]) -> None:
    try:
        exchange()
    except RuntimeError as error:
        text = str(error).splitlines()[0][:200]
        raise Parted(
            f"another process of this run has ended or does not answer ({text}); what was saved last is kept: "
            "start all of them again to resume (on the command line with --resume)"
        ) from error
