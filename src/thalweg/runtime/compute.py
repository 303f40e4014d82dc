"""How a public call computes, in which context, and the one place where accelerators are requested."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, Union
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import ThalwegError, warn

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..evaluation.fingerprint import Facts
    from ..store.runs import Run
    from ..training.loop import Settings
    from ..training.step import Bends, Step, Trainable
    from ..weightspace.curves import Curve
    from ..weightspace.probe import Probe
    from .cuda_graphs import Replay
    from .distributed import Ranks
    from .eager import Eager
    from .interleave import Job
    from .progress import Progress
    from .running import RunningLoop
    from .sharded import Shards

T = TypeVar("T")
LONG = 50_000  # from this many steps on, compiling (30 to 150 seconds on an H200) pays off


class SlowPathWarning(UserWarning):
    """Issued once when a faster way of computing was not possible, with the reason."""


@dataclass(frozen=True)
class Compute:
    """How to compute; the default is the fastest way that changes no results beyond rounding.

    Examples:
        >>> Compute(precision="bf16")
        Compute(precision='bf16', compile=None, graph=None, stream=False)

    What a network does not support is left out, and a `SlowPathWarning` says why.

    Args:
        precision: "fp32" computes in the network's own precision. "bf16" uses autocast, in channels_last on a CUDA GPU,
            with weights, accumulated gradients and all statistics in float32.
        compile: Use torch.compile. None compiles only long training runs on a CUDA GPU, and not in bf16 if the network
            has kernels of its own.
        graph: On a CUDA GPU, capture a whole step in a CUDA graph and replay it. None captures wherever that is safe.
        stream: In `connect`, keep the control points, their gradients and the optimizer on the CPU, and only the
            network at phi(t) and its gradient on the GPU; for networks that would not fit otherwise.
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool | None = None
    graph: bool | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        decide = (True, False, None), "True, False, or None to let thalweg decide"
        for name, (allowed, rule) in {
            "precision": (("fp32", "bf16"), "'fp32' or 'bf16'"),
            "compile": decide,
            "graph": decide,
            "stream": ((True, False), "True or False"),
        }.items():
            if getattr(self, name) not in allowed:
                raise ThalwegError(f"{name} must be {rule}; got {getattr(self, name)!r}")

    def casting(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast for one forward pass; around more than one it would reuse weights it has cast before."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def channels_last(self, device: torch.device) -> bool:
        return self.precision == "bf16" and device.type == "cuda"

    def compiles(self, device: torch.device, steps: int, module: nn.Module) -> bool:
        """Whether to compile so many steps; by default not if the network has faster kernels of its own for bf16."""
        own = self.precision == "bf16" and any(getattr(part, "has_kernels", False) for part in module.modules())
        return device.type == "cuda" and steps >= LONG and not own if self.compile is None else self.compile

    def captures(self, device: torch.device) -> bool:
        return self.graph is not False and device.type == "cuda"

    def repeated(
        self, work: Callable[[Any], Any], module: nn.Module, device: torch.device, pool: Any = None
    ) -> "Eager | Replay":
        """`work(batch)`, to be called for one batch after another, and captured wherever that is safe.

        Args:
            work: See `Replay`, as the others.
            module: The network inside.
            device: Where the work runs.
            pool: Memory shared with other graphs.
        """
        if self.captures(device):
            from .cuda_graphs import Replay

            return Replay(work, module, device, pool)
        from .eager import Eager

        return Eager(work, module, device)

    def check(self, device: torch.device) -> None:
        """Warn about what is not possible on this device."""
        if self.graph and device.type != "cuda":
            warn_slow_path("steps are not captured", f"that needs a CUDA GPU, and the network is on {device}")


def shards_of(module: nn.Module | None) -> "Shards | None":
    """How to handle a network of which every rank holds a shard; None for all others."""
    return getattr(module, "_thalweg_shards", None)


def read_whole(path: Path, about: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors that the file at `path` has in shards, as whole ones."""
    from .shards import read_whole

    return read_whole(path, about)


def private_copy(
    module: nn.Module, memo: dict[int, Any], frozen: Mapping[str, nn.Parameter]
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A deep copy of a network, compiled as the original is; see `private_copy.py`."""
    from .private_copy import private_copy

    return private_copy(module, memo, frozen)


def warn_slow_path(what: str, reason: str) -> None:
    warn(f"{what}: {reason}", SlowPathWarning)


@dataclass(frozen=True)
class SingleProcess:
    """A single process, which does everything itself."""

    rank: ClassVar = 0
    size: ClassVar = 1
    first: ClassVar = True

    def once(self, work: Callable[[], T]) -> T:
        return work()

    def gather(self, item: T) -> list[T]:
        return [item]

    def agree(self, facts: Mapping[str, Any]) -> None:
        """There is nobody to disagree with."""

    def reports(self) -> bool:
        return True


Processes = Union[SingleProcess, "Ranks"]  # that make a call together; several under torchrun


@dataclass(frozen=True)
class Context:
    """Read once, where a public call begins, and passed on from there."""

    processes: Processes = field(default_factory=SingleProcess)
    job: "Job | None" = None  # which of several interleaved runs this is
    bars: list[Any] = field(default_factory=list)  # the progress bar on the screen, once for each row in use
    # frozen parameters that points hold, each once for all of them
    frozen: WeakValueDictionary[tuple[object, ...], Tensor] = field(default_factory=WeakValueDictionary)

    @property
    def stream(self) -> int:
        """The number of this run's CUDA stream."""
        return 0 if self.job is None else self.job.number


present: ContextVar[Context] = ContextVar("thalweg", default=Context())  # noqa: B039, since it is frozen


@dataclass(frozen=True)
class StoredResult(Generic[T]):
    """How the result of a finished call is stored in its run folder: the file that marks it, how to read it, how to
    write it.
    """

    file: str
    load: Callable[[Path], T]
    save: Callable[[T, Path], object]

    @staticmethod
    def of(file: str, kind: Any) -> "StoredResult[Any]":
        """One file, which the class of the result reads and writes itself."""
        return StoredResult[Any](
            file, lambda folder: kind.load(folder / file), lambda made, folder: made.save(folder / file)
        )


@dataclass(frozen=True)
class Call:
    """How a public call computes, in which context, and whether it shows a progress bar."""

    compute: Compute
    progress: bool | None = None
    context: Context = field(default_factory=present.get)

    @classmethod
    def of(cls, compute: Compute | None, progress: bool | None) -> "Call":
        """Of what a user gives, checked, with the default if that is None."""
        if not isinstance(compute, Compute | None):
            raise ThalwegError(f"compute must be a Compute, such as Compute(precision='bf16'); got {compute!r}")
        return cls(compute or Compute(), progress)

    @property
    def processes(self) -> Processes:
        return self.context.processes

    def bar(self, label: str, total: int) -> "Progress":
        """A progress bar for `total` steps."""
        from .progress import Progress

        return Progress(label, total, self.progress, self.context)

    def running(
        self, step: "Step", batches: Batches, settings: "Settings", total: int, label: str, run: "Run | None"
    ) -> "AbstractContextManager[RunningLoop]":
        """The context in which a training loop of `total` steps runs, with the accelerators that suit its step."""
        from .running import running

        return running(step, self, batches, settings, total, label, run)

    def source(
        self, batches: Batches, device: torch.device, accumulate: int = 1
    ) -> tuple[Callable[[], Iterator[Any]], Callable[[Any], Any]]:
        """How to iterate over the batches once, several for each update if gradients are accumulated, and how to make a
        batch on the device from each.
        """
        from .transfer import source

        return source(batches, device, accumulate)

    def user_optimizer(self, trainable: "Trainable", settings: "Settings") -> "Optimizer":
        """The optimizer that a user gave, for the parameters of what is trained."""
        from ..training.optimizers import parameter_optimizer

        return parameter_optimizer(trainable, settings, self.processes.size)

    def warn_if_stalled(self, step: "Step", batches: Batches, epoch: int, epochs: int) -> None:
        """Warn after a tenth of plain training if the network has not begun to learn."""
        from ..training.stalled import warn_if_stalled

        warn_if_stalled(step, batches, self.compute, epoch, epochs)

    def bends(self, probe: "Probe", curve: "Curve", seed: int, loss: str) -> "Bends":
        """The bends of a curve, to be trained by this loss."""
        from .accelerated import bends

        return bends(probe, curve, seed, loss, self.compute)

    def resumed(
        self,
        run: "Run | str | Path | None",
        command: str,
        fingerprint: "Mapping[str, Any] | Callable[[], Facts]",
        result: "StoredResult[T]",
        make: Callable[["Run | None"], T],
    ) -> T:
        """Return the stored result of an earlier call that asked the same, or call `make` and store what it returns.

        Args:
            run: The run folder, or None.
            command: The name of the call.
            fingerprint: What the call would compute, as facts, or the arguments from which these are made.
            result: How the result is stored.
            make: Computes the result.
        """
        if run is None and self.processes.size == 1:
            return make(None)
        from .running import resumed

        return resumed(self, run, command, fingerprint, result, make)
