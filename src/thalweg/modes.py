"""How to compute: in which precision, compiled or not, recorded and replayed or not."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from .errors import ThalwegError

LONG = 50_000  # steps from which on the time that compiling took, half a minute to two and a half on an H200, is won back


class Slower(UserWarning):
    """Said once when a faster way of computing was not possible, with the reason."""


@dataclass(frozen=True)
class Mode:
    """How to compute; the default is the fastest way that changes no results beyond rounding.

    >>> Mode(precision="bf16")
    Mode(precision='bf16', compile=None, graph=None, stream=False)

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


def check_mode(mode: object) -> None:
    if not isinstance(mode, Mode):
        raise ThalwegError(f"mode must be a Mode, such as Mode(precision='bf16'); got {mode!r}")


def say_slower(what: str, reason: str) -> None:
    warnings.warn(f"{what}: {reason}", Slower, stacklevel=2)
