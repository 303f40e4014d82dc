"""Batch-norm statistics for weights that were never trained."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batches import Batches, count, moved
from ..errors import ThalwegError
from ..randomness import seeded
from ..tasks import Task, split
from .modules import STATISTICS, batch_norms
from .probe import Probe
from .weights import Weights

Forward = Callable[[nn.Module, Any], object]


def refresh(module: nn.Module, weights: Weights, batches: Batches, task: Task | None = None) -> Weights:
    """The same point with batch-norm statistics: pooled mean and variance of all inputs in one pass over `batches`.

    >>> import thalweg as tw
    >>> module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> middle = tw.average([Weights.of(module), Weights.of(module)])
    >>> middle.has_statistics, refresh(module, middle, [(torch.randn(8, 2), None)]).has_statistics
    (False, True)

    batches: training data, without augmentation; their size matters, since each batch is normalised by itself.
    task: how the network sees a batch; without one, `(inputs, ..., targets)` or a dict, as in `classification`.
    """
    probe = Probe(module, weights)
    with seeded(0, batches):
        recompute(probe, task.loss if task else _plain_forward, batches)
    return probe.weights()


def recompute(probe: Probe, forward: Forward, batches: Batches) -> None:
    """Give a probe the statistics of where it stands."""
    layers = {id(layer): layer for _, layer in batch_norms(probe.module)}
    if not layers:
        return
    count(batches, "the refresh batches")
    before = {id(layer): {name: layer.get_buffer(name).clone() for name in STATISTICS} for layer in layers.values()}
    with _others_kept(probe.module, layers), _collecting(probe.module, list(layers.values())) as pools, torch.no_grad():
        for batch in moved(batches, probe.device):
            try:
                forward(probe.module, batch)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                message = "batch norm cannot take statistics of a batch of one example: use another size for refresh batches"
                raise ThalwegError(message) from error
    names = {id(layer): name for name, layer in batch_norms(probe.module)}
    for key, pool in zip(layers, pools, strict=True):
        pool.write(layers[key], names[key], len(batches), before[key])


@contextmanager
def _others_kept(module: nn.Module, layers: Collection[int]) -> Iterator[None]:
    """Only statistics change: buffers that a forward pass happens to write are put back."""
    others = [(b, b.clone()) for part in module.modules() if id(part) not in layers for b in part.buffers(recurse=False)]
    try:
        yield
    finally:
        for buffer, value in others:
            buffer.copy_(value)


class _Pool:
    """Mean and squared deviations of everything a layer has seen, merged batch by batch in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.deviations = torch.zeros((), dtype=torch.float64)

    def add(self, layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        """After a forward pass with momentum 1 the layer's buffers hold the mean and variance of that batch alone."""
        values = inputs[0] if inputs else next(iter(named.values()))
        size = values.numel() // values.shape[1]
        mean, variance = (layer.get_buffer(name).double() for name in ("running_mean", "running_var"))
        total = self.count + size
        shift = mean - self.mean.to(mean.device)
        self.mean = self.mean + shift * (size / total)
        self.deviations = self.deviations + variance * (size - 1) + shift.square() * (self.count * size / total)
        self.count = total

    def write(self, layer: _BatchNorm, name: str, batches: int, before: dict[str, Tensor]) -> None:
        if self.count > 1:
            found = {"running_mean": self.mean, "running_var": self.deviations / (self.count - 1)}
            found["num_batches_tracked"] = torch.tensor(batches)
        elif bool(layer.get_buffer("running_mean").any()):
            raise ThalwegError(
                f"the batch-norm layer '{name}' is not called but has its buffers used, so its inputs cannot be seen: call the "
                "layer itself in forward, instead of F.batch_norm with its parts"
            )
        else:
            found = before  # the pass does not go through this layer, so it does not matter
        for key, value in found.items():
            layer.get_buffer(key).copy_(value)


@contextmanager
def _collecting(module: nn.Module, layers: list[_BatchNorm]) -> Iterator[list[_Pool]]:
    """Batch-norm layers normalise by the batch and are listened to; everything else, dropout too, is as in use."""
    modes = [(part, part.training) for part in module.modules()]
    momenta = [layer.momentum for layer in layers]
    pools = [_Pool() for _ in layers]
    hooks = [layer.register_forward_hook(pool.add, with_kwargs=True) for layer, pool in zip(layers, pools, strict=True)]
    module.eval()
    for layer in layers:
        layer.reset_running_stats()  # momentum 1 still lets a NaN through
        layer.training, layer.momentum = True, 1.0
    try:
        yield pools
    finally:
        for hook in hooks:
            hook.remove()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part, mode in modes:
            part.training = mode


def _plain_forward(net: nn.Module, batch: Any) -> object:
    if isinstance(batch, Tensor):
        return net(batch)
    args, kwargs, _ = split(batch)
    return net(*args, **kwargs)
