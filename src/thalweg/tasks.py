"""Tasks: how a loss and predictions come out of a network and a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .crew import Crew
from .errors import ThalwegError

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
    """

    loss: Callable[[Net, Any], Tensor]
    predict: Callable[[Net, Any], tuple[Tensor, Tensor]] | None = None
    activation: Callable[[Tensor], Tensor] | None = None
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None
    size: Callable[[Any], int] | None = None

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
        if values.numel() == 0 and Crew.present.size == 1:  # one of several processes may have only padding
            raise ThalwegError(f"a task's loss must return one value per example; got an empty tensor {tuple(values.shape)}")
        return values, values.numel()

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Every metric of the task, one value per example."""
        metrics = self.metrics
        if metrics is None:
            metrics = {"error": mistakes} if _are_labels(outputs, targets) else {}
        values = {name: metric(outputs, targets) for name, metric in metrics.items()}
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                raise ThalwegError(
                    f"the metric '{name}' must return one value per example; got {_describe(value)}: leave out mean()"
                )
        return values

    def probabilities(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.activation is not None:
            return self.activation(outputs)
        return outputs.softmax(dim=1) if _are_labels(outputs, targets) else outputs


def classification() -> Task:
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
    """

    cross_entropy = _CrossEntropy()
    return Task(lambda net, batch: cross_entropy(*predict_targets(net, batch)), predict_targets)


def regression() -> Task:
    """Squared error, averaged over the outputs of one example.

    >>> import torch, thalweg as tw
    >>> tw.regression().loss(torch.nn.Identity(), (torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]])))
    tensor([5.])
    """

    def loss(net: Net, batch: Any) -> Tensor:
        outputs, targets = predict_targets(net, batch)
        if outputs.shape != targets.shape:
            shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
            raise ThalwegError(f"regression needs outputs and targets of one shape; got {shapes}: reshape one of them")
        return (outputs - targets).square().flatten(1).mean(1) if outputs.ndim > 1 else (outputs - targets).square()

    return Task(loss, predict_targets, activation=lambda outputs: outputs, metrics={})


def language_modelling(padding: bool = True) -> Task:
    """Cross-entropy and error per token of a network that gives logits (batch, time, vocabulary).

    >>> import torch, thalweg as tw
    >>> task = tw.language_modelling()
    >>> tokens, following = torch.zeros(2, 3, 5), torch.tensor([[1, 2, 3], [4, -100, -100]])
    >>> task.loss(torch.nn.Identity(), (tokens, following)).shape
    torch.Size([4])

    Batches as in `classification`; tokens labelled -100 do not count. Perplexity is exp of the `data_loss`.

    padding: whether there are such tokens. Looking for them waits for the device; with False steps can be recorded.
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


def mistakes(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=1) != labels).float()


def _are_labels(outputs: Tensor, targets: Tensor) -> bool:
    fits = outputs.ndim == targets.ndim + 1 and outputs.shape[:1] + outputs.shape[2:] == targets.shape
    return fits and not targets.is_floating_point() and outputs.is_floating_point()


class _CrossEntropy:
    """One value per label. A label out of range is an error where looking is free: on the CPU, and once elsewhere; after
    that its loss is NaN, which stops training without the device assertion that would end the process."""

    looked = False

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point() or logits.ndim < 2:
            return F.cross_entropy(logits, labels, reduction="none")
        fits = (labels >= 0) & (labels < logits.shape[1])
        if labels.device.type == "cpu" or not self.looked:
            self.looked = True
            _check_labels(labels, fits, logits.shape[1])
        losses = F.cross_entropy(logits, torch.where(fits, labels, 0), reduction="none")
        return torch.where(fits, losses, torch.nan)


def _check_labels(labels: Tensor, fits: Tensor, classes: int) -> None:
    if not bool(fits.all()):
        raise ThalwegError(
            f"labels must lie between 0 and {classes - 1}, since the network gives {classes} logits; this batch holds "
            f"labels from {int(labels.min())} to {int(labels.max())}: check the labels or the network's last layer"
        )


def check_task(task: object) -> None:
    if not isinstance(task, Task):
        name = getattr(task, "__name__", type(task).__name__)
        raise ThalwegError(f"the task must be a Task, such as classification() or Task(loss, predict); got {name}")


def _describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
