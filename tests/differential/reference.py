"""What every call should give, naively: fresh modules from their factory, tensors copied by name, nothing of the
library.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

IGNORED = -100  # the label that does not count
CURVE_STREAM = 0x7E41  # what connect adds to its seed for the generator of t
MEASURING = 0x7E42  # the seed of all that is measured
State = dict[str, Tensor]
Make = Callable[[int], nn.Module]  # seed -> a new module


@contextmanager
def seeded(seed: int, batches: Any = None) -> Iterator[None]:
    """All global generators seeded, and that of the batches; the global ones are put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        if getattr(batches, "generator", None) is not None:
            batches.generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def moving(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def copied(net: nn.Module) -> State:
    return {name: p.detach().clone() for name, p in moving(net).items()}


def place(net: nn.Module, point: State) -> None:
    with torch.no_grad():
        parameters = dict(net.named_parameters())
        for name, value in point.items():
            parameters[name].copy_(value)


def standing(make: Make, seed: int, point: State | None = None) -> nn.Module:
    """A module that nobody has used: the form of seed 3, the state of `seed`, the moving weights of `point`.

    A point that was never trained has no batch-norm statistics; a layer off the path keeps those of the form.
    """
    net = make(3)
    own = statistics_of(net)
    net.load_state_dict(make(seed).state_dict())
    if point is not None:
        place(net, point)
        net.load_state_dict(own, strict=False)
    return net


def norms(net: nn.Module) -> dict[str, nn.Module]:
    found = {name: part for name, part in net.named_modules() if isinstance(part, _BatchNorm)}
    return {name: part for name, part in found.items() if part.running_mean is not None}


def statistics_of(net: nn.Module) -> State:
    return {f"{name}.{key}": b.clone() for name, part in norms(net).items() for key, b in part.named_buffers()}


def decay(lr: float, epochs: int, steps: int) -> Callable[[int], float]:
    """The paper's: constant for half the epochs, linear to 1 % at nine tenths, flat."""

    def rate(i: int) -> float:
        share = ((i - 1) // steps + 1) / epochs
        if share <= 0.5:
            return lr
        return lr * (1.0 - (share - 0.5) / 0.4 * 0.99) if share <= 0.9 else lr * 0.01

    return rate


def triangle(high: float, low: float, cycle: int) -> Callable[[int], float]:
    """FGE's: down to `low` in the middle of a cycle, up to `high` at its end."""

    def rate(i: int) -> float:
        t = ((i - 1) % cycle + 1) / cycle
        return (1 - 2 * t) * high + 2 * t * low if t <= 0.5 else (2 - 2 * t) * low + (2 * t - 1) * high

    return rate


def train(net: nn.Module, loss, batches, rate, epochs: int, weight_decay: float, then=lambda i: None) -> None:
    """SGD with momentum 0.9 and the decay in the gradient, of every weight that some loss so far depended on."""
    parameters = moving(net)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    reached: set[str] = set()
    net.train()
    with seeded(0, batches), torch.enable_grad():
        i = 0
        for _ in range(epochs):
            for batch in batches:
                i += 1
                _gradient(net, parameters, loss, batch, weight_decay, reached)
                optimizer.param_groups[0]["lr"] = rate(i)
                optimizer.step()
                then(i)


def _gradient(net: nn.Module, parameters, loss, batch: Any, weight_decay: float, reached: set[str]) -> None:
    for parameter in parameters.values():
        parameter.grad = None
    losses = loss(net, batch)
    (losses.mean() if losses.numel() else losses.sum()).backward()  # a batch in which nothing counts has no gradient
    reached.update(name for name, p in parameters.items() if p.grad is not None)
    for name in reached:
        p = parameters[name]
        grad = torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad
        p.grad = (grad + weight_decay * p).detach()


def fit(make: Make, loss, batches, epochs: int, lr: float, weight_decay: float) -> State:
    net = make(1)
    train(net, loss, batches, decay(lr, epochs, len(batches)), epochs, weight_decay)
    return net.state_dict()


def walk(
    make: Make, loss, batches, epochs: int, high: float, low: float, cycle: int, weight_decay: float
) -> list[State]:
    """Fast Geometric Ensembling: the networks at the lowest rate of every cycle."""
    net, members = standing(make, 1), []

    def then(i: int) -> None:
        if i % cycle == cycle // 2:
            members.append({name: value.detach().clone() for name, value in net.state_dict().items()})

    train(net, loss, batches, triangle(high, low, cycle), epochs, weight_decay, then)
    return members


def connect(make: Make, loss, batches, epochs: int, lr: float, weight_decay: float) -> State:
    """The bend of a quadratic Bezier curve, by the chain rule at one t a step."""
    one, two = copied(make(1)), copied(make(2))
    bend = {name: nn.Parameter((one[name] + two[name]) / 2) for name in one}
    net, reached = standing(make, 1), set()
    parameters, rate = moving(net), decay(lr, epochs, len(batches))
    optimizer = torch.optim.SGD(bend.values(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0 + CURVE_STREAM)
    net.train()
    with seeded(0, batches), torch.enable_grad():
        i = 0
        for _ in range(epochs):
            for batch in batches:
                i += 1
                t = float(torch.rand((), generator=generator, dtype=torch.float64))
                c = ((1 - t) ** 2, 2 * t * (1 - t), t**2)
                place(net, {name: c[0] * one[name] + c[1] * bend[name].detach() + c[2] * two[name] for name in one})
                _gradient(net, parameters, loss, batch, weight_decay, reached)
                for name in reached:
                    bend[name].grad = c[1] * parameters[name].grad
                optimizer.param_groups[0]["lr"] = rate(i)
                optimizer.step()
    return {name: value.detach() for name, value in bend.items()}


def statistics(net: nn.Module, forward, batches) -> None:
    """Give every batch-norm layer the mean and variance of all that it sees in one pass, each batch normalised by
    itself.
    """
    layers = list(norms(net).values())
    seen: dict[int, list[Tensor]] = {id(layer): [] for layer in layers}
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[id(layer)].append(inputs[0].detach().transpose(0, 1).reshape(inputs[0].shape[1], -1))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    net.eval()
    for layer in layers:
        layer.training = True
    with torch.no_grad():
        for batch in batches:
            forward(net, batch)
        for name, buffer in net.named_buffers():
            buffer.copy_(before[name])
        for layer in layers:
            if seen[id(layer)]:
                values = torch.cat(seen[id(layer)], 1)
                layer.running_mean.copy_(values.mean(1))
                layer.running_var.copy_(values.var(1))
    for hook in hooks:
        hook.remove()
    net.eval()


def between(make: Make, t: float) -> State:
    one, two = copied(make(1)), copied(make(2))
    return {name: (1 - t) * one[name] + t * two[name] for name in one}


def scan(make: Make, both, batches, ts, weight_decay: float, recompute: bool) -> dict[str, list[float]]:
    """Loss, data loss and error along the straight line, each point with a module of its own."""
    found: dict[str, list[float]] = {"loss": [], "data_loss": [], "error": []}
    for t in ts:
        point = between(make, t)
        net = standing(make, 1, point)
        with seeded(MEASURING, batches):
            net.eval()
            if recompute:
                statistics(net, both, batches)
            data_loss, error = measured(net, both, batches)
        square = sum(float(value.double().square().sum()) for value in point.values())
        found["data_loss"].append(data_loss)
        found["loss"].append(data_loss + weight_decay / 2 * square)
        found["error"].append(error)
    return found


def measured(net: nn.Module, both, batches) -> tuple[float, float]:
    losses, wrong = [], []
    with torch.no_grad():
        for batch in batches:
            values, outputs, targets = both(net, batch)
            losses.append(values.flatten())
            labels = targets.argmax(1) if outputs.shape == targets.shape and one_hot(targets) else targets
            if outputs.ndim == labels.ndim + 1:
                wrong.append((outputs.argmax(1) != labels)[labels != IGNORED].double())
    return float(torch.cat(losses).mean()), float(torch.cat(wrong).mean()) if wrong else float("nan")


def one_hot(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all()) and bool((targets.sum(1) == 1).all())


def ensemble(make: Make, both, batches, probabilities) -> tuple[Tensor, Tensor]:
    """The mean over two members of their probabilities, or of their outputs in regression; and the targets."""
    total: Any = 0
    for seed in (1, 2):
        net = standing(make, seed).eval()
        found, wanted = [], []
        with seeded(MEASURING, batches), torch.no_grad():
            for batch in batches:
                _, outputs, targets = both(net, batch)
                found.append(probabilities(outputs.double()))
                wanted.append(targets)
        total = total + torch.cat(found)
    return total / 2, torch.cat(wanted)


def scores(values: Tensor, targets: Tensor, plain: bool) -> dict[str, float]:
    """Of what counts; where targets are probabilities, what is defined of the scores; `plain` for regression."""
    if plain:
        return {"squared_error": float((values - targets).square().mean())}
    if values.shape == targets.shape:
        truth = targets.double()
    else:
        values, labels = values.movedim(1, -1).flatten(0, -2), targets.flatten().long()
        values, labels = values[labels != IGNORED], labels[labels != IGNORED]
        truth = torch.eye(values.shape[1]).double()[labels]
    found = {
        "nll": float(-(truth * values.log()).sum(1).mean()),
        "brier": float((values - truth).square().sum(1).mean()),
    }
    wrong = (values.argmax(1) != truth.argmax(1)).double().mean()
    return found | ({"error": float(wrong)} if one_hot(truth) else {})


def refresh(make: Make, both, batches) -> State:
    """The middle between two networks with batch-norm statistics of its own, and nothing else changed."""
    net = standing(make, 1, between(make, 0.5))
    before = {name: value.detach().clone() for name, value in net.state_dict().items()}
    if norms(net):
        with seeded(MEASURING):
            statistics(net, both, batches)
    return before | statistics_of(net)
