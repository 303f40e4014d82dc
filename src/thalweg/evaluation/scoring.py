"""Scores of predictions against the targets, before and after temperature scaling."""

from collections.abc import Mapping
from functools import cached_property
from math import isfinite, nan

import torch
from torch import Tensor

from ..errors import ThalwegError
from ..tasks import Task, describe, identity, regression
from . import metrics
from .calibration import Temperature, lowest_nll, tempered

CALIBRATED = "calibrated_"
SCALED = ("error", "nll", "ece")  # scores that are also given after temperature scaling


class Scores(dict[str, float]):
    """Scores by name; looking up one that was not computed raises an error that says why."""

    def __init__(self, values: Mapping[str, float], why: str):
        super().__init__(values)
        self.why = why

    def __missing__(self, name: str) -> float:
        since = f", since {self.why}" if self.why and name.startswith(CALIBRATED) else ""
        raise ThalwegError(f"there is no score '{name}'{since}; there are {', '.join(self)}")


class Scored:
    """What a network or an ensemble predicts for a data set, and its scores, computed on demand.

    Args:
        task: The task.
        values: The probabilities, or for regression the outputs.
        targets: The targets.
        fitted: The temperature to scale with. By default each half of the data is scaled with the one fitted on the
            other.
    """

    def __init__(self, task: Task, values: Tensor, targets: Tensor, fitted: Temperature | None = None):
        self.values, self.targets, self.fitted = values, targets, fitted
        self.known = metrics.known(values, targets) if task.probabilities is not identity else None

    def labelled(self) -> "Scored":
        """Return itself; raise if there is nothing to fit a temperature to."""
        if self.known is None:
            raise ThalwegError(
                "a temperature is fitted to labels, or to probabilities of classes, and there are none: outputs are "
                f"{describe(self.values)}, targets {describe(self.targets)}: convert or reshape one in the task"
            )
        return self

    @property
    def chosen(self) -> list[Tensor]:
        """The class with the highest probability, if there are classes."""
        return [self.known[0].argmax(1)] if self.known else []

    @cached_property
    def best(self) -> Temperature:
        """The temperature with the lowest NLL on these data."""
        return lowest_nll(*self.known) if self.known else Temperature(nan)

    @cached_property
    def halves(self) -> list[Temperature]:
        """The temperatures fitted on every other example, from the first on and from the second on."""
        assert self.known is not None
        probabilities, truth = self.known
        return [lowest_nll(probabilities[k::2], truth[k::2], " in one half of the data") for k in (0, 1)]

    @property
    def why_none(self) -> str:
        """Why there are no scores after scaling; empty if there are, or if there are no labels."""
        if self.known is None or self.after is not None:
            return ""
        if self.fitted is not None:
            return f"no temperature has the lowest NLL on the held-out data: {self.fitted.why}"
        whys = (each.why for each in (self.best, *self.halves))
        return f"no temperature has the lowest NLL: {next(filter(None, whys))}"

    @cached_property
    def temperatures(self) -> Tensor:
        """The temperature of every example, (count, 1), or a single one."""
        if self.fitted is not None:
            return torch.tensor(self.fitted.value, dtype=torch.float64, device="cpu")
        temperatures = torch.empty(len(self.known[1]) if self.known else 0, 1, dtype=torch.float64, device="cpu")
        temperatures[1::2], temperatures[0::2] = (half.value for half in self.halves)
        return temperatures

    @cached_property
    def after(self) -> Tensor | None:
        """The probabilities after scaling; None where there is no temperature, or nothing to scale."""
        if self.known is None or bool(self.temperatures.isnan().any()):
            return None
        return tempered(self.known[0], self.temperatures)

    @property
    def scores(self) -> dict[str, float]:
        """The scores before scaling, then those after it if there is a temperature."""
        if self.known is None:
            return _squared_error(self.values, self.targets)
        before, truth = metrics.scores(*self.known), self.known[1]
        after = {} if self.after is None else metrics.scores(self.after, truth)
        return before | {CALIBRATED + name: after[name] for name in SCALED if name in after}

    @property
    def examples(self) -> dict[str, Tensor]:
        """The scores that are means over examples, of each example."""
        if self.known is None:
            return {"squared_error": regression().loss(self.values, self.targets.double())}
        probabilities, truth = self.known
        mistakes = {"error": (probabilities.argmax(1) != truth).double()} if truth.ndim == 1 else {}
        found = {**mistakes, "nll": metrics.log_losses(probabilities, truth)}
        return found if self.after is None else {**found, "calibrated_nll": metrics.log_losses(self.after, truth)}

    @property
    def reliability(self) -> list[list[float]]:
        return metrics.reliability(*self.known) if self.known and self.known[1].ndim == 1 else []

    @property
    def calibrated_reliability(self) -> list[list[float]]:
        """The same after scaling."""
        return (
            metrics.reliability(self.after, self.known[1])
            if self.known and self.known[1].ndim == 1 and self.after is not None
            else []
        )


def _squared_error(values: Tensor, targets: Tensor) -> dict[str, float]:
    if values.shape != targets.shape:
        raise ThalwegError(
            "predictions are scored against labels, whole numbers of two classes or more, or against targets of their "
            f"shape; got {tuple(values.shape)} and {describe(targets)}: convert or reshape one in the task, or give it "
            "probabilities= with a column for each class"
        )
    if not isfinite(found := float((values - targets.double()).square().mean())):
        raise ThalwegError(
            "predictions are scored against finite targets, and these hold NaN or infinity: clean the data"
        )
    return {"squared_error": found}
