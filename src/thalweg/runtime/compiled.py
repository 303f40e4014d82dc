"""The loss of a batch through torch.compile, once a trial has shown that this works."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import first_line
from ..tasks import Number
from ..training.step import Step, mean_loss
from ..weightspace.state import preserved
from .compute import warn_slow_path
from .cuda_graphs import batch_signature
from .rng import undisturbed
from .transfer import Parts

Loss = Callable[..., tuple[Tensor, Number]]


class Compiled:
    """A step whose loss is compiled for batches with the shapes and dtypes of the first; others run eagerly.

    The second such batch is used to try compiling, forward and backward; the trial changes nothing.
    """

    def __init__(self, step: Step):
        self.step, self.wanted, self.first_signature = step, True, ""
        self.function: Loss | None = None
        step.mean_loss = self.loss

    def loss(self, task: Any, module: Any, make_batch: Any, drawn: Any) -> tuple[Tensor, Number]:
        """Replaces the loss of the step, including autocast and whatever else surrounds a forward pass."""
        compiled = (
            self.function if self.function is not None and batch_signature(drawn) == self.first_signature else mean_loss
        )
        return compiled(task, module, make_batch, drawn)

    def before(self, drawn: Any) -> None:
        """Before each step."""
        if not self.wanted:
            return
        drawn = drawn[0] if isinstance(drawn, Parts) else drawn
        signature = batch_signature(drawn)
        if not self.first_signature:
            self.first_signature = signature
        elif signature == self.first_signature:
            self.wanted = False
            try:
                self._try(drawn)
            except Exception as error:  # the compiler's own, of many kinds
                self.function = None
                warn_slow_path("the network is not compiled", f"{type(error).__name__}: {first_line(error)}")

    def _try(self, drawn: Any) -> None:
        step, probe = self.step, self.step.probe
        many = torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=100_000)
        with undisturbed(), preserved(probe.module), warnings.catch_warnings(), many:
            warnings.simplefilter("ignore")
            self.function = _compiled()
            probe.gradients(step.mean_loss(step.task, probe.module, step.make_batch, drawn)[0])


@cache
def _compiled() -> Loss:
    """Shared, so that a network of an architecture that was compiled before need not be compiled again."""
    return torch.compile(mean_loss, dynamic=False)
