"""Matching the units of two networks: each group in turn is an assignment problem, with the others as they are."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from .groups import Symmetries
from .permutation import Permutation, renumber

PASSES = 100  # at most; a few are enough
TRIES, ROUNDS = 4, 2  # to match groups that are inside the same units and in the same tensors
STARTS, MANY = 10, 30  # at most, where what is found depends on the start; of small networks, where one costs little
SMALL = 10**6  # entries
NEAR = 0.99  # of the similarity to itself: hardly more can be found
FAINT = 1e-4  # a correlation that decides nothing
LEAST = 1e-6  # relative gain below which nothing has moved
ALIKE = 1e-12  # relative difference of two sums of the same products
Pair = tuple[Tensor, Tensor, tuple[str, ...]]  # blocks of both networks, and the groups of their dimensions


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
        order = torch.arange(self.groups[name].size, device="cpu")
        return order.repeat(self.sizes[self.within[name]], 1) if name in self.within else order

    def run(self, seed: int) -> int:
        """Match all groups until nothing moves; the number of passes. Where groups are tangled, from several random
        orders: of large networks, until the best that was found is found again.
        """
        generator = torch.Generator().manual_seed(seed)
        passes = self._descend(generator)
        if not self._tangled():
            return passes
        best, orders = _similarity(self.all), {**self.orders}
        most = sum(_similarity([(each, each, labels)]) for *pair, labels in self.all for each in pair) / 2
        large = _entries(self.all) > SMALL
        for _ in range((STARTS if large else MANY) - 1):
            if best >= NEAR * most:
                break
            self._shuffle(generator)
            passes += self._descend(generator)
            reached = _similarity(self.all)
            if large and abs(reached - best) <= ALIKE * abs(best):
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
        orders = {
            name: torch.rand(order.shape, generator=generator, device="cpu").argsort(-1)
            for name, order in self.orders.items()
        }
        self._reorder(orders)
        self._remember(orders)

    def _descend(self, generator: torch.Generator) -> int:
        """Match all groups from where they are; the number of passes."""
        self._first()
        stale = set(self.groups)
        for number in range(2, PASSES + 1):
            for k in torch.randperm(len(self.groups), generator=generator, device="cpu").tolist():
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
        return {name: order} | {other: found[torch.arange(size, device="cpu"), order] for other, found in best.items()}

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
            best = {n: torch.rand(order.shape, generator=start, device="cpu").argsort(-1) for n, order in best.items()}
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
        worth, left = torch.zeros(size, size, device="cpu"), [*pairs]
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
            return torch.arange(len(gains), device="cpu")
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
