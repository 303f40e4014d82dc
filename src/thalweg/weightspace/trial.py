"""Trying whether a renumbering leaves the outputs of a network as they were, in float64."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import Tensor

from .permutation import Term, renumber, spread

if TYPE_CHECKING:
    from .symmetries import Group, Traced

CLOSE = 1e-9  # relative to the largest output, in float64


class Trial:
    """Tries renumberings on the copy of a network, away from initial values such as zeros, which could hide errors."""

    def __init__(self, traced: "Traced"):
        self.traced = traced
        given = self._values()
        before = traced.outputs()
        with torch.no_grad():
            for name, tensor in traced.tensors.items():
                factor, shift = torch.rand(2, *tensor.shape, generator=_generator(name), dtype=torch.float64)
                size = float(tensor.abs().mean()) or 1.0
                tensor.mul_((0.5 + factor).to(tensor.device)).add_(shift.to(tensor.device), alpha=0.2 * size)
        self.expected = traced.outputs()
        if not all(map(_same_finite, before, self.expected)):
            self._restore(given)
            self.expected = before
        self.given = self._values()

    def _values(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.traced.tensors.items()}

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.traced.tensors[name].copy_(value)

    def matters(self, group: "Group") -> bool:
        """Whether the outputs depend on the order of any of its tensors alone."""
        return any(self.error([replace(group, axes=(place,))]) > CLOSE for place in group.axes)

    def error(self, groups: Iterable["Group"], axes: Mapping[str, tuple[Term, ...]] | None = None) -> float:
        """How far a random renumbering of these groups moves the outputs, relative to the largest."""
        groups = list(groups)
        within = {group.name: group.within for group in groups if group.within}
        orders = {group.name: _order(group, {**self.traced.groups, **self.traced.pinned}) for group in groups}
        touched = {name for group in groups for name, _ in group.axes}
        with torch.no_grad():
            for name in touched:
                terms = (axes or self.traced.axes)[name]
                renumber(spread(self.traced.tensors[name].detach(), terms), orders, within)
        try:
            return apart(self.expected, self.traced.outputs())
        finally:
            self._restore({name: self.given[name] for name in touched})


def apart(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    """The largest difference of outputs, relative to the largest of each; infinite where they are not alike."""
    worst = 0.0 if len(one) == len(two) else inf
    for mine, yours in zip(one, two, strict=False):
        if not _same_finite(mine, yours):
            return inf
        finite = mine.isfinite()
        mine, yours = mine[finite].double(), yours[finite].double()
        if mine.numel():
            scale = float(mine.abs().max())
            worst = max(worst, float((mine - yours).abs().max()) / (scale or 1.0))
    return worst


def finite(outputs: Sequence[Tensor]) -> bool:
    """Whether there is any finite number."""
    return any(bool(tensor.isfinite().any()) for tensor in outputs)


def _same_finite(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.isfinite(), two.isfinite())


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(name.encode()))


def _order(group: "Group", groups: Mapping[str, "Group"]) -> Tensor:
    """A random order in which nothing stays; of the rows of units inside others, not all are the same."""
    generator = _generator(group.name)
    if not group.within:
        return _cycle(group.size, generator)
    first = _cycle(group.size, generator)
    return torch.stack([(first + k) % group.size for k in range(groups[group.within].size)])


def _cycle(size: int, generator: torch.Generator) -> Tensor:
    places = torch.randperm(size, generator=generator)
    order = torch.empty_like(places)
    order[places] = places.roll(1)
    return order if size != 3 else places.sort()[0][[1, 0, 2]]  # a cycle of three may be a mere shift
