"""Optimizers other than the default: the user's class, a partial of one, or a function of named parameters, and those
that the command line names. The default is in `sgd.py`, what a step does with either in `Step.update`, and an update in
one pass over GPU memory in `runtime/fused.py`.
"""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon, Optimizer

from ..errors import ThalwegError, during
from ..weightspace.layout import named_parameters
from ..weightspace.probe import Probe
from .loop import Settings
from .sgd import OptimizerFactory, rates
from .step import Trainable

MOMENTUM = 0.9  # of the default optimizer


def parameter_optimizer(trainable: Trainable, settings: Settings, processes: int = 1) -> Optimizer:
    """The user's optimizer for the parameters of a network, or of all bends of a curve."""
    probe = trainable.probe
    trainable.optimized = [
        list(zip(probe.layout.names, probe.parameters(vector), _values(probe, gradient), strict=True))
        for vector, gradient in zip(trainable.vectors, trainable.gradient, strict=True)
    ]
    optimizer = user_optimizer([(name, tensor) for row in trainable.optimized for name, tensor, _ in row], settings)
    if (trainable.block.is_cuda or not trainable.on_device) and type(optimizer) in (Adam, AdamW):
        for group in optimizer.param_groups:  # torch's default allocates another vector for temporaries
            group["fused"] = group["fused"] or (group["fused"] is group["foreach"] is None)
    if settings.decay_at == "phi":
        if processes > 1 and not trainable.same_t and probe.copied:
            raise ThalwegError(
                "ranks at different t would decay differently: use same_t=True, or in Python decay_at='bends'"
            )
        trainable.decay_at_phi = _DecayAtPhi(trainable, optimizer)
    return optimizer


def _values(probe: Probe, flat: Tensor) -> list[Tensor]:
    """Views of a flat vector with the shapes of the parameters that an optimizer gets, in shards if they are."""
    return [parameter.detach() for parameter in probe.parameters(flat)]


class _DecayAtPhi:
    """Applies the weight decay of an optimizer's groups at phi(t) instead of at the bends: each bend is decayed by that
    of phi(t) times its coefficient, decoupled from the gradient or as part of it, as the optimizer would.
    """

    def __init__(self, trainable: Trainable, optimizer: Optimizer):
        if not type(optimizer).__module__.startswith("torch.optim"):
            raise ThalwegError(
                f"how {type(optimizer).__name__} decays weights is not known, so it cannot be moved to phi(t): use "
                "one of torch.optim, or weight_decay= of the call and none in the optimizer"
            )
        self.trainable, phi = trainable, _values(trainable.probe, trainable.probe.point)
        self.decoupled = isinstance(optimizer, Adafactor | Muon)  # of others, a setting says so
        decayed = {
            id(tensor): (group, group["weight_decay"])
            for group in optimizer.param_groups
            for tensor in group["params"]
            if group.get("weight_decay")
        }
        self.places = [
            (i, tensor, gradient, place, *decayed[id(tensor)])
            for i, row in enumerate(trainable.optimized, start=1)
            for (_, tensor, gradient), place in zip(row, phi, strict=True)
            if id(tensor) in decayed
        ]
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0

    @torch.no_grad()
    def __call__(self) -> None:
        coefficients = self.trainable.coefficients  # type: ignore[attr-defined]
        for i, tensor, gradient, place, group, rate in self.places:
            if tensor.grad is None:
                continue
            pull = place.to(tensor) * (coefficients[i].to(tensor) * rate)
            if group.get("decoupled_weight_decay", self.decoupled):
                tensor.sub_(pull * group["lr"])
            else:
                gradient.add_(pull, alpha=-1 if group.get("maximize") else 1)


