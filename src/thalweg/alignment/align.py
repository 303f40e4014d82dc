"""Renumber the units of one network so that they match those of another: same function, shorter way between the two."""

from collections.abc import Callable, Mapping, Sequence
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
from ..weightspace.weights import Weights, check_agreement, check_list
from . import layers, tensors
from .axes import Axes
from .calls import computing
from .operations import RULES, named
from .permutation import Block, Permutation, renumber, spread
from .symmetries import Symmetries, Traced

PASSES = 100  # at most; a few are enough
TRIES, ROUNDS = 4, 2  # to match groups that are inside the same units and in the same tensors
STARTS = 10  # at most, where what is found depends on the start
CONTRACTING = (
    layers.linear, layers.bilinear, layers.attention, layers.convolution, layers.recurrent, layers.cell,
    tensors.einsum, tensors.matmul, tensors.tensordot, tensors.distances,
)  # fmt: skip
CONTRACTIONS = {name for name, rule in RULES.items() if rule in CONTRACTING}  # what units are for
ROUNDING = 1e-10  # of the squares: a variance below it is none
FAINT = 1e-4  # a correlation that decides nothing
LEAST = 1e-6  # relative gain below which nothing has moved
ALIKE = 1e-12  # relative difference of two sums of the same products
Place = tuple[fx.Node, int]  # a node, and which of its blocks
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
        said = (
            f"distance {self.before:.4g} before, {self.after:.4g} after; groups: "
            f"{len(self.symmetries.groups)}, passes: {self.passes}, {self.seconds:.2g} s"
        )
        if self.unseen:
            said += f"; matched by weights, since they have no activations: {', '.join(self.unseen)}"
        if self.left_out:
            said += (
                f"; batches left out, since they have other shapes, strings or numbers than the first: {self.left_out}"
            )
        far = [f"{name} (by {error:.1g} of their size)" for name, error in self.symmetries.dropped.items()]
        return f"{said}; dropped, since renumbering them changed the outputs: {', '.join(far)}" if far else said


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
    traced = Traced(module, task, first, groups, whole_batch=by == "activations", weights=a, others=batches)
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
    correlations = None if batches is None else Correlations(found, traced)
    seen = [] if batches is None or correlations is None else correlations.pairs(a, b, batches)
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
        unseen=() if batches is None else tuple(name for name in found.groups if all(name not in p[2] for p in seen)),
        left_out=0 if correlations is None else correlations.left_out,
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
        """Match all groups until nothing moves; the number of passes. Where groups are tangled, from several random
        orders, until the best that was found is found again.
        """
        generator = torch.Generator().manual_seed(seed)
        passes = self._descend(generator)
        if not self._tangled():
            return passes
        best, orders = _similarity(self.all), {**self.orders}
        for _ in range(STARTS - 1):
            self._shuffle(generator)
            passes += self._descend(generator)
            reached = _similarity(self.all)
            if abs(reached - best) <= ALIKE * abs(best):
                break
            if reached > best:
                best, orders = reached, {**self.orders}
        self.orders = orders
        return passes

    def _tangled(self) -> bool:
        """Whether some tensor has several groups that are numbered inside others, or that it has twice: none of them
        can be matched there before the others are, so that what is found depends on the start.
        """
        several = (
            (sum(label in self.within for label in labels), sum(labels.count(name) > 1 for name in {*labels} - {""}))
            for *_, labels in self.all
        )
        return any(inside > 1 or twice > 1 for inside, twice in several)

    def _shuffle(self, generator: torch.Generator) -> None:
        """Begin again with random orders."""
        orders = {name: torch.rand(order.shape, generator=generator).argsort(-1) for name, order in self.orders.items()}
        self._reorder(orders)
        self._remember(orders)

    def _descend(self, generator: torch.Generator) -> int:
        """Match all groups from where they are; the number of passes."""
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
        within = {other: self.within[other] for other in orders if other in self.within}
        undo = Permutation(orders, {}, within, None)  # type: ignore[arg-type]
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
        size, inner = self.groups[name].size, {*self.inner[name]}
        plain = [pair for pair in pairs if not inner & {*pair[2]}]
        inside = [pair for pair in pairs if inner & {*pair[2]}]
        worth, best, knotted = self._inside(name, inside)
        for seed in range(TRIES if knotted else 0):
            more, other, _ = self._inside(name, inside, torch.Generator().manual_seed(seed))
            better = (more > worth)[..., None]
            worth = worth.maximum(more)
            best = {each: torch.where(better, other[each], best[each]) for each in best}
        order = _assigned(worth + _gains(plain, name).cpu() if plain else worth)
        rows = torch.arange(size)
        return {name: order} | {other: found[rows, order] for other, found in best.items()}

    def _inside(
        self, name: str, pairs: Sequence[Pair], start: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Tensor], bool]:
        """What the groups inside each pair of outer units are worth, their best orders there, and whether these depend
        on the start: groups are matched one after another, each where the others of a tensor are already matched, and
        again and again if there is no such order.
        """
        size, near = self.groups[name].size, {n: [p for p in pairs if n in p[2]] for n in self.inner[name]}
        best = {other: self.identity(other)[:1].expand(size, size, -1) for other in near}
        if start is not None:
            best = {n: torch.rand(order.shape, generator=start).argsort(-1) for n, order in best.items()}
        waiting, done, knotted = [other for other in near if near[other]], {n for n in near if not near[n]}, False
        while waiting:
            ready = {n: [p for p in near[n] if near.keys() & {*p[2]} <= {*done, n}] for n in waiting}
            other = max(ready, key=lambda n: _entries(ready[n]) / _entries(near[n]))
            knotted |= not ready[other]
            self._match_inside(name, other, ready[other] or near[other], best)
            done.add(other)
            waiting.remove(other)
        for other in [n for n in near if near[n]] * (ROUNDS if knotted else 0):
            self._match_inside(name, other, near[other], best)
        worth, left = torch.zeros(size, size), [*pairs]
        for other in near:
            mine, left = [p for p in left if other in p[2]], [p for p in left if other not in p[2]]
            gains = self._inner_gains(mine, name, other, best).cpu() if mine else None
            worth = worth if gains is None else worth + gains.gather(3, best[other][..., None])[..., 0].sum(2)
        return worth, best, knotted

    def _match_inside(self, name: str, inner: str, pairs: Sequence[Pair], best: dict[str, Tensor]) -> None:
        gains = self._inner_gains(pairs, name, inner, best).cpu()
        best[inner] = torch.stack([torch.stack([_assigned(g) for g in row]) for row in gains])

    def _inner_gains(self, pairs: Sequence[Pair], name: str, inner: str, best: Mapping[str, Tensor]) -> Tensor:
        """What the units inside each pair of outer ones are worth, with the other groups there in these orders."""
        best = {other: order for other, order in best.items() if other != inner}
        free = [pair for pair in pairs if not best.keys() & {*pair[2]}]
        total: Any = _gains(free, name, inner)
        for one, two, labels in pairs:
            held, at, rows = best.keys() & {*labels}, labels.index(name), []
            for i in range(self.groups[name].size) if held else ():
                yours = two.clone()
                renumber([(yours, labels)], {other: best[other][i] for other in held}, self.within)
                rows.append(_gains([(one.narrow(at, i, 1), yours, labels)], name, inner))
            total = total + (torch.cat(rows) if held else 0.0)
        return total


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
            shape, theirs = ([tensor.shape[d] for d in dims] for tensor in (one, two))
            kind = torch.promote_types(one.dtype, torch.float32)
            mine, yours = (
                t.movedim(dims, [*range(len(dims))]).reshape(prod(n), -1).to(kind)
                for t, n in ((one, shape), (two, theirs))
            )
            gains = mine @ yours.T
            total = total + (gains.view(*shape, *theirs).transpose(1, 2) if inner else gains)
    return total


