"""The loss and metrics of a network over a data set."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batches import Batches, not_finite
from ..error_notes import explained
from ..errors import ThalwegError, real_number
from ..object_state import same
from ..runtime.compute import Compute
from ..runtime.rng import MEASURING, seeded, undisturbed
from ..runtime.threads import few_threads
from ..runtime.transfer import moved, source
from ..tasks import Number, Task, describe, summed
from ..weightspace.batchnorm import SHARE, Statistics
from ..weightspace.probe import Probe
from ..weightspace.proof import Proof, agree, prove_on
from ..weightspace.state import ModuleState, preserved
from ..weightspace.weights import Weights
from .metrics import Metrics, are_labels, rows

COUNTED = "number of "  # before the name of a total
WIDE = 8192  # batch size on a GPU to begin with


class Measurement:
    """The means of loss and metrics over a data set, for a network that is measured at one point after another.

    After a call, `means` gives `data_loss` and the task's metrics over all examples, however they are batched.

    Attributes:
        early: The sum of the loss over the first batches of the last call, and the number of examples in them.
        proof: Observes the next batch.
    """

    early: tuple[Tensor, Number]
    proof: Proof | None = None

    def __init__(
        self, module: nn.Module, task: Task, batches: Batches, device: torch.device, compute: Compute, pool: Any = None
    ):
        self.module = module
        self.task = task
        self.batches = batches
        self.device = device
        self.compute = compute
        self.pool = pool
        self.metrics, self.totals = Metrics(task), dict[str, Tensor]()
        self.state: ModuleState | None = None
        self.ways = _smaller_batches(batches, task, module, device)
        self._batched(next(self.ways))

    def __call__(self, first: bool = False) -> None:
        """Measure the network as it is; a GPU may still be computing afterwards.

        Args:
            first: Stop after the first batches.
        """
        while True:
            try:
                return self._measure(first)
            except torch.OutOfMemoryError:
                if self.used is self.batches:
                    raise
                self._batched(next(self.ways))

    def _batched(self, used: Batches) -> None:
        self.used = used
        self.passes, self.make_batch = source(self.used, self.device)
        self.some = max(1, len(self.used) // SHARE)
        self.add = self.compute.repeated(self._add, self.module, self.device, self.pool)
        self.sizes: dict[str, dict[str, float]] = {}

    def means(self) -> dict[str, float]:
        """What the last call measured."""
        sizes = {name: float(self._number(name)) for name in self.counts}
        if sizes.get("data_loss") == 0:
            raise ThalwegError(
                "nothing in these data counts, as where all labels are -100: the task's loss gave empty tensors"
            )
        means = {name: float(self.totals[name]) / size if size else nan for name, size in sizes.items()}
        if self.task.metrics is None and isnan(means.get("error", 0.0)):
            del means["error"]  # the built-in one, which is not defined for all targets
        return means

    def _number(self, name: str) -> Number:
        """How many values counted, as far as that is known here, and as a GPU has counted them."""
        return self.counts[name] + self.totals.get(COUNTED + name, 0)

    def _measure(self, first: bool) -> None:
        for total in self.totals.values():
            total.zero_()
        counts = self.counts = dict[str, float]()
        # such as the state that a recurrent network carries
        with torch.no_grad(), preserved(self.module, self.state) as self.state:
            for number, drawn in enumerate(self.passes(), start=1):
                self.seen: dict[str, float] = {}
                with explained(self.module, drawn):
                    self.add(drawn)
                signature = self.add.signature(drawn)
                # a replayed pass does not count: as one of its shapes before
                self.sizes[signature] = self.seen or self.sizes[signature]
                counts.update({name: counts.get(name, 0) + size for name, size in self.sizes[signature].items()})
                if number == self.some:
                    self.early = self.totals["data_loss"].clone(), self._number("data_loss")
                    if first:
                        break

    def _add(self, drawn: Any) -> None:
        batch, proof, self.proof = self.make_batch(drawn), self.proof, None
        with nullcontext((batch, nullcontext())) if proof is None else proof.observing(batch) as (batch, watch):
            self._add_batch(batch, watch)

    def _add_batch(self, batch: Any, watch: AbstractContextManager[Any]) -> None:
        with watch, self.compute.casting(self.device):
            outputs, targets = self.task.predictions(self.module, batch)
        self.seen["data_loss"] = 0  # listed first and computed last, since a loss may write into the outputs
        for name, metric in self.metrics.each(outputs, targets).items():
            self._count(name, *summed(*metric))
        with watch, self.compute.casting(self.device):
            values, size = self.task.losses(outputs, targets, batch)
        self._count("data_loss", values if values.ndim else _weighted(values, size), size)

    def _count(self, name: str, values: Tensor, size: Number) -> None:
        self._sum(name, values)
        if isinstance(size, Tensor):
            self._sum(COUNTED + name, size)
        self.seen[name] = 0 if isinstance(size, Tensor) else size

    def _sum(self, name: str, values: Tensor) -> None:
        if name not in self.totals:
            self.totals[name] = torch.zeros((), dtype=torch.float64, device=values.device)
        self.totals[name] += values.double().sum()


def _weighted(mean: Tensor, size: Number) -> Tensor:
    """The sum that a mean is of; zero if nothing counts, where the mean may be NaN."""
    if isinstance(size, Tensor):
        return torch.where(size == 0, 0.0, mean * size)
    return mean * size if size else torch.zeros_like(mean)


def measurement_of(probe: Probe) -> type[Measurement]:
    """How the network is measured: if it is in shards, by all ranks together."""
    if probe.copied:
        return Measurement
    from ..runtime.sharded import ShardedMeasurement

    return ShardedMeasurement


def prove_measuring(probe: Probe, task: Task, batches: Batches, compute: Compute) -> Proof:
    """Raise unless the first batch is measured with the probe's own weights alone, as the caller's module would."""

    def measured(batch: Any) -> Any:
        with compute.casting(probe.device):
            outputs, targets = task.predictions(probe.module, batch)
            try:
                return outputs, task.losses(outputs, targets, batch)[0]
            except Exception as error:
                if targets is not None or isinstance(error, ThalwegError):
                    raise
                raise ThalwegError(
                    "a loss is measured against targets, and those of this batch are None: give data with labels"
                ) from error

    return prove_on(probe, measured, batches)


def predicted(
    module: nn.Module,
    task: Task,
    batches: Batches,
    device: torch.device,
    then: Callable[[Any, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Run the network over a data set without gradients.

    Args:
        module: The network, in evaluation mode.
        task: Its `predict` is called once for each batch.
        batches: The data set.
        device: Where the network is.
        then: Outputs and targets of a batch -> what is kept of the outputs, one row per example.

    Returns:
        What `then` gave, and the targets, of the whole data set, on the CPU.
    """
    for used in _smaller_batches(batches, task, module, device):
        values, targets = list[Tensor](), list[Tensor]()
        try:
            with torch.no_grad(), preserved(module):
                for batch in moved(used, device):
                    with explained(module, batch), few_threads(device, module, batch):
                        outputs, wanted = task.predictions(module, batch)
                    found = _rows(then(outputs, _rows(wanted, "targets")), "outputs")
                    values.append(found.to("cpu", copy=True))  # loaders and networks may use their memory again
                    targets.append(wanted.to("cpu", copy=True))
            return _joined(values, targets)
        except torch.OutOfMemoryError:
            if used is batches:
                raise
    raise AssertionError("the last of them are the batches as they are")


