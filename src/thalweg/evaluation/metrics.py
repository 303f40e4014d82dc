"""Metrics of a task's outputs, which scans average over examples; and `SCORES` of the probabilities of ensembles."""

from typing import Any

import torch
from torch import Tensor

from ..errors import ThalwegError
from ..tasks import IGNORED, Labels, Task, check_labels, describe, outputs_of, softmax, tensor_in
from ..weightspace.state import Contents

BINS = 15
TINY = 1e-300  # lower bound of probabilities, so that their logarithm is finite


class Metrics:
    """The metrics of a task for one batch after another, one value per example.

    >>> import thalweg as tw
    >>> Metrics(tw.classification())(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    {'error': tensor([0., 1.])}

    Call this before the loss, which may modify the outputs in place. A user's metrics are `Task(metrics=)`; those
    of tasks without any are in `_errors`.
    """

    def __init__(self, task: Task):
        self.task, self.labels = task, Labels()

    def __call__(self, outputs: Any, targets: Any) -> dict[str, Tensor]:
        found = self.each(outputs, targets).items()
        return {name: values if counted is None else values[counted] for name, (values, counted) in found}

    def each(self, outputs: Any, targets: Any) -> dict[str, tuple[Tensor, Tensor | None]]:
        """All values, and a mask of those that count, or None."""
        if self.task.metrics is None:
            return self._errors(tensor_in(outputs), targets)
        values: dict[str, tuple[Tensor, Tensor | None]] = {}
        before = _versions(outputs, targets)
        for name, metric in self.task.metrics.items():
            value = metric(outputs, targets)
            values[name] = value, None
            if not isinstance(value, Tensor) or value.ndim == 0:
                raise ThalwegError(
                    f"the metric '{name}' must return one value per example; got {describe(value)}: leave out mean()"
                )
            if _versions(outputs, targets) != before:
                raise ThalwegError(
                    f"the metric '{name}' writes into the outputs or targets, which the loss reads too: let it write "
                    "into a copy"
                )
        return values

    def _errors(self, outputs: Tensor | None, targets: Any) -> dict[str, tuple[Tensor, Tensor | None]]:
        """The built-in error; NaN for a target that is no label and not one-hot, for which it is not defined."""
        if outputs is None or not isinstance(targets, Tensor):
            return {}
        if are_labels(outputs, targets):
            return {"error": self.labels(_mistakes, outputs, targets)}
        if self.task.probabilities is softmax and outputs.shape == targets.shape:
            mistakes = _mistakes(outputs, targets.to(outputs.dtype).argmax(dim=1))
            return {"error": (torch.where(one_hot(targets), mistakes, torch.nan), None)}
        return {}


def averaged(task: Task, outputs: Any, targets: Tensor) -> Tensor:
    """What ensembles average for a batch, in float64: probabilities if there are any."""
    if task.probabilities is not None:
        return _wide(task.probabilities(_wide(outputs) if isinstance(outputs, Tensor) else outputs))
    values = _wide(outputs_of(outputs))
    return softmax(values) if are_labels(values, targets) else values


def _wide(values: Tensor) -> Tensor:
    """In float64; complex numbers, which `double` would cut, stay complex."""
    return values.to(torch.promote_types(values.dtype, torch.float64))


def are_labels(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are integers, one for each position where the outputs have their classes in dimension 1; a single
    output is no choice among classes.

    >>> are_labels(torch.zeros(2, 3), torch.tensor([0, 2])), are_labels(torch.zeros(2, 3), torch.zeros(2, 3))
    (True, False)
    """
    fits = (
        outputs.ndim == targets.ndim + 1
        and outputs.shape[:1] + outputs.shape[2:] == targets.shape
        and outputs.shape[1] > 1
    )
    return fits and not targets.is_floating_point() and outputs.is_floating_point()


def one_hot(targets: Tensor) -> Tensor:
    """Where the classes in dimension 1 are exactly one 1 and otherwise 0."""
    return ((targets == 0) | (targets == 1)).all(dim=1) & (targets.sum(dim=1) == 1)


def _versions(*values: Any) -> list[int]:
    """How often each tensor has been written to; inference tensors do not count that."""
    return [tensor._version for tensor in Contents(values).tensors.values() if not tensor.is_inference()]


def _mistakes(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) != labels).float()


def error(probabilities: Tensor, labels: Tensor) -> float:
    """The fraction of wrong labels.

    >>> error(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    return float((probabilities.argmax(1) != labels).double().mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood of the right label, or the cross-entropy with soft labels.

    >>> round(nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1])), 6)
    0.693147
    """
    return float(log_losses(probabilities, labels).mean())


def log_losses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The negative log-likelihood of each label, or the cross-entropy with each soft label."""
    if labels.ndim == 2:
        return -(labels * probabilities.double().clamp_min(TINY).log()).sum(1)
    return -probabilities.double().gather(1, labels.long()[:, None])[:, 0].clamp_min(TINY).log()


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The Brier score: the mean squared distance between the probabilities and the truth.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    truth = labels if labels.ndim == 2 else torch.nn.functional.one_hot(labels.long(), probabilities.shape[1])
    return float((probabilities.double() - truth).square().sum(1).mean())


