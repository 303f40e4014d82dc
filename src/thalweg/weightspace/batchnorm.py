"""Batch-norm statistics for points that were never trained, such as those on a curve."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, count, not_finite
from ..error_notes import explained
from ..errors import ThalwegError, during
from ..runtime.compute import Compute, present, warn_slow_path
from ..runtime.recompiled import interpreted
from ..runtime.rng import MEASURING, seeded
from ..runtime.streams import on_side_stream
from ..runtime.transfer import defining_class, source
from ..tasks import Task, split
from .layout import STATISTICS, batch_norms, user_compiled
from .probe import Probe
from .proof import prove_on
from .state import ModuleState, preserved
from .weights import Weights, check_weights

Forward = Callable[[nn.Module, Any], object]
SHARE = 8  # one in this many batches is read again at the end of a scan


def update_bn(module: nn.Module, weights: Weights, batches: Batches, task: Task | None = None) -> Weights:
    """Recompute batch-norm statistics at a point: pooled mean and variance of all inputs in one pass over `batches`.

    Examples:
        >>> import thalweg as tw
        >>> module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> middle = tw.average([Weights.of(module), Weights.of(module)])
        >>> middle.has_statistics, update_bn(module, middle, [(torch.randn(8, 2), None)]).has_statistics
        (False, True)

    Args:
        module: A network of the same architecture; it is not changed.
        weights: The point, such as one on a curve or an average.
        batches: Batches as in training, augmentation included. Their size matters, since each is normalised by itself.
        task: How the network is called on a batch. By default a batch is `(inputs, ..., targets)` or a dict, as in
            `classification`.

    Returns:
        The same point with statistics.
    """
    check_weights(weights, "weights")
    probe = Probe(module, weights)
    forward = task.predict if task else _plain_forward
    with on_side_stream(probe.device, present.get().stream):
        if weights.layout.statistics:
            count(batches, "bn_batches")
            if task is None:
                _refuse_one(batches)
            proof = prove_on(probe, lambda batch: forward(probe.module, batch), batches)
            probe.load(weights)
        with during("updating batch-norm statistics"), seeded(MEASURING, batches):
            statistics = Statistics(probe, forward, batches, Compute())
            statistics.collect()
            statistics.write()
            finite = bool(statistics.pooled.isfinite().all())
            if bad := None if finite else not_finite(batches) or not_finite(batches, torch.isinf):
                raise ThalwegError(f"batch-norm statistics are not finite: {bad}, so clean the data")
        found = replace(probe.weights(), vector=weights.vector.to(probe.point), frozen=weights.to(probe.device).frozen)
        if weights.layout.statistics:
            proof.again()
    return found


class StatisticsHook(partial[None]):
    """A hook that looks at the input of a batch norm, and changes nothing."""


class Statistics:
    """Recomputes the statistics at the probe's current point, and at one point after another.

    A batch-norm layer with momentum 1 leaves the mean and variance of the last batch in its buffers, from which each
    batch is added to the pool for all layers in one operation, in float64.

    Attributes:
        pooled: The pool over all batches of the last pass.
        early: That over the first of them.
    """

    def __init__(self, probe: Probe, forward: Forward, batches: Batches, compute: Compute, pool: Any = None):
        self.probe = probe
        self.forward = forward
        self.batches = batches
        self.compute = compute
        found = {id(layer): (name, layer) for name, layer in reversed([*batch_norms(probe.module)])}
        self.names, self.layers = [name for name, _ in found.values()], [layer for _, layer in found.values()]
        self.sizes = [layer.num_features for layer in self.layers]
        self.pooled = self.early = torch.zeros(4, sum(self.sizes), dtype=torch.float64, device=probe.device)
        if not self.layers:
            return
        count(batches, "bn_batches")
        if any(map(user_compiled, probe.module.modules())):
            what = "batch-norm statistics are computed without the compiler"
            warn_slow_path(what, "compiled code does not call the hooks that observe each layer")
        # the mean and variance of the last batch, and what they start from
        self.fresh = [
            layer.get_buffer("running_mean").new_tensor([[0.0], [1.0]]).repeat(1, size)
            for layer, size in zip(self.layers, self.sizes, strict=True)
        ]
        self.pieces, self.parts = [piece.clone() for piece in self.fresh], self.pooled.split(self.sizes, dim=1)
        self.counts: dict[tuple[int, ...], Tensor] = {}
        self.custom = {
            k
            for k, layer in enumerate(self.layers)
            if not defining_class(layer, "forward").__module__.startswith("torch.")
        }
        self.state: ModuleState | None = None
        self.passes, self.make_batch = source(batches, probe.device)
        self.add = compute.repeated(self._add_batch, probe.module, probe.device, pool)

    def collect(self, whole: Tensor | None = None) -> None:
        """Pass over the batches; a GPU may still be computing afterwards.

        Args:
            whole: The pool over all batches, if it is known: then only the first are read.
        """
        if not self.layers:
            return
        self.pooled.zero_()
        torch._foreach_copy_(self.pieces, self.fresh)  # even with momentum 1, a NaN of another point would remain
        with preserved(self.probe.module, self.state) as self.state, self._observed(), torch.no_grad():
            for number, drawn in enumerate(self.passes(), start=1):
                try:
                    with explained(self.probe.module, drawn):
                        self.add(drawn)
                except ValueError as error:
                    if "more than 1 value per channel" not in str(error):
                        raise
                    raise ThalwegError(
                        "batch norm cannot take statistics of a batch of one example: use another size for bn_batches"
                    ) from error
                if number == max(1, len(self.batches) // SHARE):
                    self.early = self.pooled.clone()
                    if whole is not None:
                        break
        if whole is not None:
            self.pooled.copy_(whole)

    def _add_batch(self, drawn: Any) -> None:
        self.pending: dict[int, int] = {}
        with self.compute.casting(self.probe.device):
            self.forward(self.probe.module, self.make_batch(drawn))
        if len(self.pending) == len(self.layers):
            sizes = tuple(self.pending[k] for k in range(len(self.layers)))
            if sizes not in self.counts:
                each = (
                    torch.tensor(sizes, device="cpu").double().repeat_interleave(torch.tensor(self.sizes, device="cpu"))
                )
                self.counts[sizes] = each.to(self.probe.device)
            _pool(self.pooled, torch.cat(self.pieces, 1), self.counts[sizes])
        else:
            for k in list(self.pending):
                self._pool_one(k)

    def _pool_one(self, k: int) -> None:
        if k in self.pending:
            _pool(self.parts[k], self.pieces[k], self.pending.pop(k))

    def write(self) -> None:
        """Into the layers' own buffers what was collected; a layer that was not called keeps what it had."""
        if not self.layers:
            return
        seen = [count > 1 for count in torch.stack([part[3, 0] for part in self.parts]).tolist()]
        for k in (k for k, passed in enumerate(seen) if not passed):
            if bool(self.pieces[k][0].any()):
                raise ThalwegError(
                    f"the batch-norm layer '{self.names[k]}' is not called but has its buffers used, so its inputs "
                    "cannot be seen: call the layer itself in forward, instead of F.batch_norm with its parts"
                )
        for name, found in zip(STATISTICS, moments(self.pooled), strict=False):
            pairs = zip(self.layers, found.split(self.sizes), seen, strict=True)
            if own := [(layer.get_buffer(name), value) for layer, value, passed in pairs if passed]:
                torch._foreach_copy_([buffer for buffer, _ in own], [value for _, value in own])
        for layer, passed in zip(self.layers, seen, strict=True):
            if passed and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.fill_(len(self.batches))

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Batch-norm layers are in training mode and have hooks; everything else, dropout included, is in eval mode.
        The caller restores what is changed here, except for the hooks.
        """
        self.probe.module.eval()
        with ExitStack() as hooks, interpreted():
            for k, layer in enumerate(self.layers):
                hooks.enter_context(layer.register_forward_pre_hook(StatisticsHook(self._before_layer, k)))
                hooks.enter_context(layer.register_forward_hook(StatisticsHook(self._after_layer, k), with_kwargs=True))
                layer.training, layer.momentum = True, 1.0
                layer.running_mean, layer.running_var = self.pieces[k]
                counter = torch.zeros((), dtype=torch.long, device=self.probe.device)
                layer.num_batches_tracked = counter if isinstance(layer, nn.SyncBatchNorm) else None  # it needs one
            yield

    def _before_layer(self, k: int, *_: Any) -> None:
        self._pool_one(k)

    def _after_layer(
        self, k: int, layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor
    ) -> None:
        values = inputs[0] if inputs else next(iter(named.values()))
        self.pending[k] = values.numel() // values.shape[1]
        if k in self.custom:  # only the first time, which is never captured
            self.custom.discard(k)
            self._check_custom(k, values)

    def _check_custom(self, k: int, values: Tensor) -> None:
        """A layer with its own forward may write something else than the mean and variance of its input."""
        given = values.double().transpose(0, 1).flatten(1)
        mean, variance = given.mean(1), given.var(1)
        scale = variance + 1e-3 * mean.square()
        (far, wide), close = self.pieces[k].double(), 1e-2
        if bool(((far - mean).abs() > close * scale.sqrt()).any() or ((wide - variance).abs() > close * scale).any()):
            raise ThalwegError(
                f"the batch-norm layer '{self.names[k]}' ({type(self.layers[k]).__name__}) has its own forward, which "
                "keeps something else than the mean and variance of each batch, so its statistics cannot be "
                "recomputed: write them with its momentum, as torch does, or use torch's own layer"
            )


def moments(pooled: Tensor) -> Tensor:
    """The mean and variance of everything in a pool."""
    shift, first, second, total = pooled
    return torch.stack([shift + first / total, (second - first.square() / total) / (total - 1)])


def _pool(pooled: Tensor, last: Tensor, count: Tensor | int) -> None:
    """Add a batch to the pool: a shift near the mean, sums of deviations from it and of their squares, the count."""
    shift, first, second, total = pooled
    mean, variance = last.double()
    shift.copy_(torch.where(total == 0, mean, shift))
    away = mean - shift
    first += count * away
    second += (count - 1) * variance + count * away.square()
    total += count


@contextmanager
def counted_at_once(module: nn.Module) -> Iterator[None]:
    """For one forward pass: one operation increments the counters of all layers, instead of one each. A layer that is
    called twice, or not at all, is counted once too; nothing depends on it where there is a momentum.
    """
    layers = [layer for _, layer in batch_norms(module) if layer.training and layer.momentum is not None]
    counters = {id(layer): layer.num_batches_tracked for layer in layers}
    for layer in layers:
        layer.num_batches_tracked = None
    try:
        yield
    finally:
        for layer in layers:
            layer.num_batches_tracked = counters[id(layer)]
        known = [counter for counter in counters.values() if counter is not None]
        if known:
            torch._foreach_add_(known, 1)


def _refuse_one(batches: Batches) -> None:
    """A batch in place of a list of batches: tensors that the network cannot all take."""
    parts = batches if isinstance(batches, tuple | list) else ()
    if all(isinstance(part, Tensor) for part in parts) and len({(part.dtype, part.ndim) for part in parts}) > 1:
        raise ThalwegError("bn_batches must be a list of batches; got the tensors of a single one: give [batch]")


def _plain_forward(net: nn.Module, batch: Any) -> object:
    if isinstance(batch, Tensor):
        return net(batch)
    args, kwargs, _ = split(batch)
    return net(*args, **kwargs)
