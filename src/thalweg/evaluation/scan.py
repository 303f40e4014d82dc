"""Scan: the loss and metrics at every point of a curve, a plane, or a list of weights."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, isnan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..batches import Batches, count
from ..errors import ThalwegError, during, warn
from ..results import Scan, plain
from ..runtime.compute import Call, Compute, Context, Processes, SingleProcess, StoredResult
from ..runtime.progress import Progress
from ..runtime.rng import MEASURING, undisturbed
from ..runtime.streams import on_side_stream
from ..store import facts
from ..store.content import digest_of
from ..store.files import SCAN
from ..store.interrupts import Interrupts
from ..store.runs import POINTS, Run
from ..tasks import Number, Task, check_task
from ..weightspace.batchnorm import moments
from ..weightspace.curves import Curve
from ..weightspace.planes import Plane
from ..weightspace.probe import Probe, probe_at
from ..weightspace.proof import Proof
from ..weightspace.weights import Weights, got
from .fingerprint import (
    Facts,
    curve_fingerprint,
    curve_identity,
    points_fingerprint,
    points_identity,
    scan_fingerprint,
)
from .measure import (
    Points,
    bad_values,
    check_alone,
    check_loss_alone,
    check_statistics,
    checked_weight_decay,
    measurement_of,
    prove_measuring,
)
from .sampling import Sampling, Target, sampling_of

NEW = "start a new run in another folder"
GATHER_EVERY = 2.0  # seconds that each rank measures before results are gathered


def scan(
    module: nn.Module,
    target: Curve | Plane | Sequence[Weights],
    task: Task,
    data: Mapping[str, Batches] | Batches,
    *,
    points: int | Sequence[float] | Literal["adaptive"] | None = None,
    tolerance: float | None = None,
    grid: tuple[int, int] | None = None,
    margin: float | None = None,
    weight_decay: float = 0.0,
    bn_batches: Batches | None = None,
    overlay: Mapping[str, Curve | Weights | Sequence[Weights]] | None = None,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Scan:
    """Measure loss and metrics at points of a curve or a plane, or at given weights.

    Examples:
        >>> import thalweg as tw
        >>> x = torch.linspace(-1, 1, 8).reshape(-1, 1)
        >>> a, b = (tw.Weights.of(nn.Linear(1, 1)) for _ in range(2))
        >>> line = tw.scan(nn.Linear(1, 1), tw.Segment(a, b), tw.regression(), {"train": [(x, 2 * x)]}, points=5)
        >>> line.t.tolist(), line.values["train"]["loss"].shape, line.length_ratio
        ([0.0, 0.25, 0.5, 0.75, 1.0], (5,), 1.0)

    Args:
        module: A network of the same architecture; it is not changed. Measuring runs on its device.
        target: A curve, a plane, or a list of weights.
        task: The loss and metrics to measure.
        data: Batches by name, such as `{"train": ..., "test": ...}`, or batches alone, which are named "data"; use data
            without augmentation.
        points: For a curve: the number of equally spaced values of t (121 by default), or the values themselves; or
            "adaptive", for points where the loss bends. For a plane: "adaptive", to measure only those points of the
            grid around which contours crowd, and interpolate the others.
        tolerance: For a curve with adaptive points: how far the maximum and the integral of the loss may be off, as a
            share of how far it varies along the curve; an estimate, not a bound. 0.002 by default.
        grid: For a plane: the number of points along x and y, 21 x 21 by default, and 61 x 61 if adaptive.
        margin: For a plane: how far to go beyond its networks, as a fraction of its size; 0.2 by default, and 0 around
            one network.
        weight_decay: The one used in training; it is part of `loss`.
        bn_batches: Batches as in training, augmentation included, on which batch-norm statistics are recomputed at
            every point; every point sees the same.
        overlay: For a plane: curves, weights and lists of weights by name, whose coordinates in the plane are kept for
            the figure; with the plane's own networks, such as `{"a": a, "b": b}`, its dots have names.
        compute: How to compute; see `Compute`.
        run: A folder that stores every measured point. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.

    Returns:
        The values at every point.
    """
    check_task(task)
    data = data if isinstance(data, Mapping) else {"data": data}
    weight_decay = checked_weight_decay(weight_decay)
    call = Call.of(compute, progress)
    ready = [_proven(module, target, task, data, bn_batches, call)]
    sampling = sampling_of(target, points, grid, margin, tolerance)
    drawn = _identified(target, overlay or {})

    def fingerprint() -> Facts:
        ends = target.points if isinstance(target, Curve | Plane) else target
        where = sampling.where
        given = {key: digest_of(plain(where[key])) for key in ("t", "x", "y") if key in where}
        return {
            "of": where["name"],
            **({"points": sampling.rule} if sampling.rule else {}),
            **{f"the spacing in {key}": facts.content(digest) for key, digest in given.items()},
            **(
                curve_fingerprint(target)
                if isinstance(target, Curve)
                else points_fingerprint(ends, "plane" if isinstance(target, Plane) else "list")
            ),
            **scan_fingerprint(module, ends[0], task, data, weight_decay, bn_batches, call.compute),
        }

    def measured(held: Run | None) -> Scan:
        probe, proof = ready.pop()
        job = call.context.job
        wait = (lambda: None) if job is None else partial(job.wait, probe.device)
        at = Measurer(probe, task, data, bn_batches, weight_decay, call.compute, wait)
        with (
            on_side_stream(probe.device, call.context.stream),
            call.bar(f"scanning {sampling.where['name']}", 0) as bar,
        ):
            found = _measured(at, sampling, held, bar, call.context, proof)
            last, (where, values) = at.last, sampling.arranged(found)
            whole = isinstance(target, Curve) and where["t"][0] == 0 and where["t"][-1] == 1
            stored = at.stored(target) if isinstance(target, Curve) and whole and bn_batches is not None else {}
            if last is not None and proof is not None:
                proof.again()
        _look_for_nan(found, data, bn_batches)
        layout = probe.layout
        del at, probe, proof  # before the next copy of the network is made
        if last is not None:
            least, fresh = min(data, key=lambda name: len(data[name])), probe_at(module, None, call.compute, layout)
            _look_again(Measurer(fresh, task, {least: data[least]}, bn_batches, weight_decay, call.compute), last)
        return Scan(values=values, weight_decay=weight_decay, stored=stored, units=dict(task.units), **where, **drawn)

    scan = replace(call.resumed(run, "scan", fingerprint, StoredResult.of(SCAN, Scan), measured), **drawn)
    _warn_off_plane(scan)
    return scan


def _proven(
    module: nn.Module, target: Target, task: Task, data: Mapping[str, Batches], bn_batches: Batches | None, call: Call
) -> tuple[Probe, Proof | None]:
    """Made before the fingerprint, which calls the network too, and may fill its caches."""
    probe = probe_at(module, None, call.compute)
    call.compute.check(probe.device)
    _check(probe, target, data, bn_batches)
    with on_side_stream(probe.device, call.context.stream):
        return probe, prove_measuring(probe, task, next(iter(data.values())), call.compute) if probe.copied else None


def _kept(run: Run, labels: Sequence[dict[str, float]], done: int) -> list[Any]:
    """What a run has stored of these points, which come after `done` others; every line must be that of the expected
    point, and without any points there must be no more lines.
    """
    path, lines = run.folder / POINTS, run.lines(POINTS)
    some = lines[done : done + len(labels)] if labels else lines[done:]
    for place, line in enumerate(some, start=done + 1):
        found = {key: value for key, value in line.items() if key != "measured"}
        if "point" not in found or "measured" not in line:
            raise ThalwegError(
                f"{path} was written by an older thalweg, and line {place} does not say which point it is: {NEW}"
            )
        if not labels or found != labels[place - done - 1]:
            expected = f"point {_said(labels[place - done - 1])}" if labels else "nothing more"
            raise ThalwegError(
                f"line {place} of {path} is point {_said(found)}, where {expected} is expected: lines were lost, "
                f"doubled, reordered or added; restore the file, or {NEW}"
            )
    return [line["measured"] for line in some]


def _said(label: Mapping[str, float]) -> str:
    at = ", ".join(f"{key} = {value:.6g}" for key, value in label.items() if key != "point")
    return f"{label['point']} ({at})" if at else f"{label['point']}"


def _measured(
    at: "Measurer", sampling: Sampling, held: Run | None, bar: Progress, context: Context, proof: Proof | None
) -> list[Any]:
    """Measure every point that the run folder does not hold; stop between two of them on request."""
    processes, measured = context.processes, list[Any]()

    def kept(labels: Sequence[dict[str, float]]) -> list[Any]:
        return processes.once(lambda: _kept(held, labels, len(measured)) if held is not None else [])

    with Interrupts(processes.once(lambda: held is not None), context.job) as interrupts:
        while new := sampling.more(measured):
            labels = [{"point": place, **own} for place, own in enumerate(new, start=len(measured) + 1)]
            bar.total, before = bar.total + len(new), len(measured)
            measured += kept(labels)
            bar.done = len(measured)
            makers = [partial(sampling.weights, index) for index in range(len(measured), bar.total)]
            for found in _rounds(at, makers, processes if at.probe.copied else SingleProcess(), proof):
                for point in found:
                    if held is not None:
                        held.append(POINTS, {**labels[len(measured) - before], "measured": point})
                    measured.append(point)
                    bar.advance()
                if any(processes.gather(interrupts.requested is not None)) and interrupts.wanted:
                    interrupts.stop(held, f"point {len(measured)} of {bar.total}")
        kept([])
    return measured


def _look_for_nan(
    measured: Sequence[dict[str, dict[str, float]]], data: Mapping[str, Batches], bn_batches: Batches | None
) -> None:
    """Warn of losses that are NaN, and of infinite ones if the data are the reason."""
    for name in measured[0]:
        losses = [point[name]["data_loss"] for point in measured]
        bad = len(losses) - sum(map(isfinite, losses))
        found = bad_values(data[name], bn_batches, bad == len(losses)) if bad else ""
        if found or any(map(isnan, losses)):
            warn(
                f"the loss is NaN or infinite at {bad} of {len(losses)} points, measured on '{name}': "
                f"{found or 'the data are not the reason, so look at the weights'}",
            )


def _rounds(
    at: "Measurer", makers: Sequence[Callable[[], Weights]], processes: Processes, proof: Proof | None
) -> Iterator[list[Any]]:
    """Measure points in order, a few at a time: one, or with several ranks as many as keep each busy for a while. The
    proof observes the first batch of the last ones.
    """
    each = 1
    while makers:
        here, makers, begun = makers[: each * processes.size], makers[each * processes.size :], time.monotonic()
        next(iter(at.measures.values())).proof = None if makers else proof
        own = [at(make()) for make in here[processes.rank :: processes.size]]
        found, seconds = zip(*processes.gather((own, time.monotonic() - begun)), strict=True)
        yield [found[k % processes.size][k // processes.size] for k in range(len(here))]
        each = max(1, int(each * GATHER_EVERY / max(1e-3, *seconds))) if processes.size > 1 else 1


class LastPoint(NamedTuple):
    """The point measured last, and what its first batches gave, to be compared when these are measured again."""

    weights: Weights
    losses: dict[str, tuple[Tensor, Number]]  # data set -> their sum, and over how many examples
    pools: tuple[Tensor, Tensor] | None  # for batch norm, of the first batches and of all


class Measurer:
    """Measures everything at one point after another."""

    last: LastPoint | None = None

    def __init__(
        self,
        probe: Probe,
        task: Task,
        data: Mapping[str, Batches],
        bn_batches: Batches | None,
        weight_decay: float,
        compute: Compute,
        wait: Callable[[], None] = lambda: None,
    ):
        self.probe, self.data, self.weight_decay, self.wait = probe, data, weight_decay, wait
        pool = torch.cuda.graph_pool_handle() if compute.captures(probe.device) else None
        self.points = Points(probe, task, bn_batches, compute, pool, wait)
        measurement = measurement_of(probe)
        self.measures = {
            name: measurement(probe.module, task, b, probe.device, compute, pool) for name, b in data.items()
        }

    def __call__(
        self, weights: Weights, recomputed: bool = True, first: bool = False, whole: Tensor | None = None
    ) -> dict[str, dict[str, float]]:
        with self.points.at(weights, recomputed, whole) as square:
            for name, measure in self.measures.items():
                with undisturbed(self.data[name], seed=MEASURING):
                    measure(first)
            self.wait()
            # in the first batches alone, perhaps no label counts
            found = {} if first else {name: measure.means() for name, measure in self.measures.items()}
            decay = 0.5 * self.weight_decay * float(square)
        losses = {name: measure.early for name, measure in self.measures.items()}
        self.last = LastPoint(weights, losses, self.points.pools)
        return {name: {"loss": means["data_loss"] + decay, **means} for name, means in found.items()}

    def stored(self, curve: Curve) -> dict[str, dict[str, list[float]]]:
        ends = [curve.start, curve.end]
        if not self.probe.layout.statistics or not all(end.has_statistics for end in ends):
            return {}
        pair = [self(end, recomputed=False) for end in ends]
        return {name: {key: [end[name][key] for end in pair] for key in entry} for name, entry in pair[0].items()}


def _look_again(at: Measurer, last: LastPoint) -> None:
    """Measure the first batches of the last point again with a new copy of the network; a difference is an error."""
    with during("measuring the last point again"), on_side_stream(at.probe.device):
        at(last.weights, first=True, whole=last.pools and last.pools[1])
    both = (moments(pools[0]) for pools in (at.points.pools, last.pools) if pools)
    for by_itself, with_others in zip(*both, strict=False):
        what = "the last point measured has other batch-norm statistics after the others than by itself"
        check_alone(at.probe, by_itself, with_others, what)
    for name, measure in at.measures.items():
        check_loss_alone(at.probe, measure.early, last.losses[name], name)


def _check(probe: Probe, target: Any, data: Any, bn_batches: Batches | None) -> None:
    if not data:
        raise ThalwegError(
            "data must be batches, or a dict of batches by name, such as {'test': batches}; got an empty dict"
        )
    for name, batches in data.items():
        count(batches, f"the batches of '{name}'")
    between = isinstance(target, Curve | Plane)
    listed = isinstance(target, Sequence) and not isinstance(target, str) and target
    if not between and not (listed and all(isinstance(w, Weights) for w in target)):
        odd = next(w for w in target if not isinstance(w, Weights)) if listed else target
        raise ThalwegError(
            f"a scan needs a curve, a plane, or a list of Weights, such as walk(...).members; got {got(odd)}"
        )
    for part in [target] if between else target:
        probe.layout.check(part.layout, "the network", "the target of the scan")
    if between or not all(w.has_statistics for w in target):
        check_statistics(probe, bn_batches)


def _identified(target: Target, overlay: Mapping[str, Curve | Weights | Sequence[Weights]]) -> dict[str, Any]:
    """By what the target can be recognised in other results, and of a plane also what is drawn in it."""
    if isinstance(target, Curve):
        return {"identity": curve_identity(target)}
    if not isinstance(target, Plane):
        return {}
    corners = target.points[: len(target.corners)] if target.shares is None else ()  # others do not lie in it
    curves = {name: curve_identity(item) for name, item in overlay.items() if isinstance(item, Curve)}
    return {"identity": points_identity(corners), "identities": curves, **_places(target, overlay)}


def _places(plane: Plane, given: Mapping[str, Curve | Weights | Sequence[Weights]]) -> dict[str, Any]:
    """Where curves and weights lie in the plane, and how far from it; in a fitted plane also those it was fitted to."""
    drawn: dict[str, dict[str, Any]] = {"paths": {}, "marks": {}, "away": {}}
    overlay = {name: [item] if isinstance(item, Weights) else item for name, item in given.items()}
    named = {id(point) for item in overlay.values() for point in (item.points if isinstance(item, Curve) else item)}
    others = [point for point in plane.points if plane.shares is not None and id(point) not in named]
    for name, item in {**overlay, **({"networks": others} if others else {})}.items():
        if isinstance(item, Curve):
            drawn["paths"][name], drawn["away"][name] = plane.path(item), plane.path_distances(item)
        else:
            drawn["marks"][name] = [plane.project(weights) for weights in item]
            drawn["away"][name] = [plane.distance(weights) for weights in item]
    return drawn


def _warn_off_plane(scan: Scan) -> None:
    """Warn of what is drawn outside the plane; not of a fitted plane, where that is expected."""
    if (off := scan.off_plane()) and not scan.shares:
        across = "the distance between its first two networks" if len(scan.corners) > 1 else "its width"
        each = ", ".join(f"'{name}' leaves it by up to {far:.3g}, {share:.0%}" for name, (far, share) in off.items())
        warn(
            f"not everything drawn lies in this plane: {each} of {across}; it is drawn faded at the nearest points of "
            "the plane, which have another loss: to see its own, scan the curve or the list itself",
        )
