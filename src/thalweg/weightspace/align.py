"""Renumber the units of one network so that they match those of another: same function, shorter way between the two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from time import perf_counter
from typing import Any, Literal, overload

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, fx, nn
from torch._C._functorch import is_batchedtensor

from ..batches import Batches, count
from ..errors import ThalwegError, whole_number
from ..runtime.rng import seeded
from ..tasks import Task
from .axes import Axes
from .calls import computing
from .operations import named
from .permutation import Block, Permutation, renumber, spread
from .symmetries import Symmetries, Traced
from .weights import Weights, check_agreement, check_list

PASSES = 100  # at most; a few are enough
CONTRACTIONS = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "mm", "bmm", "addmm", "einsum"}  # what units are for
ROUNDING = 1e-10  # of the squares: a variance below it is none
FAINT = 1e-4  # a correlation that decides nothing
LEAST = 1e-6  # relative gain below which nothing has moved
Pair = tuple[Tensor, Tensor, tuple[str, ...]]  # blocks of both networks, and the groups of their dimensions


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Aligned(Weights):
    """Weights renumbered to match others, and how: the same function, with its batch-norm statistics in the same order.
    Points made from them, such as those of a curve, are plain `Weights`.

    Attributes:
        permutation: What was done, for other weights of the same network; it can be saved and undone.
        symmetries: The groups that were matched.
        before: The distance between the two before.
        after: And after.
        passes: How often all groups were gone through.
        seconds: How long the matching took, without finding the symmetries.
    """

    permutation: Permutation
    symmetries: Symmetries
    before: float
    after: float
    passes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"distance {self.before:.4g} before, {self.after:.4g} after; groups: "
            f"{len(self.symmetries.groups)}, passes: {self.passes}, {self.seconds:.2g} s"
        )


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
    assignment problem, with the others as they are, until nothing moves; only moves that help are made.

    Args:
        module: A network of the same architecture; it is not changed.
        a: The network to match.
        b: The network to renumber, or several, each of which is matched to `a`.
        task: How the network is called on a batch.
        batches: The first shows how the network is called; all those of its shape are used by activations.
        by: What is matched: weights, or activations, by the correlation of units over the batches.
        seed: For the order in which groups are matched.
        groups: As in `symmetries`.

    Returns:
        The renumbered network, which prints as a report; a list for a list.

    Raises:
        ThalwegError: If the two are not networks of the same kind, or as in `symmetries`.
    """
    count(batches)
    seed = whole_number(seed, "seed")
    if by not in ("weights", "activations"):
        raise ThalwegError(f"networks are aligned by 'weights' or by 'activations'; got {by!r}")
    others = [b] if isinstance(b, Weights) else list(b)
    check_list(others, "align")
    for other in others:
        check_agreement(a, other, "a", "b")
        if not (a.vector.isfinite().all() and other.vector.isfinite().all()):
            raise ThalwegError("only finite weights can be matched, and some of a or b are not: train them again")
    with seeded(seed, batches):
        first = next(iter(batches))
    traced = Traced(module, task, first, groups, whole_batch=by == "activations", weights=a)
    found = traced.proven()
    matched = [_aligned(found, traced, a, other, batches if by == "activations" else None, seed) for other in others]
    return matched[0] if isinstance(b, Weights) else matched


def _aligned(found: Symmetries, traced: Traced, a: Weights, b: Weights, batches: Batches | None, seed: int) -> Aligned:
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
    seen = [] if batches is None else Correlations(found, traced).pairs(a, b, batches)
    matching = Matching(found, pairs, seen)
    passes = matching.run(seed)
    permutation = Permutation(matching.orders, found.axes, found.within, found.layout)
    weights = permutation.apply(b)
    before, after = a.distance(b), a.distance(weights)
    if batches is None and after > before:  # a start that was already better than what was found
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
    )


