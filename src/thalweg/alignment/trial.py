"""Trying whether a renumbering leaves the outputs of a network as they were, in float64."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import torch
from torch import Tensor

from .groups import Group, Proposed
from .network_copy import NetworkCopy
from .outputs import CLOSE, apart, moved, same_finite
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

    def error(self, groups: Iterable[Group], axes: Mapping[str, tuple[Term, ...]] | None = None) -> float:
        """How far renumbering these groups moves the outputs, as `apart` says, in the first trial that fails."""
        groups, worst = list(groups), 0.0
        for attempt in range(max(map(_attempts, groups), default=1)):
            worst = max(worst, self._error(groups, axes or self.proposed.axes, attempt))
            if worst > CLOSE:
                break
        return worst

    def _error(self, groups: Sequence[Group], axes: Mapping[str, tuple[Term, ...]], attempt: int) -> float:
        within = {group.name: group.within for group in groups if group.within}
        sets = {**self.proposed.groups, **self.proposed.pinned}
        orders = {group.name: _order(group, sets, attempt) for group in groups}
        touched = {name for group in groups for name, _ in group.axes}
        with torch.no_grad():
            for name in touched:
                renumber(spread(self.network.tensors[name].detach(), axes[name]), orders, within)
        try:
            return apart(self.expected, self.network.outputs())
        finally:
            self._restore({name: self.given[name] for name in touched})


def _generator(name: str, attempt: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(name.encode()) + attempt)


def _attempts(group: Group) -> int:
    """Of few units, a single order may be one of those that keep, say, pairs together."""
    if group.size > SMALL:
        return 1
    return 6 if group.within else 2


def _order(group: Group, groups: Mapping[str, Group], attempt: int = 0) -> Tensor:
    """A random cycle, in which nothing stays, and next a swap of two neighbours in it: together they make every order.
    Of units inside others, a random order for each of those.
    """
    if group.within:
        generator = _generator(group.name, attempt)
        return torch.stack([torch.randperm(group.size, generator=generator) for _ in range(groups[group.within].size)])
    places = torch.randperm(group.size, generator=_generator(group.name))
    places = places[:2] if attempt % 2 else places
    order = torch.arange(group.size)
    order[places] = places.roll(1)
    return order
