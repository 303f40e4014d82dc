"""Tasks: how a loss and predictions come out of a network and a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, compiler
from torch.nn import functional as F

from .errors import ThalwegError, number

Net = Callable[..., Any]
LABEL_KEYS = ("labels", "label", "targets", "target", "y")
IGNORED = -100  # the label that torch's cross-entropy, and so most data, uses for padding


@dataclass(frozen=True)
class Task:
    """How a loss and predictions come out of a network and a batch. Your own task is two functions.

    >>> import torch, thalweg as tw
    >>> def loss(net, batch):
    ...     return (net(batch["signal"]) - batch["wanted"]).abs().mean(dim=1)
    >>> def predict(net, batch):
    ...     return net(batch["signal"]), batch["wanted"]
    >>> task = tw.Task(loss, predict)
    >>> batch = {"signal": torch.ones(4, 3), "wanted": torch.zeros(4, 3)}
    >>> task.loss(torch.nn.Identity(), batch)
    tensor([1., 1., 1., 1.])

    loss: (net, batch) -> one value per example or per token; or a single mean, together with `size`.
    predict: (net, batch) -> outputs and targets; logits have their classes in dimension 1, as in torch.
    activation: outputs -> probabilities; without one, softmax where targets are labels, else nothing.
    metrics: name -> (outputs, targets) -> one value per example; without them, `error` where targets are labels.
    size: batch -> how many examples a single-valued loss is the mean of.
    units: metric -> its unit; "%" is for a share, which tables and figures show in percent. The built-in `error` is one.

    Labels are whole numbers of any dtype; those that are -100 do not count.
    """

    loss: Callable[[Net, Any], Tensor]
    predict: Callable[[Net, Any], tuple[Tensor, Tensor]] | None = None
    activation: Callable[[Tensor], Tensor] | None = None
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None
    size: Callable[[Any], int] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    _labels: "_Labels" = field(default_factory=lambda: _Labels(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        taken = sorted({"loss", "data_loss"} & set(self.metrics or {}))
        if taken:
            raise ThalwegError(f"'{taken[0]}' is the name of the task's own loss: give the metric of that name another one")
        known = {"loss", "data_loss", *(("error",) if self.metrics is None else self.metrics)}
        odd = [name for name, unit in self.units.items() if name not in known or not isinstance(unit, str)]
        if odd:
            raise ThalwegError(f"units maps metrics of the task ({', '.join(sorted(known))}) to strings; got {dict(self.units)}")
        if self.metrics is None:
            object.__setattr__(self, "units", {"error": "%", **self.units})

    def predictions(self, net: Net, batch: Any) -> tuple[Tensor, Tensor]:
        """The checked outputs and targets."""
        if self.predict is None:
            raise ThalwegError("this needs a task with predict=, which gives outputs and targets; the one given has none")
        made = self.predict(net, batch)
        if not isinstance(made, tuple | list) or len(made) != 2 or not all(isinstance(part, Tensor) for part in made):
            raise ThalwegError(f"a task's predict must return two tensors, outputs and targets; got {_describe(made)}")
        return made[0], made[1]

    def losses(self, net: Net, batch: Any) -> tuple[Tensor, int]:
        """The checked values of the loss, and how many examples they stand for."""
        values = self.loss(net, batch)
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise ThalwegError(f"a task's loss must return a tensor of floats, one per example; got {_describe(values)}")
        if values.ndim == 0:
            if self.size is None:
                raise ThalwegError(
                    "a task's loss must return one value per example, so that a short last batch counts exactly; got a "
                    "single number: use reduction='none', or give Task(size=batch -> count) if it is the mean of that many"
                )
            return values, int(self.size(batch))
        return values, values.numel()

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Every metric of the task, one value per example."""
        if self.metrics is None:
            return self._errors(outputs, targets)
        values = {name: metric(outputs, targets) for name, metric in self.metrics.items()}
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                raise ThalwegError(
                    f"the metric '{name}' must return one value per example; got {_describe(value)}: leave out mean()"
                )
        return values

    def _errors(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The built-in error; NaN for a target that is no label and not one-hot, for which it is not defined."""
        if are_labels(outputs, targets):
            wrong = self._labels(mistakes, outputs, targets)
        elif self.activation is softmax and outputs.shape == targets.shape:
            wrong = torch.where(one_hot(targets), (outputs.argmax(dim=1) != targets.argmax(dim=1)).float(), torch.nan)
        else:
            return {}
        return {"error": wrong}

    def probabilities(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.activation is not None:
            return self.activation(outputs)
        return softmax(outputs) if are_labels(outputs, targets) else outputs


def mistakes(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) != labels).float()


def softmax(logits: Tensor) -> Tensor:
    """Probabilities of the classes in dimension 1."""
    return logits.softmax(dim=1)


def identity(outputs: Tensor) -> Tensor:
    """Outputs that are no probabilities, as of regression."""
    return outputs


def classification(label_smoothing: float = 0.0) -> Task:
    """Cross-entropy and error of a network that gives logits.

    >>> import torch, thalweg as tw
    >>> task = tw.classification()
    >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    >>> task.loss(torch.nn.Identity(), (logits, labels))
    tensor([0.1269, 2.1269])
    >>> task.measure(logits, labels)["error"]
    tensor([0., 1.])

    A batch is `(inputs, ..., labels)`, called as `net(inputs, ...)`, or a dict with `labels` (or `label`, `targets`,
    `target`, `y`), its other items passed by name. The network gives logits, or something with `.logits`.

    Labels are whole numbers, of which -100 does not count, or probabilities of the shape of the logits (one-hot, mixup); a
    map of labels (N, H, W) goes with logits (N, classes, H, W).

    label_smoothing: the share of each target that is spread evenly over all classes, in the loss alone.
    """
    label_smoothing = number(label_smoothing, "label_smoothing")
    if not 0 <= label_smoothing <= 1:
        raise ThalwegError(f"label_smoothing is a share, from 0 to 1; got {label_smoothing!r}")
    cross_entropy = _CrossEntropy(label_smoothing)
    return Task(lambda net, batch: cross_entropy(*predict_targets(net, batch)), predict_targets, softmax)


def regression() -> Task:
    """Squared error, averaged over the outputs of one example.

    >>> import torch, thalweg as tw
    >>> tw.regression().loss(torch.nn.Identity(), (torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]])))
    tensor([5.])
    """

    def predict(net: Net, batch: Any) -> tuple[Tensor, Tensor]:
        outputs, targets = predict_targets(net, batch)
        if outputs.shape != targets.shape:
            shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
            raise ThalwegError(f"regression needs outputs and targets of one shape; got {shapes}: reshape one of them")
        return outputs, targets

    def loss(net: Net, batch: Any) -> Tensor:
        outputs, targets = predict(net, batch)
        return (outputs - targets).square().flatten(1).mean(1) if outputs.ndim > 1 else (outputs - targets).square()

    return Task(loss, predict, activation=identity, metrics={})


def language_modelling(padding: bool = True) -> Task:
    """Cross-entropy and error per token of a network that gives logits (batch, time, vocabulary).

    >>> import torch, thalweg as tw
    >>> task = tw.language_modelling()
    >>> tokens, following = torch.zeros(2, 3, 5), torch.tensor([[1, 2, 3], [4, -100, -100]])
    >>> task.loss(torch.nn.Identity(), (tokens, following)).shape
    torch.Size([4])

    Batches as in `classification`; tokens labelled -100 do not count. Perplexity is exp of the `data_loss`.

    padding: whether there are such tokens. Looking for them waits for the device; with False steps can be captured.
    """

    def predict(net: Net, batch: Any) -> tuple[Tensor, Tensor]:
        logits, labels = predict_targets(net, batch)
        logits, labels = logits.flatten(0, -2), labels.flatten()
        if not padding:
            return logits, labels
        counted = labels != IGNORED
        return (logits, labels) if bool(counted.all()) else (logits[counted], labels[counted])

    cross_entropy = _CrossEntropy()
    return Task(lambda net, batch: cross_entropy(*predict(net, batch)), predict)


def predict_targets(net: Net, batch: Any) -> tuple[Tensor, Tensor]:
    """What the network gives for a batch of the usual form, and the targets in it."""
    args, kwargs, targets = split(batch)
    return outputs_of(net(*args, **kwargs)), targets


def split(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Inputs by position, inputs by name, targets.

    >>> split(("x", "y"))
    (('x',), {}, 'y')
    >>> split({"input_ids": "x", "labels": "y"})
    ((), {'input_ids': 'x'}, 'y')
    """
    if isinstance(batch, Mapping):
        key = next((key for key in LABEL_KEYS if key in batch), None)
        if key is None:
            raise ThalwegError(f"a dict batch needs its targets under one of {LABEL_KEYS}; got {sorted(map(str, batch))}")
        return (), {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    raise ThalwegError(f"a batch must be (inputs, ..., targets) or a dict; got {_describe(batch)}: write a Task for it")


def outputs_of(result: Any) -> Tensor:
    """The tensor in what a network returned: itself, its `.logits`, or its first part."""
    if isinstance(result, Tensor):
        return result
    if hasattr(result, "logits"):
        return result.logits
    if isinstance(result, Mapping) and "logits" in result:
        return result["logits"]
    if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
        return result[0]
    raise ThalwegError(f"the network must return a tensor or something with logits; got {_describe(result)}: write a Task")


def are_labels(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are whole numbers, one for each place where the outputs have their classes in dimension 1.

    >>> are_labels(torch.zeros(2, 3), torch.tensor([0, 2])), are_labels(torch.zeros(2, 3), torch.zeros(2, 3))
    (True, False)
    """
    fits = outputs.ndim == targets.ndim + 1 and outputs.shape[:1] + outputs.shape[2:] == targets.shape
    return fits and not targets.is_floating_point() and outputs.is_floating_point()


def one_hot(targets: Tensor) -> Tensor:
    """Where the classes in dimension 1 are exactly one 1 and otherwise 0."""
    return ((targets == 0) | (targets == 1)).all(dim=1) & (targets.sum(dim=1) == 1)


class _Labels:
    """One value per label that counts, which are all but -100. A label out of range is an error where looking is free: on the
    CPU, but for what is compiled, and once elsewhere; after that its value is NaN, which stops training without the device
    assertion that would end the process, and so is that of a first -100."""

    looked = ignores = False

    def __call__(self, measure: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
        labels, classes = labels.long(), outputs.shape[1]
        fits = (labels >= 0) & (labels < classes)
        if not compiler.is_compiling() and (labels.device.type == "cpu" or not self.looked):
            self.looked, self.ignores = True, bool((labels == IGNORED).any())
            check_labels(labels, classes)
        values = torch.where(fits, measure(outputs, torch.where(fits, labels, 0)), torch.nan)
        return values[labels != IGNORED] if self.ignores else values


class _CrossEntropy:
    """One value per label that counts, or per distribution over the classes."""

    def __init__(self, smoothing: float = 0.0):
        self.smoothing, self.labels = smoothing, _Labels()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point() or logits.ndim < 2 or logits.shape == targets.shape:
            return self.of(logits, targets.to(logits.dtype) if logits.shape == targets.shape else targets)
        return self.labels(self.of, logits, targets)

    def of(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)


def check_labels(labels: Tensor, classes: int) -> None:
    wrong = ((labels < 0) | (labels >= classes)) & (labels != IGNORED)
    if bool(wrong.any()):
        raise ThalwegError(
            f"labels must lie between 0 and {classes - 1}, since the network gives {classes} logits, or be {IGNORED}, which "
            f"does not count; this batch holds {int(labels[wrong][0])}: check the labels or the network's last layer"
        )


def check_task(task: object) -> None:
    if not isinstance(task, Task):
        name = getattr(task, "__name__", type(task).__name__)
        raise ThalwegError(f"the task must be a Task, such as classification() or Task(loss, predict); got {name}")


def _describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