def _rows(found: Any, what: str) -> Tensor:
    """Return outputs or targets; raise unless they are one tensor of real numbers with a row for each example."""
    if found is None:
        raise ThalwegError(
            "predictions are scored against targets, and those of this batch are None: give data with labels; for "
            "inputs alone there is Ensemble.probabilities"
        )
    if isinstance(found, Tensor) and found.ndim and not found.is_complex():
        return found
    advice = "a tensor with a row for each example"
    if isinstance(found, Tensor) and found.is_complex():
        advice = "real numbers, such as torch.view_as_real(outputs)"
    raise ThalwegError(
        f"predictions are scored example by example, and the {what} of this batch are {describe(found)}: let predict= "
        f"give {advice}"
    )


def bad_values(data: Batches, bn_batches: Batches | None, all_bad: bool) -> str:
    """Where the data hold NaN; or infinity, if nothing measured on them is finite: a mask may hold it too."""
    for kind in (torch.isnan, torch.isinf)[: 1 + all_bad]:
        with seeded(MEASURING, data, bn_batches):
            looked = {"those data": not_finite(data, kind), "bn_batches": not_finite(bn_batches or (), kind)}
        if found := " and ".join(f"in {part}, {where}" for part, where in looked.items() if where):
            return found
    return ""


def check_finite(values: Tensor, what: str, weights: Weights, batches: Batches) -> None:
    """Raise if predictions are not finite, naming what is not: the inputs, the weights, or something between them."""
    if bool(values.isfinite().all()):
        return
    bad = next(
        (name for name, t in weights.tensors().items() if t.is_floating_point() and not bool(t.isfinite().all())), None
    )
    if found := bad_values(batches, None, all_bad=bad is None):
        reason = f"{found}, so the network is not the cause: clean the data"
    elif bad is not None:
        reason = f"its '{bad}' is not finite, so it has diverged: leave it out"
    else:
        reason = (
            "its weights and the data are finite, so something overflows within: leave it out, or use a wider dtype"
        )
    raise ThalwegError(f"{what} predicts NaN or infinity: {reason}")


def check_alone(probe: Probe, alone: Tensor, after: Tensor, what: str) -> None:
    """Raise, saying what differs, unless a point by itself, with a new copy of the network, gives the same as after the
    others.
    """
    if not agree(probe, alone, after):
        raise ThalwegError(
            f"{what}: the network, the task or the data keep something from one pass to the next (a cache, a counter, "
            "random numbers of their own); reset it in every pass"
        )


