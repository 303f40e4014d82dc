"""Groups of units that are renumbered together: as proposed by a graph or a user, and as proven."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from numbers import Integral
from typing import Any

from torch import Tensor

from ..errors import ThalwegError
from ..weightspace.layout import Layout
from .permutation import Term
from .terms import sized


@dataclass(frozen=True)
class Group:
    """Units that are renumbered together.

    Attributes:
        name: The first tensor and axis in which they occur.
        size: How many there are.
        axes: Every tensor and axis in which they occur.
        within: The group, or pinned axis, of which each unit has its own numbering of these, as each head has of its
            channels.
    """

    name: str
    size: int
    axes: tuple[tuple[str, int], ...]
    within: str = ""


@dataclass(frozen=True, eq=False)
class Symmetries:
    """The groups of units that can be renumbered; printed, a table.

    Attributes:
        groups: The groups by name.
        axes: For each tensor with units of some group its axes, as products and sums of groups.
        pinned: For each other axis why it keeps its order.
        dropped: The groups that failed the proof, with how far outputs or gradients were apart.
        layout: The weights of the network.
    """

    groups: Mapping[str, Group]
    axes: Mapping[str, tuple[Term, ...]]
    pinned: Mapping[str, str]
    dropped: Mapping[str, float]
    layout: Layout

    @property
    def within(self) -> dict[str, str]:
        """The groups that are numbered within each unit of another, or of a pinned axis, with that one."""
        return {name: group.within for name, group in self.groups.items() if group.within}

    @property
    def share(self) -> float:
        """The share of the trainable parameters that lie in a tensor which can be renumbered."""
        sizes = dict(zip(self.layout.names, map(prod, self.layout.shapes), strict=True))
        return sum(sizes.get(name, 0) for name in self.axes) / self.layout.size

    def __str__(self) -> str:
        rows = [("group", "size", "axes"), *((g.name, str(g.size), _shortly(g)) for g in self.groups.values())]
        width = max(len(name) for name, _, _ in rows)
        counts = Counter(self.pinned.values())
        first = {why: name for name, why in reversed([*self.pinned.items()])}
        lines = [f"pinned: {first[why]}{f' and {n - 1} more' if n > 1 else ''}: {why}" for why, n in counts.items()]
        head = f"{len(self.groups)} group{'s' * (len(self.groups) != 1)}, {100 * self.share:.1f} % of the parameters"
        table = [f"{name:{width}}  {size:>5}  {axes}" for name, size, axes in rows]
        return "\n".join([head, *table, *lines])


def _shortly(group: Group) -> str:
    shown = ", ".join(f"{name}[{axis}]" for name, axis in group.axes[:3])
    more = f" and {len(group.axes) - 3} more" if len(group.axes) > 3 else ""
    return f"{shown}{more}" + (f"; in each of {group.within}" if group.within else "")


@dataclass(frozen=True, eq=False)
class Proposed:
    """Groups that are still to be proven.

    Attributes:
        groups: The groups by name.
        axes: For each tensor its axes, as in `Symmetries`.
        why: For each axis that is in no group, why it keeps its order.
        within: Groups of which each unit of another, or of a pinned axis, may have an order of its own, with that one.
        pinned: Those axes.
        by_hand: Whether a user has given them.
    """

    groups: Mapping[str, Group]
    axes: Mapping[str, tuple[Term, ...]]
    why: Mapping[str, str]
    within: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, Group] = field(default_factory=dict)
    by_hand: bool = False

    def turned(self, group: Group) -> dict[str, tuple[Term, ...]]:
        """The axes with the units of a group given by hand inside their other entries, as in the gates of an LSTM."""

        def turn(term: Term) -> Term:
            return (*term[:2], term[3], term[2]) if term[0] == "product" and term[2][2:] == (group.name,) else term

        return {name: tuple(map(turn, terms)) for name, terms in self.axes.items()}


def by_hand(groups: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Proposed:
    """Groups as a user gives them: name -> tensor -> its axis, or several."""
    if not groups or "" in groups:
        found = "one without a name" if groups else "none"
        raise ThalwegError(f"groups= must name at least one group; got {found}: leave it out to have them found")
    axes: dict[str, list[Term]] = {name: [("fixed", n) for n in t.shape] for name, t in tensors.items()}
    for group, members in groups.items():
        places = _places(group, members, tensors)
        size = min(axes[name][axis][1] for name, axis in places)
        for name, axis in places:
            rest, odd = divmod(axes[name][axis][1], size) if size else (0, 1)
            if odd or axes[name][axis][0] != "fixed":
                rule = "every axis is in one group and is a multiple of its shortest"
                raise ThalwegError(f"{rule}; axis {axis} of '{name}' in '{group}' is not: correct groups=")
            unit = ("group", size, group)
            axes[name][axis] = unit if rest == 1 else ("product", rest * size, unit, ("fixed", rest))
    why = {f"{n}[{k}]": "not in any group" for n in axes for k, t in enumerate(axes[n]) if t[0] == "fixed"}
    return Proposed(*grouped({name: tuple(each) for name, each in axes.items()}), why, by_hand=True)


def _places(group: str, members: Any, tensors: Mapping[str, Tensor]) -> list[tuple[str, int]]:
    """The axes of a group that a user gives, checked."""
    rule = "a group maps trainable tensors of the network, or batch-norm statistics, to their axes"
    if not isinstance(members, Mapping) or not members:
        raise ThalwegError(f"{rule}; '{group}' is {members!r}: correct groups=")
    places = [(name, axis) for name, given in members.items() for axis in _several(given)]
    for name, axis in places:
        if name not in tensors:
            raise ThalwegError(f"{rule}; '{group}' has '{name}', which is neither: correct groups=")
        dims = tensors[name].ndim
        if isinstance(axis, bool) or not isinstance(axis, Integral) or not -dims <= int(axis) < dims:
            raise ThalwegError(
                f"{rule}; '{group}' has '{name}': {axis!r}, which is not one of its axes: correct groups="
            )
    return [(name, int(axis)) for name, axis in places]


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) and given else (given,)


def grouped(axes: Mapping[str, tuple[Term, ...]]) -> tuple[dict[str, Group], dict[str, tuple[Term, ...]]]:
    """The groups that occur in axes, in the order in which they do, and the tensors that have any."""
    places: dict[str, dict[tuple[str, int], int]] = {}
    for tensor, terms in axes.items():
        for k, term in enumerate(terms):
            for name, size in sized(term):
                places.setdefault(name, {})[tensor, k] = size
    groups = {name: Group(name, next(iter(found.values())), tuple(found)) for name, found in places.items()}
    held = {tensor for group in groups.values() for tensor, _ in group.axes}
    return groups, {name: terms for name, terms in axes.items() if name in held}
