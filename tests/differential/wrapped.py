"""Kinds in wrappers, with other engines inside, with unusual outputs, losses, and contexts around the call."""

import contextlib
import warnings
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from differential.kind import Base, Normed, classify, cross_entropy, kind, shaped, tanh_mlp
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import thalweg as tw


@contextlib.contextmanager
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@kind("scripted_part")
def scripted() -> nn.Module:
    with quiet():
        return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh())), nn.Linear(8, 3))


@kind("traced_part")
def traced() -> nn.Module:
    with quiet():
        part = torch.jit.trace(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.ones(2, 4))
    return nn.Sequential(part, nn.Linear(8, 3))


@kind("scripted_function_inside", refused="copy")
class ScriptedFunction(Base):
    def __init__(self) -> None:
        super().__init__()
        with quiet():
            self.activation = torch.jit.script(torch.nn.functional.silu)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.activation(self.first(x)))


@kind("scripted_whole")
def scripted_whole() -> nn.Module:
    with quiet():
        return torch.jit.script(tanh_mlp())


@kind("compiled_whole")
def compiled() -> nn.Module:
    return torch.compile(tanh_mlp(), backend="eager")


@kind("compiled_part")
def compiled_part() -> nn.Module:
    return nn.Sequential(torch.compile(nn.Linear(4, 8), backend="eager"), nn.Tanh(), nn.Linear(8, 3))


@kind("data_parallel")
def data_parallel() -> nn.Module:
    return nn.DataParallel(tanh_mlp())


@kind("averaged_model")
def averaged() -> nn.Module:
    return AveragedModel(tanh_mlp())


@kind("checkpointed")
class Checkpointed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda y: self.first(y).tanh(), x, use_reentrant=False))


@kind("checkpointed_reentrant")
class Reentrant(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=True).tanh())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


@kind("own_autograd_function")
class OwnFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(Cube.apply(self.first(x)))


@kind("straight_through")
class StraightThrough(Base):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden + (hidden.sign() - hidden).detach())


@kind("gradient_inside_forward")
class Energy(Base):
    """A force is the derivative of an energy."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force[:, :3]


@kind("vmap_inside")
class Vmapped(Base):
    def forward(self, x: Tensor) -> Tensor:
        return vmap(super().forward)(x)


@kind("functional_call_inside")
class Functional(Base):
    def forward(self, x: Tensor) -> Tensor:
        hidden = functional_call(self.first, {"weight": self.first.weight * 2, "bias": self.first.bias}, (x,))
        return self.last(hidden.tanh())


@kind("fourier")
class Fourier(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.fft.ifft(torch.fft.fft(self.first(x)).conj() * 2).real)


@kind("two_thousand_layers", batches=lambda: shaped(2)()[:1])
def deep() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(2, 2) for _ in range(2000)]
    for layer in layers:
        with torch.no_grad():
            layer.weight.copy_(torch.eye(2) + 0.001 * torch.randn(2, 2))
    return nn.Sequential(*layers, nn.Linear(2, 3))


def single(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs, labels = net(batch[0])[None], batch[1][None]
    return cross_entropy(outputs, labels), outputs, labels


def examples() -> list[Any]:
    return [(row, label) for rows, labels in shaped(4)()[:1] for row, label in zip(rows, labels, strict=True)]


one_by_one = tw.Task(cross_entropy, lambda net, batch: single(net, batch)[1:])
kind("without_batch_dimension", batches=examples, task=lambda module: one_by_one, both=single)(tanh_mlp)


@kind("in_place_on_its_inputs", refused={"scan": "data", "ensemble": "data"})
class InPlace(Base):
    """Writes to the batch itself, so that what a second pass sees depends on the first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


@kind("in_place_activations")
def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


@kind("output_tuple", both=classify(lambda result: result[0]))
class TupleOutput(Base):
    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).tanh()
        return self.last(hidden), hidden


@kind("output_dict", both=classify(lambda result: result["logits"]))
class DictOutput(Base):
    def forward(self, x: Tensor) -> Any:
        return {"features": x, "logits": super().forward(x)}


@dataclass
class Answer:
    logits: Tensor
    loss: Tensor | None = None


@kind("output_dataclass", both=classify(lambda result: result.logits))
class DataclassOutput(Base):
    def forward(self, x: Tensor) -> Any:
        return Answer(super().forward(x))


@kind("output_namespace", both=classify(lambda result: result.logits))
class NamespaceOutput(Base):
    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


@kind("output_namedtuple", both=classify(lambda result: result.logits))
class NamedOutput(Base):
    Output = namedtuple("Output", "features logits")

    def forward(self, x: Tensor) -> Any:
        return self.Output(x, super().forward(x))


