"""Barriers: the loss on the straight lines between all pairs of several networks, as they are and aligned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from ..alignment import align as alignment
from ..batches import Batches
from ..errors import ThalwegError, whole_number
from ..results import Barriers, Scan, Values
from ..runtime.compute import Call, Compute, StoredResult
from ..store.files import BARRIERS
from ..store.records import array
from ..store.runs import Run
from ..tasks import Task, check_task
from ..weightspace.curves import Segment
from ..weightspace.weights import Weights, check_agreement, check_list, check_weights
from .fingerprint import Facts, points_fingerprint, scan_fingerprint
from .scan import scan

Lines = dict[tuple[int, int], Scan]  # what was measured strictly between two networks


def barriers(
    module: nn.Module,
    weights: Sequence[Weights] | Mapping[str, Weights],
    task: Task,
    data: Mapping[str, Batches] | Batches,
    *,
    align: bool | Literal["weights", "activations"] = False,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    points: int = 11,
    weight_decay: float = 0.0,
    bn_batches: Batches | None = None,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Barriers:
    """Measure the barriers on the straight lines between all pairs of networks: whether these can be averaged.

    Examples:
        >>> import torch, thalweg as tw
        >>> x = torch.linspace(-1, 1, 8).reshape(-1, 1)
        >>> networks = {name: tw.Weights.of(nn.Linear(1, 1)) for name in "abc"}
        >>> found = tw.barriers(nn.Linear(1, 1), networks, tw.regression(), [(x, 2 * x)])
        >>> found.matrix.shape, found.matrix.max()  # a convex loss has none
        ((3, 3), np.float64(0.0))

    Each network is measured once, and every pair at the points between the two.

    Args:
        module: A network of the same architecture; it is not changed. Measuring runs on its device.
        weights: Two networks or more, in a list or by name.
        task: The loss and metrics to measure.
        data: Batches by name, or batches alone, as in `scan`; use data without augmentation.
        align: Measure all pairs again, with the hidden units of the second network of each renumbered to match the
            first: by "weights", which True stands for, or by "activations" on the first data set; see `align`.
        groups: For `align`, as in `symmetries`: groups of units by hand, if the network cannot be traced.
        points: The number of equally spaced points on each line, including its ends.
        weight_decay: The one used in training; it is part of `loss`.
        bn_batches: Batches as in training, augmentation included, on which batch-norm statistics are recomputed at
            every point.
        compute: How to compute; see `Compute`.
        run: A folder that stores every measured point. If the call is interrupted, the same call resumes from it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.

    Raises:
        ThalwegError: If these are not at least two networks of one architecture, or as in `scan` and `align`.
    """
    check_task(task)
    if align not in (True, False, "weights", "activations"):
        raise ThalwegError(f"align must be True, False, 'weights' or 'activations'; got {align!r}")
    by: Literal["weights", "activations"] = "activations" if align == "activations" else "weights"
    networks = named(weights, "a matrix of barriers")
    points, ends = whole_number(points, "points", least=3), list(networks.values())
    data = data if isinstance(data, Mapping) else {"data": data}
    call = Call.of(compute, progress)
    between = [i / (points - 1) for i in range(1, points - 1)]

    def fingerprint() -> Facts:
        how = by if by == "activations" else f"{groups}" if align and groups else bool(align)
        return {
            **{"align": how, "points": points, "networks": list(networks)},
            **points_fingerprint(ends, "list"),
            **scan_fingerprint(module, ends[0], task, data, weight_decay, bn_batches, call.compute),
        }

    def along(target: Segment | list[Weights], name: str, points: Sequence[float] | None = None) -> Scan:
        return scan(
            module,
            target,
            task,
            data,
            points=points,
            weight_decay=weight_decay,
            bn_batches=bn_batches,
            compute=compute,
            run=Run.of(run, f"lines/{name}"),
            progress=progress,
        )

    def measured(_: Run | None) -> Barriers:
        lines, matched, said = Lines(), Lines(), ""
        for i, a in enumerate(ends[:-1]):
            others = ends[i + 1 :]
            aligned = _aligned(module, a, others, task, next(iter(data.values())), by, groups) if align else []
            for j, b in enumerate(others, start=i + 1):
                lines[i, j] = along(Segment(a, b), f"{i + 1}-{j + 1}", between)
            for j, b in enumerate(aligned, start=i + 1):
                matched[i, j] = along(Segment(a, b), f"{i + 1}-{j + 1}-aligned", between)
                said = _share(b, by)
        alone = along(ends, "ends")
        return Barriers(
            list(networks),
            array([0, *between, 1]),
            _joined(alone, lines),
            _joined(alone, matched) if matched else {},
            said,
            alone.weight_decay,
            alone.units,
        )

    return call.resumed(run, "barriers", fingerprint, StoredResult.of(BARRIERS, Barriers), measured)


def _aligned(
    module: nn.Module,
    a: Weights,
    others: Sequence[Weights],
    task: Task,
    batches: Batches,
    by: Literal["weights", "activations"],
    groups: Any,
) -> list[alignment.Aligned]:
    try:
        return alignment.align(module, a, others, task, batches, by=by, groups=groups)
    except ThalwegError as error:
        raise ThalwegError(f"{str(error).replace('by=', 'align=')}; or leave out align=") from error


def _share(aligned: alignment.Aligned, by: str) -> str:
    found = aligned.symmetries
    if not found.groups:
        why = "every group failed the proof" if found.dropped else "no units of this network can be renumbered"
        return f"{why}, so nothing has changed"
    how = "" if by == "weights" else f"; matched by {by}"
    return f"{100 * found.share:.1f} % of the parameters lie in tensors whose units can be renumbered{how}"


def _joined(alone: Scan, lines: Lines) -> Values:
    """Arrays of (networks, networks, points): every line with its ends, in both directions."""

    def matrix(name: str, quantity: str, own: np.ndarray) -> np.ndarray:
        between = {pair: line.values[name][quantity] for pair, line in lines.items()}
        count, points = len(own), 2 + len(between[0, 1])
        found = np.repeat(own, count * points).reshape(count, count, points)
        for (i, j), values in between.items():
            found[i, j] = [own[i], *values, own[j]]
            found[j, i] = found[i, j, ::-1]
        return array(found)

    return {name: {q: matrix(name, q, own) for q, own in entry.items()} for name, entry in alone.values.items()}


def named(weights: Sequence[Weights] | Mapping[str, Weights], what: str) -> dict[str, Weights]:
    """Networks by name, or by number where they have none, on the device of the first, since members of a walk are on
    the CPU; raises unless all are finite points of one space.
    """
    if isinstance(weights, Mapping) and any(isinstance(each, Tensor) for each in weights.values()):  # a state dict
        check_list(weights, what, 2)
    given = list(weights.values()) if isinstance(weights, Mapping) else weights
    check_list(given, what, 2)
    names = list(map(str, weights if isinstance(weights, Mapping) else range(1, len(given) + 1)))
    found = dict(zip(names, given, strict=True))
    if len(found) < len(given):
        raise ThalwegError(f"{what} needs a different name for each network; got {', '.join(names)}")
    first, *_ = names
    for name, each in found.items():
        check_weights(each, f"'{name}'")
        found[name] = each.to(found[first].vector.device)
        check_agreement(found[first], found[name], f"'{first}'", f"'{name}'")
        if not bool(each.vector.isfinite().all()):
            raise ThalwegError(f"{what} needs finite weights, and some of '{name}' are NaN or infinite: leave it out")
    return found