def user_optimizer(named: Sequence[tuple[str, Tensor]], settings: Settings) -> Optimizer:
    """The optimizer that the user's class or function makes, checked."""
    optimizer = _made(named, settings)
    if not isinstance(optimizer, Optimizer):
        raise ThalwegError(
            "optimizer= must be a torch optimizer class, a partial of one, or a function that turns named parameters "
            f"into an optimizer or into parameter groups for SGD; it gave {repr(optimizer).splitlines()[0]:.80}"
        )
    try:
        signature(optimizer.step).bind()
    except TypeError:
        raise ThalwegError(
            f"the optimizer must take steps without a closure, and {type(optimizer).__name__} needs one: use another"
        ) from None
    groups = optimizer.param_groups
    _check_complete(named, [id(tensor) for group in groups for tensor in group["params"]])
    own = [group["weight_decay"] for group in groups if group.get("weight_decay")]
    if negative := [decay for decay in own if decay < 0]:
        raise ThalwegError(f"weight_decay must be 0 or more; got {negative[0]} in {type(optimizer).__name__}")
    if settings.weight_decay and own:
        raise ThalwegError(
            "weight decay is the call's, an L2 penalty at the point where the gradient is taken, or the optimizer's "
            f"own, not both; got weight_decay={settings.weight_decay:g}, and {own[0]:g} in {type(optimizer).__name__}: "
            "set one of them to 0"
        )
    if odd := [group.get("lr") for group in groups if not isinstance(group.get("lr"), int | float | Tensor)]:
        raise ThalwegError(
            "every parameter group needs a learning rate 'lr', which is set in every step; that of "
            f"{type(optimizer).__name__} is {odd[0]!r}: give it one, as in partial({type(optimizer).__name__}, lr=1e-3)"
        )
    rates(1.0, [group["lr"] for group in groups])
    if settings.takes_own_rate and not groups[0]["lr"] > 0:
        raise ThalwegError(
            f"the optimizer's own learning rate must be above 0 where lr= and schedule= give none; got "
            f"{float(groups[0]['lr']):g}: set one of the three"
        )
    return optimizer


def named_optimizer(name: str, weight_decay: float) -> OptimizerFactory | None:
    """The optimizer that the command line calls sgd, adam or adamw; adamw decays only matrices."""
    made: dict[str, OptimizerFactory] = {"adam": Adam, "adamw": partial(_decaying_matrices, weight_decay)}
    return made.get(name)


def _decaying_matrices(weight_decay: float, named: Sequence[tuple[str, Tensor]]) -> Optimizer:
    matrices, rest = ([tensor for _, tensor in named if (tensor.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return AdamW([group for group in groups if group["params"]])


def user_rate(module: nn.Module, factory: OptimizerFactory) -> float:
    """The learning rate of the first group of a user's optimizer."""
    named = [(name, tensor) for name, tensor in named_parameters(module).items() if tensor.requires_grad]
    settings = Settings(1, None, MOMENTUM, 0.0, None, factory, None, 0)
    return float(user_optimizer(named, settings).param_groups[0]["lr"])


def _made(named: Sequence[tuple[str, Tensor]], settings: Settings) -> Any:
    """A class gets parameters, as it does from `module.parameters()`; a function gets them with their names."""
    factory: Any = settings.optimizer
    inner, lr = factory, settings.lr
    while isinstance(inner, partial):
        if lr is not None and float(inner.keywords.get("lr", lr)) != lr:
            raise ThalwegError(
                "a learning rate is given to the call or to the optimizer, not to both; got lr = "
                f"{lr:g}, and {float(inner.keywords['lr']):g} in the optimizer: leave one of them out"
            )
        inner = inner.func
    with during("making the optimizer"):
        made = factory([tensor for _, tensor in named] if isinstance(inner, type) else list(named))
        if isinstance(made, list | tuple) and made and all(isinstance(one, dict) and "params" in one for one in made):
            return _sgd(made, settings)
    if settings.momentum != MOMENTUM:
        raise ThalwegError(
            "momentum= is that of the default SGD, and would be ignored where an optimizer is given; got "
            f"{settings.momentum:g}: set it in the optimizer, or leave it out"
        )
    return made


def _sgd(groups: Sequence[Any], settings: Settings) -> Optimizer:
    """The default optimizer with a function's groups."""
    if settings.takes_own_rate and (without := [k for k, group in enumerate(groups, start=1) if "lr" not in group]):
        raise ThalwegError(
            f"parameter groups need a learning rate, and group {without[0]} has none: give every group its 'lr', or "
            "the call lr= or schedule="
        )
    first = groups[0]["lr"] if settings.takes_own_rate else settings.rate(1)(1)
    return SGD(groups, lr=first, momentum=settings.momentum)


def _check_complete(named: Sequence[tuple[str, Tensor]], moved: list[int]) -> None:
    names = {id(tensor): name for name, tensor in named}
    if strange := set(moved) - set(names):
        raise ThalwegError(
            "the optimizer must update the parameters that its function is given, not a module's own; "
            f"{len(strange)} of {len(moved)} are others"
        )
    if missing := [name for tensor, name in names.items() if tensor not in moved]:
        bends = ", once for each bend" if len(set(names.values())) < len(names) else ""
        raise ThalwegError(
            f"the optimizer must update every parameter it is given{bends}; '{missing[0]}' is in no group: put it into "
            "one, or freeze it with requires_grad_(False)"
        )