def ece(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: the distance between confidence and accuracy, over equally wide bins of confidence.

    >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])), 6)
    0.3
    """
    return sum(
        share * abs(accuracy - confidence) for share, accuracy, confidence in reliability(probabilities, labels, bins)
    )


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> list[list[float]]:
    """For each non-empty bin of confidence: its fraction of the data, its accuracy, its mean confidence."""
    confidence, chosen = probabilities.double().max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device="cpu")[1:-1].to(confidence.device)
    place = torch.bucketize(confidence, edges)
    counts = torch.bincount(place, minlength=bins)
    right, sure = (torch.bincount(place, values, bins) for values in ((chosen == labels).double(), confidence))
    columns = torch.stack([counts.double() / len(labels), right / counts, sure / counts], 1)
    return columns[counts > 0].tolist()


def disagreement(choices: Tensor) -> Tensor:
    """From the labels predicted by each member (members, count): for each pair of members, the fraction on which they
    differ.

    >>> disagreement(torch.tensor([[0, 1, 2, 3], [0, 1, 1, 1]]))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    return torch.stack([(choices != row).double().mean(1) for row in choices])


def known(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    """What is scored, one row per example or pixel: probabilities (count, classes), and labels (count,) without ignored
    ones; or soft labels, if targets are probabilities and not one-hot. None for other targets.

    >>> known(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, -100]))
    (tensor([[0.9000, 0.1000]]), tensor([0]))
    """
    if are_labels(probabilities, targets):
        if not distributions(probabilities):
            raise ThalwegError(
                "scores against labels need probabilities that add up to one over dimension 1, and what "
                "probabilities= of this task gives does not: use a softmax, or leave it out"
            )
        return labelled(probabilities, targets)
    if probabilities.shape != targets.shape or targets.shape[1:2] == (1,) or not distributions(targets):
        return None
    if not distributions(probabilities):
        raise ThalwegError(
            "the targets are probabilities (one-hot, mixup), and what an ensemble would average is not: give the task "
            "probabilities= a softmax, or thalweg.tasks.identity if this is regression"
        )
    wanted = rows(targets)
    return rows(probabilities), wanted.double().argmax(1) if bool(one_hot(wanted).all()) else wanted.double()


def labelled(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (count, classes) and labels (count,), without ignored ones."""
    labels = targets.flatten().long()
    check_labels(labels, outputs.shape[1])
    counted = labels != IGNORED
    if not bool(counted.any()):
        raise ThalwegError(
            f"at least one label must count, and all {len(labels)} are {IGNORED}, which are ignored: check the data"
        )
    return rows(outputs)[counted], labels[counted]


def rows(values: Tensor) -> Tensor:
    """The classes in dimension 1 last, all other dimensions flattened."""
    return values.movedim(1, -1).flatten(0, -2)


def distributions(values: Tensor) -> bool:
    """Whether they are probabilities of the classes in dimension 1."""
    if values.ndim < 2:
        return False
    values = values.double()  # few operations take unsigned integers
    sums = values.sum(1)
    return bool((values >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-3)


def scores(probabilities: Tensor, truth: Tensor) -> dict[str, float]:
    """All scores that are defined for labels, or for soft labels."""
    return {name: score(probabilities, truth) for name, score in (SCORES if truth.ndim == 1 else SOFT_SCORES).items()}


SCORES = {"error": error, "nll": nll, "brier": brier, "ece": ece}
SOFT_SCORES = {"nll": nll, "brier": brier}