def _similarity(pairs: Sequence[Pair]) -> float:
    return sum(float((one * two).sum(dtype=torch.float64)) for one, two, _ in pairs)


def _entries(pairs: Sequence[Pair]) -> int:
    return sum(one.numel() for one, _, _ in pairs)


class Running(fx.Interpreter):
    """Runs a graph, and the blocks under no_grad or autocast inside it, and shows what each node gives."""

    def __init__(self, graph: fx.GraphModule, show: Callable[[fx.Node, Any], None]):
        super().__init__(graph)
        self.show = show

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.show(n, value)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        inner = next((k for k, value in enumerate(args) if isinstance(value, fx.GraphModule)), None)
        if inner is None or not str(getattr(target, "__name__", "")).startswith("wrap_with"):
            return super().call_function(target, args, kwargs)
        return Running(args[inner], self.show).run(*args[inner + 1 :])


def _contracted(node: fx.Node) -> bool:
    """Whether an operation that contracts units gets what a node gives, also one in a block under no_grad."""
    for user in node.users:
        if named(user) in CONTRACTIONS:
            return True
        owner: Any = user.graph.owning_module
        for k, block in enumerate(user.args if named(user).startswith("wrap_with") else ()):
            if isinstance(block, fx.Node) and block.op == "get_attr":
                waiting = getattr(owner, str(block.target)).graph.find_nodes(op="placeholder")
                given = zip(user.args[k + 1 :], waiting, strict=False)
                if any(each is node and _contracted(inside) for each, inside in given):
                    return True
    return False


