"""Tasks: outputs from a network and a batch, and loss, metrics and probabilities from the outputs."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, compiler
from torch.nn import functional as F

from .errors import ThalwegError, first_line, real_number

Net = Callable[..., Any]
Number = float | Tensor  # where it depends on values on a GPU, a tensor there, since looking at it would wait for them
LABEL_KEYS = ("labels", "label", "targets", "target", "y")
IGNORED = -100  # the label that torch's cross-entropy, and so most data, uses for padding
MOVED = "loss takes (outputs, targets) now: move the call of the network into predict="


def predict_targets(net: Net, batch: Any) -> tuple[Tensor, Any]:
    """The outputs of the network for a batch of `(inputs, ..., targets)` or a dict, and the targets in it."""
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
            raise ThalwegError(
                f"a dict batch needs its targets under one of {LABEL_KEYS}; got {sorted(map(str, batch))}: use "
                "Task(predict=)"
            )
        return (), {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    raise ThalwegError(
        "a batch must be (inputs, ..., targets) or a dict; got "
        + (
            f"a tensor of shape {tuple(batch.shape)}: give a list of batches, such as [batch], with labels"
            if isinstance(batch, Tensor)  # probably an item of a batch that was given in place of a list
            else f"a {type(batch).__name__} of {len(batch)}: give data with labels"
            if isinstance(batch, tuple | list)
            else f"{describe(batch)}: give data with labels"
        )
        + ", or use Task(predict=)"
    )


def outputs_of(result: Any) -> Tensor:
    """The tensor in the result of a network or of a task's predict: itself, its `.logits`, or its first item."""
    found = tensor_in(result)
    if found is None:
        raise ThalwegError(
            f"outputs must be a tensor, have one as .logits, or start with one; got {describe(result)}: choose one in "
            "Task(predict=)"
        )
    return found


def tensor_in(result: Any) -> Tensor | None:
    """The same, or None."""
    if isinstance(result, Tensor):
        return result
    found = getattr(result, "logits", None)
    if found is None and isinstance(result, Mapping):
        found = result.get("logits")
    elif found is None and isinstance(result, tuple | list) and result:
        found = result[0]
    return found if isinstance(found, Tensor) else None


@dataclass(frozen=True)
class Task:
    """What is trained and measured: how a batch goes through the network, and the loss of its outputs.

    Examples:
        >>> import torch, thalweg as tw
        >>> from functools import partial
        >>> task = tw.Task(partial(torch.nn.functional.cross_entropy, reduction="none", label_smoothing=0.1))
        >>> outputs, targets = task.predict(torch.nn.Identity(), (torch.tensor([[2.0, 0.0]]), torch.tensor([1])))
        >>> task.loss(outputs, targets)
        tensor([2.0269])

    Labels are integers of any dtype; -100 is ignored. If targets are labels, `error` and probabilities are computed by
    default, from outputs that are a tensor with the classes in dimension 1, as in torch, that have one as `.logits`, or
    whose first item is one.

    Args:
        loss: (outputs, targets) -> one value per example or per token; or a single mean, together with `size`.
        predict: (net, batch) -> outputs and targets, with one call of the network. The default takes batches as
            `classification` does. Whatever else the loss needs, such as a penalty on weights, is part of the outputs.
        metrics: Name -> (outputs, targets) -> one value per example. By default `error`, if targets are labels.
        probabilities: Outputs -> what ensembles average. By default softmax if targets are labels, otherwise the
            outputs.
        size: Batch -> the number of examples that a single-valued loss is the mean of, or their total weight; a number,
            or a tensor on the network's device, which does not wait for a GPU.
        units: Metric -> its unit; "%" is for fractions, which tables and figures show in percent, as the built-in
            `error`.
    """

    loss: Callable[[Any, Any], Tensor]
    predict: Callable[[Net, Any], tuple[Any, Any]] = predict_targets
    _: KW_ONLY
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] | None = None
    probabilities: Callable[[Any], Tensor] | None = None
    size: Callable[[Any], Number] | None = None
    units: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := sorted({"loss", "data_loss"} & set(self.metrics or {})):
            raise ThalwegError(
                f"'{taken[0]}' is the name of the task's own loss: give the metric of that name another one"
            )
        known = {"loss", "data_loss", *(("error",) if self.metrics is None else self.metrics)}
        if any(name not in known or not isinstance(unit, str) for name, unit in self.units.items()):
            raise ThalwegError(
                f"units maps metrics of the task ({', '.join(sorted(known))}) to strings; got {dict(self.units)}"
            )
        if self.metrics is None:
            object.__setattr__(self, "units", {"error": "%", **self.units})

    def predictions(self, net: Net, batch: Any) -> tuple[Any, Any]:
        """The outputs and targets of a batch, by one call of `predict`."""
        made = self.predict(net, batch)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ThalwegError(f"a task's predict must return two things, outputs and targets; got {describe(made)}")
        return made[0], made[1]

    def losses(self, outputs: Any, targets: Any, batch: Any) -> tuple[Tensor, Number]:
        """The checked values of the loss, zero for labels that do not count, and the number of those that do."""
        try:
            values, counted = (
                self.loss.each(outputs, targets)
                if isinstance(self.loss, _CrossEntropy)
                else (self.loss(outputs, targets), None)
            )
        except Exception as error:
            called = f"{type(outputs).__name__}' object is not callable" in str(error)
            if isinstance(error, ThalwegError | torch.OutOfMemoryError) or not (called or self._takes_network()):
                raise
            raise ThalwegError(f"{MOVED} (it failed with {type(error).__name__}: {first_line(error)})") from error
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise ThalwegError(
                f"a task's loss must return a tensor of floats, one per example; got {describe(values)}"
                + (f"; {MOVED}" if self._takes_network() else "")
            )
        if values.ndim == 0:
            if self.size is None:
                raise ThalwegError(
                    "a task's loss must return one value per example, so that a short last batch counts exactly; got "
                    "a single number: use reduction='none', or give Task(size=batch -> count) if it is the mean of "
                    "that many"
                )
            size = self.size(batch)
            return values, size if isinstance(size, Tensor) and size.device.type != "cpu" else real_number(
                size, "the size of a batch"
            )
        return summed(values, counted)

    def _takes_network(self) -> bool:
        """Whether the loss looks like one of (net, batch), which tasks were made of before version 0.2."""
        try:
            names = [*signature(self.loss).parameters]
        except (TypeError, ValueError):  # for functions that are not written in Python
            return False
        return names[:1] in (["net"], ["network"], ["model"], ["module"]) or names[1:2] == ["batch"]