class Matching:
    """Matches one group after another: the blocks of b are reordered in place."""

    def __init__(self, found: Symmetries, weights: Sequence[Pair], activations: Sequence[Pair] = ()):
        self.groups, self.within = found.groups, found.within
        self.inner = {name: [n for n, outer in self.within.items() if outer == name] for name in self.groups}
        self.all = [*(map(_faint, weights) if activations else weights), *activations]
        self.pairs = {name: [pair for pair in self.all if name in pair[2]] for name in self.groups}
        self.sizes = {label: size for one, _, labels in self.all for size, label in zip(one.shape, labels, strict=True)}
        self.orders = {name: self.identity(name) for name in self.groups}
        self.plain = {
            name
            for name, pairs in self.pairs.items()
            if not (name in self.within or self.inner[name] or any(labels.count(name) > 1 for *_, labels in pairs))
        }
        self.gains: dict[str, Tensor] = {}  # of plain groups, kept up to date while others move

    def identity(self, name: str) -> Tensor:
        """The order in which nothing moves."""
        order = torch.arange(self.groups[name].size)
        return order.repeat(self.sizes[self.within[name]], 1) if name in self.within else order

    def run(self, seed: int) -> int:
        """Match all groups until nothing moves; the number of passes."""
        generator = torch.Generator().manual_seed(seed)
        self._first()
        stale = set(self.groups)
        for number in range(2, PASSES + 1):
            for k in torch.randperm(len(self.groups), generator=generator).tolist():
                name = [*self.groups][k]
                if name in stale:
                    stale.discard(name)
                    if self._improve(name, self.pairs[name]):
                        stale |= {
                            near
                            for *_, labels in self.pairs[name]
                            for near in labels
                            if near in self.groups and (near != name or labels.count(name) > 1)  # who sees what moved
                        }
            if not stale:
                return number
        return PASSES

    def _first(self) -> None:
        """Start with what is next to inputs and outputs, and use only tensors whose other axes are already matched."""
        known = {*self.sizes} - {*self.groups}
        waiting = [name for name in self.groups if self.within.get(name, "") in known]
        while waiting:
            usable = {name: self._usable(name, known) for name in waiting}
            best = max(waiting, key=lambda name: _entries(usable[name]) / max(_entries(self.pairs[name]), 1))
            self._improve(best, usable[best] or self.pairs[best], always=True)
            known |= {best, *self.inner[best]}
            waiting.remove(best)

    def _usable(self, name: str, known: set[str]) -> list[Pair]:
        own = {name, *self.inner[name]}
        return [
            pair for pair in self.pairs[name]
            if set(pair[2]) <= known | own and all(pair[2].count(each) <= 1 for each in own)
        ]  # fmt: skip

    def _improve(self, name: str, pairs: Sequence[Pair], always: bool = False) -> bool:
        """Match one group, and those inside it, if that brings the networks nearer."""
        if name in self.plain:
            return self._improve_plain(name, pairs, always)
        orders = self._best(name, pairs)
        if all(torch.equal(order, self.identity(other)) for other, order in orders.items()):
            return False
        before = _similarity(self.pairs[name])
        self._reorder(orders)
        if always or _similarity(self.pairs[name]) > before + LEAST * abs(before):
            self._remember(orders)
            return True
        undo = Permutation(orders, {}, {n: self.within[n] for n in orders if n in self.within}, None)  # type: ignore[arg-type]
        self._reorder(dict(undo.inverse().orders))
        return False

    def _improve_plain(self, name: str, pairs: Sequence[Pair], always: bool) -> bool:
        """The same for a group on one dimension of each tensor, where the gains say what a move is worth."""
        if pairs is self.pairs[name] and name not in self.gains:
            self.gains[name] = _gains(pairs, name)
        gains = (self.gains[name] if pairs is self.pairs[name] else _gains(pairs, name)).cpu()
        order, here = _assigned(gains), self.identity(name)
        before, after = (float(gains[here, there].sum(dtype=torch.float64)) for there in (here, order))
        if torch.equal(order, here) or not (always or after > before + LEAST * abs(before)):
            return False
        self._move(name, order)
        self._remember({name: order})
        return True

    def _move(self, name: str, order: Tensor) -> None:
        """Renumber a plain group; the gains of others change by the units that move, of which there are few later."""
        moving = (order != self.identity(name)).nonzero()[:, 0]
        for one, two, labels in self.pairs[name]:
            dim, places = labels.index(name), moving.to(two.device)
            before, after = two.index_select(dim, places), two.index_select(dim, order[moving].to(two.device))
            two.index_copy_(dim, places, after)
            change = (one.index_select(dim, places), after - before, labels)
            for near in self.gains.keys() & set(labels) - {name}:
                self.gains[near] += _gains([change], near)
        if name in self.gains:
            self.gains[name] = self.gains[name][:, order.to(self.gains[name].device)]

    def _reorder(self, orders: Mapping[str, Tensor]) -> None:
        blocks = [pair[1:] for pair in self.all if any(name in pair[2] for name in orders)]
        renumber(blocks, orders, {n: self.within[n] for n in orders if n in self.within})
        self.gains.clear()

    def _remember(self, orders: Mapping[str, Tensor]) -> None:
        for name, order in orders.items():
            for inner in self.inner[name]:
                self.orders[inner] = self.orders[inner][order]
        for name, order in orders.items():
            self.orders[name] = self.orders[name].gather(-1, order)

    def _best(self, name: str, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """The order that matches best, with the orders of the groups inside it."""
        if name in self.within:
            gains = _gains(pairs, self.within[name], name).cpu()
            return {name: torch.stack([_assigned(gains[k, k]) for k in range(len(gains))])}
        if not self.inner[name]:
            return {name: _assigned(_gains(pairs, name).cpu())}
        return self._nested(name, pairs)

    def _nested(self, name: str, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Every pair of outer units is worth what the best matching of the units inside them is worth."""
        size, inner = self.groups[name].size, self.inner[name]
        plain = [pair for pair in pairs if not set(inner) & set(pair[2])]
        worth = _gains(plain, name).cpu() if plain else torch.zeros(size, size)
        best = {}
        for other in inner:
            near = [pair for pair in pairs if other in pair[2]]
            if not near:
                best[other] = self.identity(other).expand(size, size, -1)
                continue
            gains = _gains(near, name, other).cpu()
            best[other] = torch.stack([torch.stack([_assigned(g) for g in row]) for row in gains])
            worth = worth + gains.gather(3, best[other][..., None])[..., 0].sum(2)
        order = _assigned(worth)
        rows = torch.arange(size)
        return {name: order} | {other: found[rows, order] for other, found in best.items()}


def _faint(pair: Pair) -> Pair:
    """Weights next to activations: they decide only where those do not, as for units that are never active."""
    one, two, labels = pair
    return one * (FAINT * max(one.shape) / float(one.norm() * two.norm() or 1.0)), two, labels


def _assigned(gains: Tensor) -> Tensor:
    """The best assignment. Solved for gains less potentials of the present order, which change no difference between
    assignments and leave little to search where few units move; if they settle, the present order is the best.
    """
    worth, potential = gains.double().numpy(), np.zeros(len(gains))
    for _ in range(3):
        present = worth.diagonal() - potential
        before, potential = potential, (worth - present[:, None]).max(0)
        if np.array_equal(before, potential):
            return torch.arange(len(gains))
    worth = worth - (worth.diagonal() - potential)[:, None] - potential
    return torch.from_numpy(linear_sum_assignment(worth, maximize=True)[1])


def _gains(pairs: Sequence[Pair], outer: str, inner: str = "") -> Tensor:
    """Inner products of the units of both networks: (i, j), or (i, j, k, l) for units k and l inside i and j."""
    total: Any = 0.0
    for one, two, labels in pairs:
        found = [[k for k, label in enumerate(labels) if label == name] for name in (outer, inner) if name]
        for dims in map(list, product(*found)):
            shape = [one.shape[d] for d in dims]
            kind = torch.promote_types(one.dtype, torch.float32)
            mine, yours = (t.movedim(dims, [*range(len(dims))]).reshape(prod(shape), -1).to(kind) for t in (one, two))
            gains = mine @ yours.T
            total = total + (gains.view(*shape, *shape).transpose(1, 2) if inner else gains)
    return total


def _similarity(pairs: Sequence[Pair]) -> float:
    return sum(float((one * two).sum(dtype=torch.float64)) for one, two, _ in pairs)


def _entries(pairs: Sequence[Pair]) -> int:
    return sum(one.numel() for one, _, _ in pairs)


class Correlations(fx.Interpreter):
    """The correlation of the units of two networks, from running sums over one pass of the batches.

    They are given to the matching as if they were weights: the identity for one network, and for the other the
    correlations of its units with those of the first.
    """

    def __init__(self, found: Symmetries, traced: Traced):
        if traced.program is None:
            raise ThalwegError("activations can be matched only where groups are traced: leave groups= out")
        super().__init__(traced.program.graph_module)
        self.traced, self.found, self.labels = traced, found, {*found.groups, *found.within.values()}
        self.sums: dict[tuple[str, int], tuple[list[Tensor], list[int], tuple[str, ...]]] = {}
        self.seen: dict[tuple[str, int], Block] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        axes = self.traced.seen.get(n)
        used = n.op == "call_function" and any(named(user) in CONTRACTIONS for user in n.users)
        if used and isinstance(axes, Axes) and value.is_floating_point() and not is_batchedtensor(value):
            for k, (view, labels) in enumerate(spread(value, self.traced.terms(axes))):
                kept = tuple(label if label in self.labels else "" for label in labels)
                self.seen |= {(n.name, k): (view, kept)} if {*kept} & {*self.found.groups} else {}
        return value

    def pairs(self, a: Weights, b: Weights, batches: Batches) -> list[Pair]:
        states = [self.traced.state(point) for point in (a, b)]
        with seeded(0, batches), torch.no_grad():
            for batch in batches:
                inputs = self.traced.arguments(batch)
                if inputs is not None:
                    self._add(*(self._run(state, inputs) for state in states))
        if not all(tensor.isfinite().all() for sums, _, _ in self.sums.values() for tensor in sums):
            raise ThalwegError(
                "only finite activations can be matched, and some are not: look for NaN in batches, a and b, or use "
                "by='weights'"
            )
        return [self._pair(*sums) for sums in self.sums.values()]

    def _run(self, state: Sequence[Any], inputs: Sequence[Tensor]) -> dict[tuple[str, int], Block]:
        self.seen = {}
        with computing():
            self.run(*state, *inputs)
        return self.seen

    def _add(self, one: Mapping[tuple[str, int], Block], two: Mapping[tuple[str, int], Block]) -> None:
        for key, (view, labels) in one.items():
            x, y = (_units(block, labels) for block in (view, two[key][0]))
            new = [torch.tensor(float(x.shape[1])), x.sum(1), y.sum(1), (x * x).sum(1), (y * y).sum(1), x @ y.T]
            shape = [view.shape[k] for k, label in enumerate(labels) if label]
            old = self.sums.get(key, (new, shape, labels))[0]
            self.sums[key] = ([p + q for p, q in zip(old, new, strict=True)] if old is not new else new, shape, labels)

    @staticmethod
    def _pair(sums: Sequence[Tensor], shape: Sequence[int], labels: tuple[str, ...]) -> Pair:
        count, x, y, xx, yy, xy = sums
        one, two = (
            torch.where((v := sq - s * s / count) > ROUNDING * sq, v.rsqrt(), 0.0) for s, sq in ((x, xx), (y, yy))
        )
        found = (xy - x.outer(y) / count) * one.outer(two)  # a unit that is always the same matches none
        same = torch.eye(len(x), dtype=found.dtype, device=found.device)
        kept = tuple(label for label in labels if label)
        return same.view(*shape, -1), found.T.reshape(*shape, -1), (*kept, "")


def _units(view: Tensor, labels: Sequence[str]) -> Tensor:
    dims = [k for k, label in enumerate(labels) if label]
    return view.movedim(dims, [*range(len(dims))]).reshape(prod(view.shape[k] for k in dims), -1)
