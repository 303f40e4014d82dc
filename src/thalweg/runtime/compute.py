"""How a public call computes, what it finds around it, and the one place where accelerators are asked for."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch

from ..batches import Batches
from ..errors import ThalwegError

if TYPE_CHECKING:
    from ..store.runs import Interrupts, Run
    from ..training.step import Step
    from ..weightspace.curves import Curve
    from ..weightspace.probe import Probe
    from .live import Live
    from .rng import World
    from .streamed import StreamedBends

T = TypeVar("T")
LONG = 50_000  # steps from which on the time that compiling took, half a minute to two and a half on an H200, is won back


class SlowPathWarning(UserWarning):
    """Said once when a faster way of computing was not possible, with the reason."""


@dataclass(frozen=True)
class Compute:
    """How to compute; the default is the fastest way that changes no results beyond rounding.

    >>> Compute(precision="bf16")
    Compute(precision='bf16', compile=None, graph=None, stream=False)

    precision: "fp32" computes in the network's own precision; "bf16" under autocast, in channels_last on a CUDA card, with
        weights, their gradients' sums and all statistics kept in float32.
    compile: pass the network through torch.compile; None means in long trainings on a CUDA card.
    graph: on a CUDA card, record a whole step once and replay it; None means wherever that is safe.
    stream: in `connect`, keep the points of the curve, their gradients and the optimizer on the CPU, and on the card only the
        network at phi(t) and its gradient; for networks that would not fit otherwise.

    What turns out not to be possible with a network is left out, and a warning says why.
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool | None = None
    graph: bool | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16"):
            raise ThalwegError(f"precision must be 'fp32' or 'bf16'; got {self.precision!r}")
        for name in ("compile", "graph"):
            if getattr(self, name) not in (True, False, None):
                raise ThalwegError(f"{name} must be True, False, or None to let thalweg decide; got {getattr(self, name)!r}")
        if self.stream not in (True, False):
            raise ThalwegError(f"stream must be True or False; got {self.stream!r}")

    def casting(self, device: torch.device) -> AbstractContextManager[object]:
        """For the length of one forward pass; a longer one would go on with weights it has cast before."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def channels_last(self, device: torch.device) -> bool:
        return self.precision == "bf16" and device.type == "cuda"

    def compiles(self, device: torch.device, steps: int) -> bool:
        return self.compile if self.compile is not None else device.type == "cuda" and steps >= LONG

    def records(self, device: torch.device) -> bool:
        return self.graph is not False and device.type == "cuda"

    def check(self, device: torch.device) -> None:
        """Say what of it is not possible there."""
        if self.graph and device.type != "cuda":
            say_slower("steps are not recorded", f"that needs a CUDA card, and the network is on {device}")


def check_compute(compute: object) -> None:
    if not isinstance(compute, Compute):
        raise ThalwegError(f"mode must be a Mode, such as Compute(precision='bf16'); got {compute!r}")


def say_slower(what: str, reason: str) -> None:
    warnings.warn(f"{what}: {reason}", SlowPathWarning, stacklevel=2)


class Processes(Protocol):
    """Those that make a call together; `Ranks` under torchrun, `Alone` otherwise."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first(self) -> bool: ...
    def once(self, work: Callable[[], T]) -> T: ...
    def gather(self, item: T) -> list[T]: ...
    def agree(self, facts: Mapping[str, Any]) -> None: ...
    def reports(self) -> bool: ...


@dataclass(frozen=True)
class Alone:
    """One process, which does everything itself."""

    rank: ClassVar = 0
    size: ClassVar = 1
    first: ClassVar = True

    def once(self, work: Callable[[], T]) -> T:
        return work()

    def gather(self, item: T) -> list[T]:
        return [item]

    def agree(self, facts: Mapping[str, Any]) -> None:
        pass

    def reports(self) -> bool:
        return True


class Slot(Protocol):
    """The place of one of several interleaved runs; `number` counts from 1, and chooses its stream."""

    number: int
    world: "World"
    interrupts: "Interrupts"
    resumable: bool  # whether the run saves its state when it is asked to stop

    def running(self) -> int: ...
    def pass_on(self) -> None: ...


@dataclass(frozen=True)
class Context:
    """Read once, where a public call begins, and passed on from there."""

    processes: Processes = field(default_factory=Alone)
    slot: Slot | None = None
    bars: list[Any] = field(default_factory=list)  # the progress bar on the screen, once for each row in use

    @property
    def stream(self) -> int:
        """Which stream of a GPU is this run's own."""
        return 0 if self.slot is None else self.slot.number


present: ContextVar[Context] = ContextVar("thalweg", default=Context())  # noqa: B039, since it is frozen


@dataclass(frozen=True)
class StoredResult(Generic[T]):
    """How a result lies in the run folder of a finished call: the file that tells, and how to read and write it there."""

    file: str
    load: Callable[[Path], T]
    save: Callable[[T, Path], object]


@dataclass(frozen=True)
class Call:
    """How a public call computes, who makes it, and whether it shows a bar."""

    compute: Compute
    progress: bool | None = None
    context: Context = field(default_factory=present.get)

    def __post_init__(self) -> None:
        check_compute(self.compute)

    @property
    def processes(self) -> Processes:
        return self.context.processes

    def running(
        self, step: "Step", batches: Batches, seed: int, total: int, label: str, run: "Run | None"
    ) -> "AbstractContextManager[Live]":
        """What a training loop of `total` steps runs inside, with the accelerators that suit its step."""
        from .live import running

        return running(step, self, batches, seed, total, label, run)

    def streamed(self, probe: "Probe", curve: "Curve", seed: int) -> "StreamedBends":
        """The bends of a curve on the CPU if `stream` is asked for, and at least in float32."""
        from .streamed import StreamedBends

        return StreamedBends(probe, curve, seed, torch.device("cpu") if self.compute.stream else probe.device)

    def resumed(
        self,
        run: "Run | str | Path | None",
        command: str,
        arguments: Mapping[str, Any],
        result: "StoredResult[T]",
        make: Callable[["Run | None"], T],
    ) -> T:
        """What an earlier call with the same arguments left in its folder; or what `make` gives, which is then saved there.

        arguments: those of the call, from which its question is made: what it would compute, which must be the same.
        """
        if run is None and self.processes.size == 1:
            return make(None)
        from .resume import resumed

        return resumed(self, run, command, arguments, result, make)