def softmax(logits: Tensor) -> Tensor:
    """Probabilities of the classes in dimension 1."""
    return check_logits(logits).softmax(dim=1)


def token_softmax(logits: Tensor) -> Tensor:
    """Probabilities of the classes in the last dimension, which becomes dimension 1."""
    return softmax(logits.movedim(-1, 1))


def identity(outputs: Tensor) -> Tensor:
    """Outputs that are not probabilities, as in regression."""
    return outputs


def classification(label_smoothing: float = 0.0) -> Task:
    """Cross-entropy and error of a network that returns logits.

    Examples:
        >>> import torch, thalweg as tw
        >>> task = tw.classification()
        >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
        >>> task.loss(logits, labels)
        tensor([0.1269, 2.1269])

    A batch is `(inputs, ..., labels)`, called as `net(inputs, ...)`, or a dict with `labels` (or `label`, `targets`,
    `target`, `y`), whose other items are passed by name. The network returns logits, or an object with `.logits`.

    Labels are integers, of which -100 is ignored, or probabilities of the shape of the logits (one-hot, mixup); label
    maps (N, H, W) go with logits (N, classes, H, W).

    Args:
        label_smoothing: The fraction of each target that is spread evenly over all classes, in the loss only.
    """
    label_smoothing = real_number(label_smoothing, "label_smoothing")
    if not 0 <= label_smoothing <= 1:
        raise ThalwegError(f"label_smoothing is a fraction, from 0 to 1; got {label_smoothing!r}")
    return Task(_CrossEntropy(label_smoothing), probabilities=softmax)


def regression() -> Task:
    """Squared error, averaged over the outputs of one example.

    Examples:
        >>> import torch, thalweg as tw
        >>> tw.regression().loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]]))
        tensor([5.])

    Batches are as in `classification`; targets have the shape of the outputs.
    """
    return Task(_squared_error, metrics={}, probabilities=identity)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        raise ThalwegError(
            f"regression needs outputs and targets of one shape; got {tuple(outputs.shape)} and "
            f"{tuple(targets.shape)}: reshape one of them"
        )
    return (outputs - targets).square().flatten(1).mean(1) if outputs.ndim > 1 else (outputs - targets).square()


