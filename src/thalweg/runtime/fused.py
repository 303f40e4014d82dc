"""Updates of a captured step in one pass over memory: which optimizers our kernels can replace, and their state."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..errors import first_line
from ..training.sgd import rates
from ..training.step import Bends, Step
from .compute import warn_slow_path

# settings that our kernels do not have
UNSUPPORTED = ("nesterov", "dampening", "maximize", "amsgrad", "differentiable")


def make_capturable(optimizer: Optimizer) -> None:
    """Some optimizers count their steps on the CPU unless `capturable` is set, or read a learning rate from there
    unless `fused` is.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif type(optimizer) is SGD:
            group["fused"], group["foreach"] = True, False
    optimizer._warned_capturable_if_run_uncaptured = True


def fused_update(step: Step, numbers: Tensor) -> Any:
    """One kernel for the whole update, if the optimizer is plain SGD, Adam or AdamW in float32."""
    kind, groups = type(step.optimizer), step.optimizer.param_groups
    usual = kind in (SGD, Adam, AdamW) and not any(group.get(name) for group in groups for name in UNSUPPORTED)
    hooked = step.optimizer._optimizer_step_pre_hooks or step.optimizer._optimizer_step_post_hooks
    linear = step.trainable.linear and step.trainable.block.dtype == torch.float32 and step.clip is None
    if not usual or hooked or step.trainable.decay_at_phi or not linear or not kernels():
        return None
    return _sgd(step, numbers) if kind is SGD else _adam(step, numbers)


def _sgd(step: Step, numbers: Tensor) -> Any:
    own, *others = step.optimizer.param_groups
    if others or (own["weight_decay"] and isinstance(step.trainable, Bends)):
        return None
    momenta = _block(step.trainable.block) if own["momentum"] else None
    if momenta is not None:
        _hold(step, "momentum_buffer", momenta)
    decay = step.weight_decay or own["weight_decay"]
    return kernels().Update(step.trainable.block, momenta, numbers, own["momentum"], decay, _sizes(step))


def _adam(step: Step, numbers: Tensor) -> Any:
    """With settings of its own for each parameter, so that all groups share one pass."""
    moving, sizes = step.trainable.block, _sizes(step)
    means, squares = _block(moving), _block(moving)
    steps = torch.zeros(len(moving), len(sizes), device=moving.device)
    _hold(step, "exp_avg", means)
    _hold(step, "exp_avg_sq", squares)
    for row, counts in zip(step.trainable.optimized, steps, strict=True):
        for (_, tensor, _), count in zip(row, counts, strict=True):
            step.optimizer.state[tensor]["step"] = count
    groups = zip(step.optimizer.param_groups, rates(1.0, step.base_lrs), strict=True)
    settings = {
        id(tensor): [ratio, *map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"])]
        for group, ratio in groups
        for tensor in group["params"]
    }
    rows = [[settings[id(tensor)] for _, tensor, _ in row] for row in step.trainable.optimized]
    table = torch.tensor(rows, dtype=torch.float64, device="cpu").to(moving.device)
    decoupled = type(step.optimizer) is AdamW or bool(step.optimizer.defaults.get("decoupled_weight_decay"))
    return kernels().AdamUpdate(moving, (means, squares, steps), numbers, table, step.weight_decay, decoupled, sizes)


def adam_scales(steps: Tensor, settings: Tensor, lr: Tensor) -> Tensor:
    """What a step of Adam needs for each parameter, from how many it has taken: the step size with the correction of
    the first moment, the factor that corrects the root of the second, and the decay; in float32.

    Args:
        steps: (vectors, parameters), this one included.
        settings: (vectors, parameters, 5): the ratio of its rate to `lr`, both betas, eps, weight decay.
        lr: The learning rate of the first group.
    """
    ratio, first, second, _, decay = settings.unbind(-1)
    rate = lr * ratio
    sizes, roots = rate / (1 - first**steps), (1 - second**steps).rsqrt()
    return torch.stack([sizes, roots, rate * decay], -1).float()


def _sizes(step: Step) -> list[int]:
    return [slot.numel() for slot in step.probe.slots(step.probe.point)]


def _block(moving: Tensor) -> Tensor:
    """Zeros of the shape of what is trained, in rows that start at multiples of 64."""
    aligned = -(-moving.shape[1] // 64) * 64
    return torch.zeros(len(moving), aligned, dtype=moving.dtype, device=moving.device)[:, : moving.shape[1]]


def _hold(step: Step, key: str, block: Tensor) -> None:
    """Let the optimizer keep its state in a block of memory that a kernel knows."""
    for row, memory in zip(step.trainable.optimized, block, strict=True):
        parts = step.probe.slots(memory) if row[0][0] else [memory]
        for (_, tensor, _), part in zip(row, parts, strict=True):
            step.optimizer.state[tensor][key] = part


@cache
def kernels() -> Any:
    """Our own Triton kernels, if they can be compiled."""
    try:
        from . import kernels as found

        found.combine(
            torch.ones(1, 64, device="cuda"), torch.ones(1, device="cuda").double(), torch.empty(64, device="cuda")
        )
    except ImportError:
        return None
    except Exception as error:  # Triton needs a C compiler, and says so in many ways
        warn_slow_path(
            "curves and updates need more passes over memory", f"our kernels cannot be built ({first_line(error)})"
        )
        return None
    return found
