"""A network that answers the same for every input after a tenth of its training has not begun to learn."""

from contextlib import suppress
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

SHARE, FEWEST = 10, 100  # looked at after the tenth part of a training, and not before this many steps
LEARNT = 1e-3  # how much lower the loss must be than that of a constant answer, relative to it


def warn_if_stalled(step: Step, batches: Batches, compute: Compute, epoch: int, epochs: int) -> None:
    """Warn once, after the epoch that completes the tenth part of a training; nothing that training uses is changed.

    Args:
        step: A step of the training, which is watched only if it is plain and of a whole network.
        batches: The training data, of which the first batch is used.
        compute: How to compute.
        epoch: The epoch that has ended.
        epochs: The length of the training.
    """
    probe, task, watched = step.probe, step.task, step.trainable.t is None and step.probe.copied
    if epoch != -(-epochs // SHARE) or epoch * len(batches) < FEWEST or not watched:
        return
    found = None
    # an error in these passes is none of training
    with suppress(Exception), undisturbed(batches, task, seed=0), unwritten(task), probe.kept():
        found = _losses(probe, task, next(moved(batches, probe.device)), compute)
    if found is not None and found[1] - found[0] < LEARNT * abs(found[1]):
        warn(
            f"the network has not begun to learn: after {epoch} of {epochs} epochs its loss on the first batch is "
            f"{found[0]:.4g}, and {found[1]:.4g} if it answers the same for every example: try another seed, a smaller "
            "or a larger learning rate, or normalisation layers",
            Stalled,
        )


def _losses(probe: Probe, task: Task, batch: Any, compute: Compute) -> list[float] | None:
    """The loss on a batch, and that of the mean output given for each of its examples; None without such outputs."""
    probe.module.eval()
    with torch.no_grad(), compute.casting(probe.device):
        outputs, targets = task.predictions(probe.module, batch)
        if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not outputs.is_floating_point():
            return None
        alike = outputs.mean(0, keepdim=True).expand_as(outputs).clone()
        values = [outputs.clone(), alike]  # a loss may write into its outputs
        return [float(mean_of(*task.losses(value, targets, batch))) for value in values]
