"""The fingerprint of a training run: what it would compute, as facts that must be the same when it is resumed."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches
from ..errors import ThalwegError
from ..evaluation.fingerprint import Facts, curve_fingerprint, data_fingerprint, first_pass, rounding, summary
from ..runtime.compute import Compute, Processes
from ..runtime.rng import seeded, undisturbed
from ..store import facts, files
from ..tasks import Task
from ..weightspace.curves import Curve
from ..weightspace.layout import Layout
from ..weightspace.weights import Weights
from .loop import Settings, updates
from .optimizers import user_optimizer
from .sgd import rates
from .walk_methods import Plan

PLAIN = ("epochs", "lr", "momentum", "weight_decay", "clip", "seed")
SAMPLED = 30  # iterations at which learning rates are compared
TRIED = 2  # entries along each dimension of a parameter that an optimizer is tried on
SPEED = ("foreach", "fused", "capturable")  # optimizer settings that do not change the result
OWN = ("param_groups", "defaults", "state")


def training_fingerprint(
    settings: Settings,
    module: nn.Module,
    start: Weights,
    task: Task,
    batches: Batches,
    compute: Compute,
    processes: Processes,
    vectors: Sequence[Tensor] = (),
) -> Facts:
    """The facts that all training runs share; `vectors` is what is trained, if it is not the network itself."""
    if processes.size > 1:
        _refuse_distributed_sampler(batches)
    data, first = data_fingerprint(batches, "the training data")
    optimizer, own = _optimizer_fingerprint(settings, start.layout, [v.detach() for v in vectors or [start.vector]])
    steps, device = updates(batches, settings.accumulate), next(module.parameters()).device
    kinds = compute, replace(compute, compile=None)
    compiled, usual = (how.compiles(device, steps * settings.epochs, module) for how in kinds)
    return {
        **{name: getattr(settings, name) for name in PLAIN},
        **({"accumulate": settings.accumulate} if settings.accumulate > 1 else {}),  # folders of version 0.1 have none
        **({"decay_at": settings.decay_at} if settings.decay_at != "bends" else {}),
        **({"in shards": True} if start.layout.shards else {}),
        "precision": compute.precision,
        **({"compile": compiled} if compiled != usual else {}),  # it changes dropout masks; all else only by rounding
        **data,
        **first_pass(module, start, task, first, compute, "the first batch", trains=True),
        "the learning rate": facts.rates(_sampled_rates(settings, steps, own)),
        **optimizer,
    }


def fit_fingerprint(module: nn.Module, keep: Collection[int], **common: Any) -> Facts:
    start = Weights.of(module)
    return {
        **{"keep": sorted(keep), "the starting network": facts.content(start.digest())},
        **training_fingerprint(module=module, start=start, **common),
    }


def connect_fingerprint(curve: Curve, loss: str, same_t: bool, **common: Any) -> Facts:
    return {
        **training_fingerprint(start=curve.start, vectors=[bend.vector for bend in curve.bends], **common),
        **curve_fingerprint(curve),
        **{"loss": loss, "same_t": same_t},
    }


FINGERPRINTS: dict[str, Callable[..., Facts]] = {"fit": fit_fingerprint, "connect": connect_fingerprint}


def method_table(method: object, plan: Plan | None) -> facts.Fact:
    """The settings of a method, and the schedule that they give in this run."""
    own = {"class": type(method).__name__, **vars(method)}
    if plan is not None:
        own["choice of iterations to collect"] = plan.collected
        own["learning rate"] = [float(plan.rate(i)) for i in _spread(plan.total)]
    return facts.table(own)


def _sampled_rates(settings: Settings, steps: int, own: float) -> dict[int, float]:
    rate, chosen = settings.rate(steps, own), _spread(steps * settings.epochs)
    first, second = ({i: float(rate(i)) for i in chosen} for _ in range(2))
    for i in chosen:
        if first[i] != second[i]:
            raise ThalwegError(
                "a schedule must always give the same rate for the same iteration, or a run cannot be resumed; "
                f"it gave {first[i]:.6g} and then {second[i]:.6g} for iteration {i}: let it depend on nothing else"
            )
    return first


def _spread(total: int) -> list[int]:
    """Some iterations, the first and the last among them."""
    return sorted({1 + (total - 1) * k // (SAMPLED - 1) for k in range(SAMPLED)})


def _optimizer_fingerprint(settings: Settings, layout: Layout, vectors: Sequence[Tensor]) -> tuple[Facts, float]:
    """For a user's own optimizer: its settings, and where a few steps move the corners of the parameters; and its own
    learning rate.
    """
    if settings.optimizer is None:
        return {"the optimizer's": facts.table({})}, 0.0
    named = [(name, nn.Parameter(part)) for vector in vectors for name, part in layout.split(vector).items()]
    with undisturbed():
        optimizer = user_optimizer(named, settings)
    found = {"the optimizer's": facts.table(_optimizer_settings(optimizer, named))}
    corners = [
        (name, nn.Parameter(files.gathered(part.detach())[(slice(TRIED),) * part.ndim].clone())) for name, part in named
    ]
    tried = [part.detach() for _, part in corners]
    with undisturbed(settings.optimizer), seeded(0), suppress(Exception):  # user code need not work on these
        _try_steps(user_optimizer(corners, settings), [part for _, part in corners])
        within = rounding(tried[0].dtype, exact=not tried[0].is_cuda)
        found["a few steps of the optimizer"] = facts.numbers({"result": summary(tried)}, within)
    return found, float(optimizer.param_groups[0]["lr"])


def _try_steps(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    given = [group["lr"] for group in optimizer.param_groups]
    for step in range(1, 4):
        for k, part in enumerate(parameters):
            part.grad = torch.arange(1.0, part.numel() + 1, device="cpu").add(k).mul(step).cos().to(part).view_as(part)
        for group, rate in zip(optimizer.param_groups, rates(0.1, given), strict=True):
            group["lr"] = rate
        optimizer.step()


def _optimizer_settings(optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
    """Its class, the settings of its groups, and its other attributes."""
    found: dict[str, Any] = {"class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"}
    numbers = {id(tensor): k for k, (_, tensor) in enumerate(named)}
    for number, group in enumerate(optimizer.param_groups, start=1):
        of = f" in group {number}" if len(optimizer.param_groups) > 1 else ""
        own = {**optimizer.defaults, **group, "params": [numbers[id(tensor)] for tensor in group["params"]]}
        found |= {f"{key}{of}": value for key, value in own.items() if key not in SPEED}
    return found | {key: value for key, value in vars(optimizer).items() if key[0] != "_" and key not in OWN}


def _refuse_distributed_sampler(batches: Batches) -> None:
    if isinstance(getattr(batches, "sampler", None), torch.utils.data.distributed.DistributedSampler):
        raise ThalwegError(
            "every rank takes its part of every batch itself, but this loader has a DistributedSampler and gives each "
            "of them other batches: leave the sampler out"
        )