class Correlations:
    """The correlation of the units of two networks, from running sums over one pass of the batches.

    They are given to the matching as if they were weights: the identity for one network, and for the other the
    correlations of its units with those of the first.
    """

    def __init__(self, found: Symmetries, traced: Traced):
        if traced.program is None:
            raise ThalwegError("activations can be matched only where groups are traced: leave groups= out")
        if not traced.called.inputs():
            raise ThalwegError(
                "activations are matched over the tensors of batches, and the network gets none that is in a tuple, "
                "list, dict or dataclass: make batches of these, or use by='weights'"
            )
        self.traced, self.found, self.labels = traced, found, {*found.groups, *found.within.values()}
        self.sums: dict[Place, tuple[list[Tensor], list[int], tuple[str, ...]]] = {}
        self.seen: dict[Place, Block] = {}
        self.left_out = 0

    def note(self, node: fx.Node, value: Any) -> None:
        axes = self.traced.seen.get(node)
        used = node.op == "call_function" and isinstance(axes, Axes) and _contracted(node)
        if used and value.is_floating_point() and not is_batchedtensor(value):
            for k, (view, labels) in enumerate(spread(value, self.traced.terms(axes))):
                kept = tuple(label if label in self.labels else "" for label in labels)
                self.seen |= {(node, k): (view, kept)} if {*kept} & {*self.found.groups} else {}

    def pairs(self, a: Weights, b: Weights, batches: Batches) -> list[Pair]:
        states = [self.traced.state(point) for point in (a, b)]
        used = 0
        with seeded(0, batches), torch.no_grad():
            for batch in batches:
                inputs = self.traced.arguments(batch)
                if inputs is None:
                    self.left_out += 1
                else:
                    used += 1
                    self._add(*(self._run(state, inputs) for state in states))
        if not used:
            raise ThalwegError(
                "activations are matched over batches that are called as the first is, and in another pass none was: "
                "give batches with the same strings, numbers and objects beside their tensors, or use by='weights'"
            )
        if not all(tensor.isfinite().all() for sums, _, _ in self.sums.values() for tensor in sums):
            raise ThalwegError(
                "only finite activations can be matched, and some are not: look for NaN in batches, a and b, or use "
                "by='weights'"
            )
        return [self._pair(*sums) for sums in self.sums.values()]

    def _run(self, state: Sequence[Any], inputs: Sequence[Tensor]) -> dict[Place, Block]:
        self.seen = {}
        with computing():
            Running(self.traced.program.graph_module, self.note).run(*state, *inputs)
        return self.seen

    def _add(self, one: Mapping[Place, Block], two: Mapping[Place, Block]) -> None:
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
