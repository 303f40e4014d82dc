"""Walks in your own training loop: a scheduler and a collector."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import whole_number
from ..weightspace.layout import Layout
from ..weightspace.weights import Weights
from .sgd import rates
from .walk_methods import Method


class WalkScheduler(LRScheduler):
    """The learning rate of a method as a torch scheduler; call `step()` once per iteration.

    Examples:
        >>> import torch, thalweg as tw
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> scheduler = tw.WalkScheduler(optimizer, tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01), steps=10, epochs=4)
        >>> collector = tw.Collector(model, scheduler)
        >>> for _ in range(40):
        ...     model(torch.randn(8, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     collector.step()
        ...     scheduler.step()
        ...     optimizer.zero_grad()
        >>> len(tw.Ensemble(model, collector.members))
        2

    With several parameter groups the first follows the method, and the others keep their ratio to it.

    Args:
        optimizer: The optimizer of your loop.
        method: `FGE`, `Snapshot` or `SWA`; or `WarmupCosine`, which without `lr_max` scales the optimizer's own rate.
        steps: Iterations per epoch.
        epochs: Epochs of the walk.
        accumulate: Iterations whose gradients your loop accumulates before the optimizer's step; call `step()` after
            each of these.
        last_epoch: The last iteration done, as in torch; -1 starts from the beginning.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        method: Method,
        *,
        steps: int,
        epochs: int,
        accumulate: int = 1,
        last_epoch: int = -1,
    ):
        own = -(-whole_number(steps, "steps", least=1) // whole_number(accumulate, "accumulate", least=1))
        if getattr(method, "lr_max", 0) is None:  # the optimizer's, as in `fit`
            first = optimizer.param_groups[0]
            method = replace(method, lr_max=float(first.get("initial_lr", first["lr"])))  # type: ignore[type-var]
        self.plan = method.plan(own, whole_number(epochs, "epochs", least=1))
        super().__init__(optimizer, whole_number(last_epoch, "last_epoch"))

    def get_lr(self) -> list[float | Any]:
        """The learning rate of each parameter group for the next iteration; called by torch."""
        return rates(self.plan.rate(self.last_epoch + 1), self.base_lrs)

    def state_dict(self) -> dict[str, Any]:
        """The iteration and the rates it started from, for your own checkpoint."""
        return {key: value for key, value in super().state_dict().items() if key != "plan"}


class Collector:
    """Collects the networks of a walk; call `step()` after the optimizer's and before the scheduler's.

    Args:
        module: The network your loop trains.
        scheduler: Decides when to collect.

    Attributes:
        members: The networks collected so far, on the CPU.
    """

    def __init__(self, module: nn.Module, scheduler: WalkScheduler):
        self.module, self.scheduler = module, scheduler
        self.members: list[Weights] = []

    def step(self) -> None:
        """Collect the network if this iteration ends a cycle."""
        i = self.scheduler.last_epoch + 1
        if self.scheduler.plan.collects(i):
            self.members.append(collect(self.module, i))

    def state_dict(self) -> dict[str, Any]:
        """The collected networks, for your own checkpoint."""
        return {"members": [{"tensors": member.tensors(), "made": dict(member.made)} for member in self.members]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the collected networks.

        Args:
            state: What `state_dict` returned.
        """
        layout = Layout.of(self.module)
        self.members = [
            Weights.from_tensors(layout, {name: t.clone() for name, t in entry["tensors"].items()}, dict(entry["made"]))
            for entry in state["members"]
        ]


def collect(module: nn.Module, i: int) -> Weights:
    """A module's weights on the CPU, with the iteration as provenance."""
    return replace(Weights.of(module).to("cpu"), made={"by": "own loop", "iteration": i})