def language_modelling(padding: bool = True) -> Task:
    """Cross-entropy and error per token of a network that returns logits (batch, time, vocabulary).

    Examples:
        >>> import torch, thalweg as tw
        >>> task = tw.language_modelling()
        >>> logits, following = torch.zeros(2, 3, 5), torch.tensor([[1, 2, 3], [4, -100, -100]])
        >>> task.loss(*task.predict(torch.nn.Identity(), (logits, following))).shape
        torch.Size([4])

    Batches are as in `classification`; tokens labelled -100 are ignored. Perplexity is exp of `data_loss`.

    Args:
        padding: Whether there may be such tokens. With False they are not counted in every batch on a GPU.
    """
    return Task(_CrossEntropy(ignores=padding), predict_tokens, probabilities=token_softmax)


def predict_tokens(net: Net, batch: Any) -> tuple[Tensor, Tensor]:
    """What `predict_targets` gives, with a row for each token."""
    logits, labels = predict_targets(net, batch)
    return logits.flatten(0, -2), labels.flatten()


def looking_is_free(tensor: Tensor) -> bool:
    """Elsewhere than on a CPU, looking at a value waits for the device."""
    return tensor.device.type == "cpu"


class Labels:
    """One value per label, and which of them count; None if all do. A label out of range is an error where checking is
    free: on the CPU, unless compiled, and once elsewhere. After that its value is NaN, which stops training without the
    device assertion that would end the process; the same holds for a first -100.

    Args:
        ignores: Whether a -100 may come at any time.
    """

    looked = False

    def __init__(self, ignores: bool = False):
        self.always = self.ignores = ignores

    def __call__(
        self, measure: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        labels, classes = labels.long(), outputs.shape[1]
        fits = (labels >= 0) & (labels < classes)
        if not compiler.is_compiling() and (looking_is_free(labels) or not self.looked):
            self.looked, whole = True, bool(fits.all())
            self.ignores = self.always or (not whole and bool((labels == IGNORED).any()))
            if whole and looking_is_free(labels):
                return measure(outputs, labels), None
            check_labels(labels, classes)
        values = torch.where(fits, measure(outputs, torch.where(fits, labels, 0)), torch.nan)
        return only_counted(values, labels != IGNORED) if self.ignores else (values, None)


def only_counted(values: Tensor, counted: Tensor) -> tuple[Tensor, Tensor | None]:
    """The values that count, where choosing them is free; otherwise all, and which of them count."""
    return (values[counted], None) if looking_is_free(values) else (values, counted)


def summed(values: Tensor, counted: Tensor | None) -> tuple[Tensor, Number]:
    """The values to sum up, and how many count."""
    return (values, values.numel()) if counted is None else (torch.where(counted, values, 0.0), counted.sum())


class _CrossEntropy:
    """One value per label that counts, or per distribution over the classes."""

    def __init__(self, smoothing: float = 0.0, ignores: bool = False):
        self.smoothing, self.labels = smoothing, Labels(ignores)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        values, counted = self.each(logits, targets)
        return values if counted is None else values[counted]

    def each(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """All values, and which of them count; None if all do."""
        shapes = check_logits(logits).shape, logits.shape[:1] + logits.shape[2:]
        known = isinstance(targets, Tensor) and targets.shape in shapes
        if not known or (targets.is_floating_point() and targets.shape != logits.shape):
            advice = (
                "use language_modelling() where classes come last"
                if not known and isinstance(targets, Tensor) and targets.shape == logits.shape[:-1]
                else "reshape or convert them in the data"
            )
            raise ThalwegError(
                f"labels are a tensor of whole numbers, one for each example of logits {tuple(logits.shape)}, or "
                f"probabilities of their shape; "
                + (
                    "those of this batch are None: give data with labels"
                    if targets is None
                    else f"got {describe(targets)}: {advice}"
                )
            )
        if logits.shape != targets.shape:
            return self.labels(self.of, logits, targets)
        return self.of(logits, targets.to(logits.dtype)), None

    def of(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)


def check_logits(logits: Tensor) -> Tensor:
    if logits.ndim < 2:
        raise ThalwegError(
            f"logits are of shape (count, classes, ...); got {tuple(logits.shape)}: keep both dimensions in the network"
        )
    return logits


def check_labels(labels: Tensor, classes: int) -> None:
    wrong = ((labels < 0) | (labels >= classes)) & (labels != IGNORED)
    if bool(wrong.any()):
        raise ThalwegError(
            f"labels must lie between 0 and {classes - 1}, since the network gives {classes} logits, or be {IGNORED}, "
            f"which does not count; this batch holds {int(labels[wrong][0])}: check the labels or the network's last "
            "layer"
        )


def check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise ThalwegError(
            "the task must be a Task, such as classification() or Task(loss, predict); got "
            f"{getattr(task, '__name__', type(task).__name__)}"
        )


def describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