@kind("output_distribution", both=classify(lambda result: result.logits))
class DistributionOutput(Normed):
    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Categorical(logits=super().forward(x))


@kind("output_namespace_of_unregistered_layers", refused="unregistered", both=classify(lambda result: result.logits))
class NamespaceOfListed(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(3, 3)]

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=self.hidden[0](super().forward(x)))


@kind(
    "output_namespace_of_a_copy_that_loses_something", refused="deepcopy", both=classify(lambda result: result.logits)
)
class NamespaceOfLosing(Normed):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        twin = type(self)(1.0).double()
        twin.load_state_dict(self.state_dict())
        return twin

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=self.scale * super().forward(x))


@kind("output_without_logits", refused="output")
class OddOutput(Normed):
    def forward(self, x: Tensor) -> Any:
        return {"answer": super().forward(x)}


def predict(net: nn.Module, batch: Any) -> tuple[Any, Tensor]:
    return net(batch[0]), batch[1]


def penalised(over: nn.Module) -> tw.Task:
    """Cross-entropy with a penalty over the weights of a network that the loss holds."""
    return tw.Task(lambda outputs, labels: cross_entropy(outputs, labels) + over.first.weight.square().sum())


def predict_in_inference_mode(net: nn.Module, batch: Any) -> tuple[Any, Tensor]:
    with torch.inference_mode(not net.training):
        return predict(net, batch)


inferring = tw.Task(cross_entropy, predict_in_inference_mode)
kind("inference_mode_in_predict", task=lambda module: inferring)(Normed)


def predict_penalty(net: nn.Module, batch: Any) -> tuple[Any, Tensor]:
    return (net(batch[0]), net.first.weight.square().sum()), batch[1]


penalty_task = tw.Task(lambda outputs, labels: cross_entropy(outputs[0], labels) + outputs[1], predict_penalty)


def with_penalty(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = net(batch[0])
    return cross_entropy(outputs, batch[1]) + net.first.weight.square().sum(), outputs, batch[1]


TRAINING = ("fit", "connect", "walk")
OUTSIDE = dict.fromkeys((*TRAINING, "scan"), "closure")
kind("penalty_over_the_passed_network", task=lambda module: penalty_task, both=with_penalty)(Normed)
kind("penalty_over_the_callers_network", task=penalised, both=with_penalty, refused=OUTSIDE)(Normed)


def in_place_loss(outputs: Any, labels: Tensor) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    logits -= 0.5 * torch.nn.functional.one_hot(labels, 3).to(logits)
    return cross_entropy(logits, labels)


def in_place_both(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = net(batch[0])
    return in_place_loss(*predict(net, batch)), getattr(outputs, "logits", outputs), batch[1]


in_place_task = tw.Task(in_place_loss, predict)
kind("loss_that_writes_into_the_output", task=lambda module: in_place_task, both=in_place_both)(Base)
kind("loss_that_writes_into_the_logits", task=lambda module: in_place_task, both=in_place_both)(NamespaceOutput)


def with_gradient_penalty(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        x = batch[0].detach().requires_grad_()
        outputs = net(x)
        losses = cross_entropy(outputs, batch[1])
        (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + slope.square().sum(1), outputs, batch[1]


def predict_slope(net: nn.Module, batch: Any) -> tuple[Any, Tensor]:
    losses, outputs, labels = with_gradient_penalty(net, batch)
    return (outputs, losses), labels


sloped = tw.Task(lambda outputs, labels: outputs[1], predict_slope)
meaned = tw.Task(lambda outputs, labels: cross_entropy(outputs, labels).mean(), size=lambda batch: len(batch[1]))
kind("gradient_penalty", both=with_gradient_penalty, task=lambda module: sloped)(Base)
kind("loss_of_one_mean", task=lambda module: meaned)(Base)

NO_GRADIENT = dict.fromkeys(TRAINING, "gradient")
kind("no_grad_around", around=lambda module: torch.no_grad(), refused=NO_GRADIENT)(Base)
kind("inference_mode_around", around=lambda module: torch.inference_mode(), refused=NO_GRADIENT)(Base)
kind("default_dtype_around", around=lambda module: default_dtype(torch.float64))(Base)
kind("anomaly_detection_around", around=lambda module: anomaly())(Base)
kind("deterministic_around", around=lambda module: deterministic())(Base)


@kind("parametrizations_cached_around", around=lambda module: parametrize.cached(), refused="cached")
def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))


def in_float32() -> list[Any]:
    return [(x.float(), y) for x, y in shaped(4)()]


lowered = {
    "around": lambda module: torch.autocast("cpu", torch.bfloat16),
    "dtype": torch.float32,
    "batches": in_float32,
}
kind("autocast_around", tolerance=0.05, **lowered)(Base)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def anomaly() -> Any:
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        yield


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
