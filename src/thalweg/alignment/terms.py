"""Axes as products and sums of named groups of units, out of the atoms that a trace has left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .axes import Atom, choose, factors, find
from .permutation import Term


def undecided(axes: Sequence[Atom]) -> Iterator[Atom]:
    """Choices in a tensor by something that is no single axis of it, or can itself be renumbered."""
    atoms = [atom for axis in axes for atom in factors(axis)]
    if (at := next((k for k, atom in enumerate(atoms) if atom.kind == "sum" or _alike(atom)), None)) is not None:
        for part in dict.fromkeys(map(find, atoms[at].parts)):
            yield from undecided([*atoms[:at], part, *atoms[at + 1 :]])
        return
    choice = next((atom for atom in atoms if atom.kind == "choice"), None)
    if choice is None or choice.chooser is None:
        return
    chooser = find(choice.chooser)
    if atoms.count(chooser) != 1 or not chooser.pinned:
        yield choice
        return
    for k in range(chooser.size):
        yield from undecided([choose(atom, chooser, k) for atom in atoms if atom is not chooser])


def _alike(atom: Atom) -> bool:
    """Whether this chooses among parts that have become one."""
    return atom.kind == "choice" and all(find(part) is find(atom.parts[0]) for part in atom.parts)


def in_groups(axes: Sequence[Atom], names: Mapping[int, str]) -> tuple[Term, ...]:
    """The axes of a tensor as products and sums of groups, or fixed; one that chooses among others has a number."""
    loose = {id(choice) for choice in undecided(axes)}
    keys: dict[int, int] = {}

    def term(axis: Atom) -> Term:
        axis = find(axis)
        if not axis.parts:
            key = (keys[id(axis)],) if id(axis) in keys else ()
            unit = id(axis) in names and not key
            return ("group", axis.size, names[id(axis)]) if unit else ("fixed", axis.size, *key)
        if _alike(axis):
            return term(axis.parts[0])
        parts, key = factors(axis) if axis.kind == "product" else axis.parts, ()
        if axis.kind == "choice" and axis.chooser is not None:
            chooser = find(axis.chooser)
            key = (keys.setdefault(id(chooser), len(keys)),)
            parts = [choose(part, chooser, k) for k, part in enumerate(parts)]
        found = [term(part) for part in parts]
        taken_apart = axis.chooser is not None and find(axis.chooser).parts
        if id(axis) in loose or taken_apart or all(each == ("fixed", each[1]) for each in found):
            return ("fixed", axis.size)
        return found[0] if len(found) == 1 else (axis.kind, axis.size, *key, *found)

    for axis in axes:
        term(axis)  # which numbers those that choose
    return tuple(map(term, axes))


def without(term: Term, dropped: Iterable[str]) -> Term:
    kind, size, *rest = term
    if kind == "group":
        return ("fixed", size) if rest[0] in dropped else term
    return (kind, size, *(without(part, dropped) if isinstance(part, tuple) else part for part in rest))


def sized(term: Term) -> Iterator[tuple[str, int]]:
    kind, size, *rest = term
    if kind == "group":
        yield rest[0], size
    for part in rest if kind != "group" else ():
        if isinstance(part, tuple):
            yield from sized(part)
