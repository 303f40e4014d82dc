"""How batches reach the device: from pinned memory on a separate stream, or made there."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch

from ..batches import Batches, count, mapped, to_device
from ..errors import ThalwegError
from .streams import side_stream


class Parts(tuple[Any, ...]):
    """The batches of one update."""


@runtime_checkable
class MadeOnDevice(Protocol):
    """Batches that are made on the device, such as `DeviceBatches`: `make_batch` turns each of the small tensors from
    `draws` into a batch, as part of the step; where that is captured, augmentation is captured with it.
    """

    @property
    def device(self) -> torch.device:
        """Where they are made."""

    def __len__(self) -> int:
        """How many there are."""

    def draws(self) -> Iterator[Any]:
        """What determines each batch of one epoch."""

    def make_batch(self, draw: Any) -> Any:
        """The batch."""


def moved(batches: Batches, device: torch.device, held: bool = False) -> Iterator[Any]:
    """Every batch of one epoch, on `device`. One that is held while others are drawn is copied, since a loader may use
    its memory again.
    """
    for batch in _counted(batches, count(batches)):
        yield _copied_to_gpu(batch, device, held) if device.type == "cuda" else to_device(batch, device, held)


def source(
    batches: Batches, device: torch.device, accumulate: int = 1, held: bool = False
) -> tuple[Callable[[], Iterator[Any]], Callable[[Any], Any]]:
    """How to iterate over the batches once, in groups if gradients are accumulated, and how to make a batch from each
    item; on a CPU there is nothing to capture. `held` is that of `moved`.
    """
    if accumulate > 1:
        passes, make_batch = source(batches, device, held=True)
        return partial(_in_parts, passes, accumulate), make_batch
    if (
        device.type == "cuda"
        and isinstance(batches, MadeOnDevice)
        and batches.device == device
        and defining_class(batches, "draws") is defining_class(batches, "__iter__")
    ):
        return lambda: _counted(batches.draws(), len(batches)), batches.make_batch
    return partial(moved, batches, device, held), lambda batch: batch


def _in_parts(passes: Callable[[], Iterator[Any]], number: int) -> Iterator[Parts]:
    """Groups of this many batches; at the end of an epoch what is left."""
    batches = passes()
    while parts := Parts(islice(batches, number)):
        yield parts


def _counted(batches: Iterable[Any], promised: int) -> Iterator[Any]:
    """One epoch, which must have as many batches as `len` says: schedules, cycles and means depend on it."""
    given = 0
    for given, batch in enumerate(batches, start=1):
        if given > promised:
            break
        yield batch
    if given != promised:
        more = "more" if given > promised else f"{given}" if given else "none"
        restarts = given < promised and getattr(batches, "persistent_workers", False)
        raise ThalwegError(
            f"len() of the batches is {promised}, but iterating gave {more}: "
            + (
                "a loader with persistent workers starts over when it is read again meanwhile, so give watch= another"
                if restarts
                else "correct their length or what they yield"
            )
        )


def defining_class(batches: object, method: str) -> type:
    """The class that defines a method, or object; a subclass may override `__iter__`."""
    return next((kind for kind in type(batches).__mro__ if method in vars(kind)), object)


def _copied_to_gpu(batch: Any, device: torch.device, held: bool) -> Any:
    """Copied to a GPU while it works on something else: from pinned memory, on a separate stream."""
    stream, current = side_stream(device, "copies"), torch.cuda.current_stream(device)

    def copied(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or item.device.type != "cpu":
            return to_device(item, device, held)
        with torch.cuda.stream(stream):
            twin = item.pin_memory().to(device, non_blocking=True)
        twin.record_stream(current)
        return twin

    there = mapped(batch, copied)
    current.wait_stream(stream)
    return there
