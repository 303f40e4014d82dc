"""Renumber the units of one network so that they match those of another: same function, shorter way between the two."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, overload

from torch import nn

from ..batches import Batches, count
from ..errors import ThalwegError, whole_number
from ..runtime.rng import seeded
from ..tasks import Task
from ..weightspace.weights import Weights, check_agreement, check_list
from .correlations import Correlations
from .further_calls import FurtherCalls
from .groups import Symmetries, by_hand
from .matching import Matching
from .network_copy import NetworkCopy
from .permutation import Permutation, spread
from .symmetries import proven
from .tracing import Tracing


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Aligned(Weights):
    """Weights renumbered to match others, and how: the same function, with its batch-norm statistics in the same order.
    Points made from them, such as those of a curve, are plain `Weights`.

    Attributes:
        permutation: What was done, for other weights of the same network; it can be saved and undone.
        symmetries: The groups that were matched.
        before: The distance between the two before.
        after: And after.
        passes: The number of sweeps over all groups, from all starts.
        seconds: How long the matching took, without finding the symmetries.
        unseen: By activations: the groups that had none and were matched by weights.
        left_out: By activations: how many batches were not used, since they are called in another way than the first.
    """

    permutation: Permutation
    symmetries: Symmetries
    before: float
    after: float
    passes: int
    seconds: float
    unseen: tuple[str, ...] = ()
    left_out: int = 0

    def __str__(self) -> str:
        number = len(self.symmetries.groups)
        matched = f"passes: {self.passes}, matched in {self.seconds:.2g} s" if number else "so nothing was renumbered"
        said = f"distance {self.before:.4g} before, {self.after:.4g} after; groups: {number}, {matched}"
        if self.unseen:
            said += f"; matched by weights, since they have no activations: {', '.join(self.unseen)}"
        if self.left_out:
            said += (
                f"; batches left out, since they have other shapes, strings or numbers than the first: {self.left_out}"
            )
        far = [f"{name} (by {100 * error:.3g} % of their size)" for name, error in self.symmetries.dropped.items()]
        why = "dropped, since renumbering them changed the outputs or gradients"
        return f"{said}; {why}: {', '.join(far)}" if far else said


@overload
def align(
    module: nn.Module, a: Weights, b: Weights, task: Task, batches: Batches, *,
    by: Literal["weights", "activations"] = ..., seed: int = ..., groups: Mapping[str, Mapping[str, Any]] | None = ...,
) -> Aligned: ...  # fmt: skip
@overload
def align(
    module: nn.Module, a: Weights, b: Sequence[Weights], task: Task, batches: Batches, *,
    by: Literal["weights", "activations"] = ..., seed: int = ..., groups: Mapping[str, Mapping[str, Any]] | None = ...,
) -> list[Aligned]: ...  # fmt: skip
def align(
    module: nn.Module,
    a: Weights,
    b: Weights | Sequence[Weights],
    task: Task,
    batches: Batches,
    *,
    by: Literal["weights", "activations"] = "weights",
    seed: int = 0,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
) -> Aligned | list[Aligned]:
    """Renumber the hidden units of `b` to match those of `a`: the same function, nearer to `a`.

    Examples:
        >>> import torch
        >>> import thalweg as tw
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> a, batches = tw.Weights.of(module), [(torch.randn(6, 4), torch.randint(3, (6,)))]
        >>> module[0].weight.data, module[0].bias.data = module[0].weight.data.flip(0), module[0].bias.data.flip(0)
        >>> module[2].weight.data = module[2].weight.data.flip(1)
        >>> aligned = tw.align(module, a, tw.Weights.of(module), tw.classification(), batches)
        >>> aligned.before > 0, aligned.after, torch.equal(aligned.vector, a.vector)
        (True, 0.0, True)
        >>> aligned.permutation.inverse().apply(a).distance(tw.Weights.of(module))
        0.0

    Groups of units that can be renumbered are found and proven by `symmetries`. Each is matched in turn by solving an
    assignment problem, with the others as they are, until nothing moves; only moves that help are made. Where several
    groups inside others meet in one tensor, as in grouped convolutions, that is done from several random orders.

    Args:
        module: A network of the same architecture; it is not changed.
        a: The network to match.
        b: The network to renumber, or several, each of which is matched to `a`.
        task: How the network is called on a batch.
        batches: The first shows how the network is called; others of a list, or where it leaves parameters unused, show
            further ways. By activations, all those of its shape, with the same strings and numbers next to their
            tensors, are used.
        by: What is matched: weights, or activations, by the correlation of units over the batches.
        seed: For the order in which groups are matched, and for the random orders.
        groups: As in `symmetries`.

    Returns:
        The renumbered network, which prints as a report; a list for a list. The checkpoints in `b.kept` are not carried
        along: `aligned.permutation.apply(b.kept[epoch])` renumbers one.

    Raises:
        ThalwegError: If the two are not networks of the same kind, or as in `symmetries`.
    """
    count(batches)
    seed = whole_number(seed, "seed")
    if by not in ("weights", "activations"):
        raise ThalwegError(f"by must be 'weights' or 'activations'; got {by!r}")
    others = [*b] if isinstance(b, Sequence | Iterator) and not isinstance(b, str) else [b]
    check_list(others, "align")
    for other in others:
        check_agreement(a, other, "a", "b")
        if bad := [name for name, weights in (("a", a), ("b", other)) if not weights.vector.isfinite().all()]:
            raise ThalwegError(f"the weights of {' and '.join(bad)} hold NaN or infinity: train again")
    if groups is not None and by == "activations":
        raise ThalwegError(
            "activations can be matched only where groups are traced, and these are given by hand: leave groups= out, "
            "or use by='weights'"
        )
    with seeded(seed, batches):
        first = next(iter(batches))
    network = NetworkCopy(module, task, first, a)
    if groups is None:
        tracing = Tracing(network, batches, first if by == "activations" else None)
        found = proven(network, tracing.proposed)
    else:
        FurtherCalls(network).include_all(batches)
        found = proven(network, by_hand(groups, network.tensors))
    correlated = partial(Correlations, tracing, found, a, batches=batches) if by == "activations" else None
    matched = [_aligned(found, a, other, seed, correlated) for other in others]
    for other, aligned in zip(others, matched, strict=True):
        network.warn_if_changed(other, aligned)
    return matched[0] if isinstance(b, Weights) else matched


def _aligned(
    found: Symmetries, a: Weights, b: Weights, seed: int, correlated: Callable[[Weights], Correlations] | None
) -> Aligned:
    start = perf_counter()
    mine, yours = (point.layout.split(point.vector.clone()) for point in (a, b))
    pairs = [
        (one, two, labels)
        for name in mine
        if name in found.axes
        for (one, labels), (two, _) in zip(
            *(spread(tensors[name], found.axes[name]) for tensors in (mine, yours)), strict=True
        )
    ]
    correlations = correlated(b) if correlated else None
    seen = correlations.pairs() if correlations else []
    matching = Matching(found, pairs, seen)
    passes = matching.run(seed)
    permutation = Permutation(matching.orders, found.axes, found.within, found.layout)
    weights = permutation.apply(b)
    before, after = a.distance(b), a.distance(weights)
    if correlations is None and after > before:  # a start that was already better than what was found
        permutation = replace(permutation, orders={name: matching.identity(name) for name in found.groups})
        weights, after = permutation.apply(b), before
    return Aligned(
        weights.layout,
        weights.vector,
        weights.buffers,
        weights.frozen,
        weights.made,
        permutation=permutation,
        symmetries=found,
        before=before,
        after=after,
        passes=passes,
        seconds=perf_counter() - start,
        unseen=tuple(n for n in found.groups if all(n not in pair[2] for pair in seen)) if correlations else (),
        left_out=correlations.left_out if correlations else 0,
    )