def check_loss_alone(probe: Probe, alone: tuple[Tensor, Number], after: tuple[Tensor, Number], name: str) -> None:
    """The same for the loss of the last point on the first batches of a data set, of which `Measurement.early` has the
    sum.
    """
    (own, size), (found, as_many) = alone, after
    if size == as_many and size:  # otherwise fewer examples fit into GPU memory than before
        what = (
            f"the last point measured gave a loss of {float(found) / size:.6g} on the first batches of '{name}' after "
            f"the others and {float(own) / size:.6g} by itself"
        )
        check_alone(probe, own.reshape(1), found.reshape(1), what)


def check_order(first: Tensor, targets: Tensor, what: str) -> None:
    """Raise unless the targets of two passes are the same."""
    if not same(first, targets):
        raise ThalwegError(f"{what} come in another order in each pass: use a loader without shuffling")


def _joined(values: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All batches concatenated; label maps of several sizes by pixels."""
    shapes = [*dict.fromkeys((tuple(v.shape[1:]), tuple(w.shape[1:])) for v, w in zip(values, targets, strict=True))]
    if len(shapes) > 1 and all(map(are_labels, values, targets)):
        values, targets = [rows(value) for value in values], [wanted.flatten() for wanted in targets]
    elif len(shapes) > 1:
        raise ThalwegError(
            "predictions are averaged example by example, so that all examples must have one shape; outputs and "
            f"targets are {shapes[0][0]} and {shapes[0][1]} in one batch, {shapes[1][0]} and {shapes[1][1]} in "
            "another: let the task's predict return them with one row for each step or pixel"
        )
    return torch.cat(values), torch.cat(targets)


def checked_weight_decay(weight_decay: Any) -> float:
    """A weight decay as a plain number, which must not be negative."""
    found = real_number(weight_decay, "weight_decay")
    if not found >= 0:
        raise ThalwegError(f"weight_decay must be 0 or more; got {found!r}")
    return found


def _smaller_batches(batches: Batches, task: Task, module: nn.Module, device: torch.device) -> Iterator[Batches]:
    """On a GPU, if results do not depend on the batch size: large batches, half as large ones if these do not fit
    into memory, and so on; finally, and elsewhere, the batches as they are."""
    alike = task.size is None and not any(
        isinstance(p, _BatchNorm) and p.running_mean is None for p in module.modules()
    )
    widened, width = getattr(batches, "widened", None), _largest_batch(device)
    while widened is not None and alike and width and (used := widened(width)) is not batches:
        yield used
        width //= 2
    yield batches


def _largest_batch(device: torch.device) -> int:
    return WIDE if device.type == "cuda" else 0


def check_statistics(probe: Probe, bn_batches: Batches | None) -> None:
    if probe.layout.statistics and bn_batches is None:
        raise ThalwegError(
            f"batch norm ('{probe.layout.statistics[0]}') needs statistics of each point scanned, and points of a "
            "curve or plane have none: set bn_batches= to the training batches"
        )


class Points:
    """The network at one point after another: loaded, in eval mode, with recomputed statistics if `bn_batches` is
    given.

    Args:
        probe: The network.
        task: How the network is called on a batch.
        bn_batches: The batches for the statistics; without them, points must have their own.
        compute: How to compute the statistics.
        pool: Memory shared with other graphs.
        wait: Called where something is about to wait for a GPU.
    """

    def __init__(
        self,
        probe: Probe,
        task: Task,
        bn_batches: Batches | None = None,
        compute: Compute | None = None,
        pool: Any = None,
        wait: Callable[[], None] = lambda: None,
    ):
        self.probe, self.bn_batches, self.wait = probe, bn_batches, wait
        self.statistics = (
            None if bn_batches is None else Statistics(probe, task.predict, bn_batches, compute or Compute(), pool)
        )

    @property
    def pools(self) -> tuple[Tensor, Tensor] | None:
        """What the statistics were last made of: of the first batches, and of all."""
        return None if self.statistics is None else (self.statistics.early, self.statistics.pooled)

    @contextmanager
    def at(self, weights: Weights, recomputed: bool = True, whole: Tensor | None = None) -> Iterator[Tensor]:
        """Be at a point within a block; yields the squared norm of its weights, since `eval()` may merge weights.

        Args:
            weights: The point.
            recomputed: Whether to recompute the statistics.
            whole: The pool for these, if it is known; see `Statistics`.
        """
        self.probe.load(weights)
        norm = torch.linalg.vector_norm(self.probe.point, dtype=torch.float64)
        square = self.probe.layout.total(norm.square())
        self.probe.module.eval()
        if self.statistics is not None and recomputed:
            with undisturbed(self.bn_batches, seed=MEASURING):  # every point sees the same data
                self.statistics.collect(whole)
            self.wait()
            self.statistics.write()
        yield square
        self.probe.check()
        self.probe.drop_caches()
