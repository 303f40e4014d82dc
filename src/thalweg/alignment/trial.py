"""Trying whether a renumbering leaves the outputs of a network as they were, in float64."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from zlib import crc32

import torch
from torch import Tensor

from .groups import Group, Proposed
from .network_copy import NetworkCopy
from .outputs import CLOSE, apart, moved, same_finite, slopes_apart
from .permutation import Term, renumber, spread

SMALL = 12  # units of which several orders are tried


class Trial:
    """Tries renumberings on the copy of a network, away from initial values such as zeros, which could hide errors."""

    def __init__(self, network: NetworkCopy, proposed: Proposed):
        self.network, self.proposed = network, proposed
        self.given = self._values()
        self.expected = network.outputs()
        self._perturb([*network.tensors])

    def _perturb(self, names: Sequence[str]) -> None:
        """Move these tensors from their values, but not where other outputs would be finite then."""
        for far in (1.0, 0.1, 0.01) if len(names) == 1 else (1.0,):
            for name in names:
                self._restore({name: moved(self.given[name], far, _generator(name))})
            outputs = self.network.outputs()
            if same_finite(self.expected, outputs):
                self.given, self.expected = self._values(), outputs
                return
        self._restore(self.given)
        if len(names) > 1:
            self._perturb(names[: len(names) // 2])
            self._perturb(names[len(names) // 2 :])

    def _values(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.network.tensors.items()}

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.network.tensors[name].copy_(value)

    def matters(self, group: Group) -> bool:
        """Whether the outputs depend on the order of any of its tensors alone."""
        return any(self.error([replace(group, axes=(place,))]) > CLOSE for place in group.axes)

    def hidden(self, groups: Collection[Group]) -> list[str]:
        """The tensors that make no difference, so that nothing shows whether those of their axes that are in none of
        these groups belong in one, as their sizes allow.
        """
        held = {place for group in groups for place in group.axes}
        still = {n: t.shape for n, t in self.given.items() if n not in self.slopes or not self.slopes[n].any()}
        free = [(name, size) for name in still for k, size in enumerate(still[name]) if (name, k) not in held]
        fit = dict.fromkeys(name for name, size in free if any(size % group.size == 0 for group in groups))
        return [name for name in fit if name not in self.network.idle and self._makes_no_difference(name)]

    def _makes_no_difference(self, name: str) -> bool:
        try:
            self._restore({name: moved(self.given[name], 1.0, _generator(name, 1))})
            return apart(self.expected, self.network.outputs()) <= CLOSE
        finally:
            self._restore(self.given)

    def error(self, groups: Iterable[Group], axes: Mapping[str, tuple[Term, ...]] | None = None) -> float:
        """How far renumbering these groups moves the outputs, as `apart` says, in the first trial that fails."""
        groups, worst = list(groups), 0.0
        for attempt in _attempts(groups):
            with self._renumbered(groups, axes or self.proposed.axes, attempt):
                worst = max(worst, apart(self.expected, self.network.outputs()))
            if worst > CLOSE:
                break
        return worst

    def gradient_error(self, groups: Iterable[Group]) -> float:
        """How far the gradients after renumbering are from the gradients renumbered, as `slopes_apart` says: what hooks
        and an `autograd.Function` do to them is neither in a graph nor in outputs.
        """
        groups = list(groups)
        return max([self._gradient_error(groups, attempt) for attempt in _attempts(groups)]) if self.slopes else 0.0

    @cached_property
    def slopes(self) -> dict[str, Tensor]:
        return self.network.gradients()

    def _gradient_error(self, groups: Sequence[Group], attempt: int) -> float:
        expected = {name: slope.clone() for name, slope in self.slopes.items()}
        self._renumber(expected, groups, self.proposed.axes, attempt)
        with self._renumbered(groups, self.proposed.axes, attempt):
            found = self.network.gradients()
        return slopes_apart(expected, found)

    @contextmanager
    def _renumbered(
        self, groups: Sequence[Group], axes: Mapping[str, tuple[Term, ...]], attempt: int
    ) -> Iterator[None]:
        """The network with these groups renumbered."""
        tensors = {name: tensor.detach() for name, tensor in self.network.tensors.items()}
        try:
            self._renumber(tensors, groups, axes, attempt)
            yield
        finally:
            self._restore({name: self.given[name] for group in groups for name, _ in group.axes if name in tensors})

    def _renumber(
        self, tensors: Mapping[str, Tensor], groups: Sequence[Group], axes: Mapping[str, tuple[Term, ...]], attempt: int
    ) -> None:
        within = {group.name: group.within for group in groups if group.within}
        sets = {**self.proposed.groups, **self.proposed.pinned}
        orders = {group.name: _order(group, sets, attempt) for group in groups}
        for name in {name for group in groups for name, _ in group.axes} & tensors.keys():
            renumber(spread(tensors[name], axes[name]), orders, within)


def _generator(name: str, attempt: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(name.encode()) + attempt)


def _attempts(groups: Iterable[Group]) -> range:
    """Of few units, a single order may be one of those that keep, say, pairs together."""
    return range(max([1, *(6 if group.within else 2 for group in groups if group.size <= SMALL)]))


def _order(group: Group, groups: Mapping[str, Group], attempt: int = 0) -> Tensor:
    """A random cycle, in which nothing stays, and next a swap of two neighbours in it: together they make every order.
    Of units inside others, a random order for each of those.
    """
    if group.within:
        generator = _generator(group.name, attempt)
        return torch.stack(
            [torch.randperm(group.size, generator=generator, device="cpu") for _ in range(groups[group.within].size)]
        )
    places = torch.randperm(group.size, generator=_generator(group.name), device="cpu")
    places = places[:2] if attempt % 2 else places
    order = torch.arange(group.size, device="cpu")
    order[places] = places.roll(1)
    return order
