"""Predictions against the truth, before and after temperature scaling."""

from functools import cached_property
from math import isnan, nan

import torch
from torch import Tensor

from ..errors import ThalwegError
from ..tasks import Task, describe, identity
from . import metrics
from .calibration import cross_fitted, existing_temperature, tempered

CALIBRATED = "calibrated_"
SCALED = ("error", "nll", "ece")  # what is also given after temperature scaling


class Scored:
    """What a network or an ensemble predicts for a data set, and its scores; computed where they are asked for.

    Args:
        task: The task.
        values: The probabilities, or for regression the outputs.
        targets: The targets.
        temperature: The one to scale with. By default each half of the data is scaled with the one fitted on the other.
    """

    def __init__(self, task: Task, values: Tensor, targets: Tensor, temperature: float | None = None):
        self.values, self.targets, self.temperature = values, targets, temperature
        self.known = metrics.known(values, targets) if task.probabilities is not identity else None

    def labelled(self) -> "Scored":
        """The same, or an error if there is nothing to fit a temperature to."""
        if self.known is None:
            raise ThalwegError(
                "a temperature is fitted to labels, or to probabilities of classes, and there are none: outputs are "
                f"{describe(self.values)}, targets {describe(self.targets)}"
            )
        return self

    @property
    def chosen(self) -> list[Tensor]:
        """The class with the highest probability, if there are classes."""
        return [self.known[0].argmax(1)] if self.known else []

    @cached_property
    def best(self) -> float:
        """The temperature with the lowest NLL on these data; NaN where there is none."""
        return existing_temperature(*self.known) if self.known else nan

    @property
    def why_none(self) -> str:
        """Why there is no such temperature, and what to do."""
        assert self.known is not None
        probabilities, truth = self.known
        labels = truth.argmax(1) if truth.ndim == 2 else truth
        right, part = probabilities.argmax(1) == labels, ""
        if not isnan(self.best):  # that of all data exists, so one half has none
            halves = [(existing_temperature(probabilities[k::2], truth[k::2]), right[k::2]) for k in (0, 1)]
            right, part = next(half for temperature, half in halves if isnan(temperature)), " in one half of the data"
        if bool(right.all()):
            return (
                f"all {len(right)} predictions{part} are right, so that a lower one is always better; use more or "
                "harder data"
            )
        return (
            f"{int(right.sum())} of {len(right)} predictions{part} are right, and on average the truth is predicted no "
            "better than other classes, so that a higher one is always better; check the labels, or train the network"
        )

    @cached_property
    def heat(self) -> Tensor:
        """The temperature of every example."""
        assert self.known is not None
        if self.temperature is None:
            return cross_fitted(*self.known)
        return torch.tensor(self.temperature, dtype=torch.float64)

    @cached_property
    def after(self) -> Tensor | None:
        """The probabilities after scaling; None where there is no temperature, or nothing to scale."""
        if self.known is None or bool(self.heat.isnan().any()):
            return None
        return tempered(self.known[0], self.heat)

    @property
    def scores(self) -> dict[str, float]:
        """Those of the metrics, then those after scaling, where there is a temperature."""
        if self.known is None:
            return _squared_error(self.values, self.targets)
        before, truth = metrics.scores(*self.known), self.known[1]
        after = {} if self.after is None else metrics.scores(self.after, truth)
        return before | {CALIBRATED + name: after[name] for name in SCALED if name in after}

    @property
    def examples(self) -> dict[str, Tensor]:
        """The scores that are means over examples, of each example."""
        if self.known is None:
            return {"squared_error": (self.values - self.targets.double()).square().flatten(1).mean(1)}
        probabilities, truth = self.known
        found = {"nll": metrics.log_losses(probabilities, truth)}
        if truth.ndim == 1:
            found = {"error": (probabilities.argmax(1) != truth).double(), **found}
        return found if self.after is None else {**found, "calibrated_nll": metrics.log_losses(self.after, truth)}

    @property
    def reliability(self) -> list[list[float]]:
        return metrics.reliability(*self.known) if self.known and self.known[1].ndim == 1 else []

    @property
    def calibrated_reliability(self) -> list[list[float]]:
        """The same after scaling."""
        if self.known is None or self.after is None or self.known[1].ndim == 2:
            return []
        return metrics.reliability(self.after, self.known[1])


def _squared_error(values: Tensor, targets: Tensor) -> dict[str, float]:
    if values.shape != targets.shape:
        raise ThalwegError(
            f"outputs and targets must have one shape to be compared; got {tuple(values.shape)} and "
            f"{tuple(targets.shape)}: reshape one in the task"
        )
    return {"squared_error": float((values - targets.double()).square().mean())}
