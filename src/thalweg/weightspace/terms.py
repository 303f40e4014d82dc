"""Axes as products and sums of named groups of units, out of the atoms that a trace has left."""

from collections.abc import Iterable, Iterator, Mapping

from .axes import Atom, choose, factors, find, product
from .permutation import Term


def leaves(axis: Atom) -> Iterator[Atom]:
    axis = find(axis)
    if not axis.parts:
        yield axis
    for part in axis.parts:
        yield from leaves(part)


def undecided(axis: Atom) -> Iterator[Atom]:
    """Choices whose chooser can itself be renumbered, so that they must be the same for all its units."""
    axis = find(axis)
    if axis.kind == "choice" and axis.chooser is not None and not all(leaf.pinned for leaf in leaves(axis.chooser)):
        yield axis
    for part in axis.parts:
        yield from undecided(part)


def in_groups(axis: Atom, names: Mapping[int, str]) -> Term:
    """An axis as a product or sum of groups, or fixed."""
    axis = find(axis)
    if not axis.parts:
        return ("group", axis.size, names[id(axis)]) if id(axis) in names else ("fixed", axis.size)
    whole = axis.kind == "product"
    parts = _chosen_terms(factors(axis), names) if whole else [in_groups(part, names) for part in axis.parts]
    if axis.kind == "choice" or all(part[0] == "fixed" for part in parts):
        return ("fixed", axis.size)
    return parts[0] if len(parts) == 1 else (axis.kind, axis.size, *parts)


def _chosen_terms(atoms: list[Atom], names: Mapping[int, str]) -> list[Term]:
    """The factors of a product; where one chooses among the alternatives of those after it, a sum over its units."""
    for k, atom in enumerate(atoms):
        if any(other.chooser is not None and find(other.chooser) is atom for other in atoms[k + 1 :]):
            rest = [product([choose(other, atom, i) for other in atoms[k + 1 :]]) for i in range(atom.size)]
            size = atom.size * rest[0].size
            return [
                *(in_groups(a, names) for a in atoms[:k]),
                ("sum", size, *(in_groups(each, names) for each in rest)),
            ]
    return [in_groups(atom, names) for atom in atoms]


def without(term: Term, dropped: Iterable[str]) -> Term:
    kind, size, *rest = term
    if kind == "group":
        return ("fixed", size) if rest[0] in dropped else term
    parts = [without(part, dropped) for part in rest]
    return ("fixed", size) if all(part[0] == "fixed" for part in parts) else (kind, size, *parts)


def sized(term: Term) -> Iterator[tuple[str, int]]:
    kind, size, *rest = term
    if kind == "group":
        yield rest[0], size
    elif kind != "fixed":
        for part in rest:
            yield from sized(part)
