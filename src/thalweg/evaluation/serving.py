"""Ensembles in use: predictions for inputs without targets, and an ensemble as one module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError
from ..object_state import dotted, modules_in
from ..runtime.compute import private_copy
from ..runtime.rng import undisturbed
from ..tasks import outputs_of
from ..weightspace.layout import unwrapped
from ..weightspace.probe import drop_caches
from ..weightspace.weights import Weights
from .metrics import TINY

Form = Callable[..., Tensor]  # torch.softmax or torch.log_softmax


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an ensemble predicts for a batch; classes are in dimension 1 of the probabilities.

    Attributes:
        probabilities: Of the ensemble, (count, classes, ...), at its temperature if it was calibrated.
        members: Of each member alone, (members, count, classes, ...), not scaled.
    """

    probabilities: Tensor
    members: Tensor

    @cached_property
    def entropy(self) -> Tensor:
        """How unsure the ensemble is: the entropy of its probabilities in nats, (count, ...)."""
        return entropy(self.probabilities, 1)

    @cached_property
    def mutual_information(self) -> Tensor:
        """How much of that comes from the members' disagreement: the entropy of their mean minus the mean of their
        entropies, in nats, before scaling.
        """
        return (entropy(self.members.mean(0), 1) - entropy(self.members, 2).mean(0)).clamp_min(0)


class EnsembleModule(nn.Module):
    """The members of an ensemble as one module, which returns their averaged probabilities.

    Args:
        networks: The members, in evaluation mode.
        probabilities: Outputs of a network -> what is averaged.
        temperature: The temperature that scales the average, if any.
    """

    def __init__(self, networks: Sequence[nn.Module], probabilities: Callable[..., Tensor], temperature: float | None):
        super().__init__()
        self.networks, self.probabilities, self.temperature = nn.ModuleList(networks), probabilities, temperature
        self.requires_grad_(False).eval()

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.both(*inputs, **named)[0]

    def both(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """What the members predict together, and each alone; scaled in logarithms, where no probability underflows."""
        if self.temperature is None or self.probabilities not in SOFTMAX:
            each = torch.stack([self.alone(network, None, *inputs, **named) for network in self.networks])
            return scaled(each.mean(0), self.temperature), each
        logs = torch.stack([self.alone(network, torch.log_softmax, *inputs, **named) for network in self.networks])
        mean = logs.logsumexp(0) - log(len(self.networks))
        return (mean.clamp_min(log(TINY)) / self.temperature).softmax(1), logs.exp()

    def alone(self, network: nn.Module, form: Form | None, /, *inputs: Any, **named: Any) -> Tensor:
        """What one network predicts; a copy, since the next may write its outputs into the same memory."""
        outputs = network(*inputs, **named)
        return (self.probabilities(outputs, form) if form else self.probabilities(outputs)).clone()


def class_probabilities(outputs: Any, form: Form = torch.softmax) -> Tensor:
    """A softmax over dimension 1, unless the classes may be in another one."""
    shape = tuple(outputs_of(outputs).shape)
    if len(shape) == 3:
        raise ThalwegError(
            f"outputs {shape} do not say which dimension holds the classes: give task=classification() if it is "
            "dimension 1, and task=language_modelling() if it is the last"
        )
    return class_softmax(outputs, form)


def class_softmax(outputs: Any, form: Form = torch.softmax) -> Tensor:
    """A softmax over dimension 1, or its logarithm, in float32 at least."""
    logits = outputs_of(outputs)
    if logits.ndim < 2 or logits.shape[1] < 2:
        raise ThalwegError(
            "probabilities need two classes or more, in dimension 1 of the outputs; got outputs "
            f"{tuple(logits.shape)}: give a task whose probabilities= has a column for each class"
        )
    return form(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))


def token_probabilities(outputs: Any, form: Form = torch.softmax) -> Tensor:
    """The same for classes in the last dimension."""
    return class_softmax(outputs_of(outputs).movedim(-1, 1), form)


SOFTMAX = (class_probabilities, class_softmax, token_probabilities)


def scaled(probabilities: Tensor, temperature: float | None) -> Tensor:
    """Probabilities at a temperature, if there is one, in their own precision."""
    if temperature is None:
        return probabilities
    return (probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log() / temperature).softmax(1)


def entropy(probabilities: Tensor, dim: int) -> Tensor:
    """In nats; 0 for a certain prediction.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), 1)
    tensor([0.6931, 0.0000])
    """
    return torch.special.entr(probabilities).sum(dim)


def network_at(module: nn.Module, member: Weights, original: nn.Module) -> nn.Module:
    """A copy of a network with other weights, in evaluation mode; an error if it would call the original."""
    with undisturbed():  # its own __deepcopy__ may draw random numbers
        copy, _ = private_copy(unwrapped(module), {}, {})
    originals = {id(part) for part in original.modules() if any(p.requires_grad for p in part.parameters())}
    if name := next((name for name, part in modules_in(copy).items() if id(part) in originals), None):
        raise ThalwegError(
            f"a copy of the network would call the original, by '{dotted(name)}': replace no forward by a function "
            "that holds the network; instead of model.forward = torch.compile(model.forward) use model.compile()"
        )
    if not all(parameter.is_leaf for parameter in copy.parameters()):
        raise ThalwegError("members that torch.jit.script made cannot be put together: give the network as it was")
    for part in copy.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # a deep copy loses the memory layout that cuDNN needs
    drop_caches(copy)
    member.load_into(copy)
    return copy.eval()


def called(network: Callable[..., Any], inputs: Any) -> Any:
    """Call a network with a tensor, with several in order, or with several by name."""
    if isinstance(inputs, Mapping):
        return network(**inputs)
    if not isinstance(inputs, Tensor | tuple | list):
        raise ThalwegError(
            "inputs are those of one batch, without targets: a tensor, a tuple of them, or a dict by name; got "
            f"{type(inputs).__name__}: give tensors, one batch at a time"
        )
    return network(*([inputs] if isinstance(inputs, Tensor) else inputs))
