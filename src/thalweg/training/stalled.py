"""A network that answers the same for every input after a tenth of its training has not begun to learn."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..batches import Batches
from ..errors import Stalled, warn
from ..evaluation.fingerprint import unwritten
from ..runtime.compute import Compute
from ..runtime.rng import undisturbed
from ..runtime.transfer import moved
from ..tasks import Task
from ..weightspace.probe import Probe
from .step import Step, mean_of

SHARE, FEWEST = 10, 100  # checked after a tenth of training, and not before this many steps
ENOUGH, MOST = 64, 64  # examples that are looked at, of different targets, and batches at most
LEARNT = 1e-3  # how much lower the loss must be than that of a constant answer, relative to it


def warn_if_stalled(step: Step, batches: Batches, compute: Compute, epoch: int, epochs: int) -> None:
    """Warn once, after the epoch that completes a tenth of training; nothing that training uses is changed.

    Args:
        step: A step of the training, which is watched only if it is plain and of a whole network.
        batches: The training data, of which the first examples are used.
        compute: How to compute.
        epoch: The epoch that has ended.
        epochs: The length of the training.
    """
    probe, task, watched = step.probe, step.task, step.trainable.t is None and step.probe.copied
    if epoch != -(-epochs // SHARE) or epoch * len(batches) < FEWEST or not watched:
        return
    found = None
    # errors in this check must not stop training
    with (
        suppress(Exception),
        undisturbed(batches, seed=0),
        undisturbed(task, whole=True),
        unwritten(task),
        probe.preserved(),
    ):
        found = _losses(probe, task, islice(moved(batches, probe.device, held=True), MOST), compute)
    if found is not None and found[1] - found[0] < LEARNT * abs(found[1]):
        warn(
            f"the network has not begun to learn: after {epoch} of {epochs} epochs its loss on the first examples is "
            f"{found[0]:.4g}, and {found[1]:.4g} if it answers the same for each of them: try another seed, a smaller "
            "or a larger learning rate, or normalisation layers",
            Stalled,
        )


def _losses(probe: Probe, task: Task, batches: Iterable[Any], compute: Compute) -> tuple[float, float] | None:
    """The loss on the first examples, and that of their mean output given for each of them; None without such outputs,
    or if all have the same target, for which one answer is right. Examples of other shapes than the first, such as
    longer sequences, have no common mean and are left out.
    """
    probe.module.eval()
    with torch.no_grad(), compute.casting(probe.device):
        total: Any = 0.0
        own: list[tuple[Tensor, Any]] = []
        shown: list[tuple[torch.Size, Any, Any]] = []  # not the outputs, which are large for language models
        for batch in batches:
            outputs, targets = task.predictions(probe.module, batch)
            if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not outputs.is_floating_point():
                return None
            if shown and outputs.shape[1:] != shown[0][0][1:]:
                continue
            total = total + outputs.sum(0, keepdim=True, dtype=torch.promote_types(outputs.dtype, torch.float32))
            shown.append((outputs.shape, targets, batch))
            own.append(task.losses(outputs, targets, batch))
            if sum(shape[0] for shape, _, _ in shown) >= ENOUGH and _differ([targets for _, targets, _ in shown]):
                break
        if not _differ([targets for _, targets, _ in shown]):
            return None
        alike = (total / sum(shape[0] for shape, _, _ in shown)).to(outputs.dtype)
        constant = [task.losses(alike.expand(shape).clone(), targets, batch) for shape, targets, batch in shown]
        return _pooled(own), _pooled(constant)


def _differ(targets: Sequence[Any]) -> bool:
    """Whether any two examples have different targets, as far as that can be seen."""
    if not all(isinstance(target, Tensor) and target.ndim for target in targets):
        return True
    return bool((torch.cat([*targets]) != targets[0][:1]).any())


def _pooled(found: Sequence[tuple[Tensor, Any]]) -> float:
    counted = [(float(number), float(mean_of(values, number))) for values, number in found if number]
    return sum(size * mean for size, mean in counted) / sum(size for size, _ in counted)
