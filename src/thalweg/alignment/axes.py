"""Axes of tensors as products and sums of atoms: which of them must be renumbered together, and which not at all.

An atom is a set of units. Joining two (`unify`) makes them one; a reshape refines an atom into a product, a split or
a concatenation into a sum. All tensors that mention an atom see its refinement.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

FEW = 4  # parts of a packed axis, such as queries, keys and values, that may be distinguished by index
APART = "it is taken apart in ways that do not fit together"
INDEXED = "its units are chosen by index"


@dataclass(eq=False, slots=True)
class Atom:
    """A set of units: a leaf, a product or a sum of others, or one of several, chosen by the index of another atom."""

    size: int
    kind: str = ""
    parts: "tuple[Atom, ...]" = ()
    chooser: "Atom | None" = None
    link: "Atom | None" = None
    pinned: str = ""


class Axes(tuple[Atom, ...]):
    """The axes of a tensor."""

    __slots__ = ()


def find(atom: Atom) -> Atom:
    while atom.link is not None:
        atom = atom.link
    return atom


def fresh(shape: Iterable[int], why: str = "") -> Axes:
    """New axes, pinned if there is a reason."""
    return Axes(Atom(size, pinned=why) for size in shape)


def product(atoms: Sequence[Atom]) -> Atom:
    atoms = [atom for atom in atoms if atom.size > 1]
    if len(atoms) < 2:
        return atoms[0] if atoms else Atom(1)
    return Atom(prod(atom.size for atom in atoms), "product", tuple(atoms))


def total(atoms: Sequence[Atom]) -> Atom:
    return atoms[0] if len(atoms) == 1 else Atom(sum(atom.size for atom in atoms), "sum", tuple(atoms))


def factors(atom: Atom) -> list[Atom]:
    """What an axis is the product of, the outermost first."""
    atom = find(atom)
    if atom.kind == "product":
        return list(chain.from_iterable(map(factors, atom.parts)))
    return [atom] if atom.size > 1 else []


def terms(atom: Atom) -> list[Atom]:
    """What an axis is the concatenation of."""
    atom = find(atom)
    if atom.kind == "sum":
        return list(chain.from_iterable(map(terms, atom.parts)))
    first, *rest = factors(atom) or [atom]
    return [product([term, *rest]) for term in terms(first)] if rest and first.kind == "sum" else [atom]


def leaves(axis: Atom) -> Iterator[Atom]:
    """The atoms without parts that it is made of."""
    axis = find(axis)
    if not axis.parts:
        yield axis
    for part in axis.parts:
        yield from leaves(part)


def pin(atom: Atom, why: str) -> None:
    """Units that keep their order."""
    atom = find(atom)
    pin_all(atom.parts, why)
    if not atom.parts:
        atom.pinned = atom.pinned or why


def pin_all(atoms: Iterable[Atom], why: str) -> None:
    for atom in atoms:
        pin(atom, why)


def merge_pinned(axis: Atom) -> None:
    """Take a concatenation of units that keep their order for one set of them."""
    for atom in factors(axis):
        if atom.kind == "sum" and all(leaf.pinned for leaf in leaves(atom)):
            atom.pinned, atom.kind, atom.parts = next(leaves(atom)).pinned, "", ()


def refine(atom: Atom, kind: str, parts: Iterable[Atom]) -> tuple[Atom, ...]:
    atom.kind, atom.parts, atom.chooser = kind, tuple(parts), None
    if atom.pinned:
        pin(atom, atom.pinned)
    return atom.parts


def settle(choice: Atom) -> None:
    """Make the alternatives of a choice one."""
    for part in choice.parts[1:]:
        unify(choice.parts[0], part)
    choice.link = choice.parts[0]


def settle_loose(axes: Axes) -> None:
    """Settle what is chosen by the index of another axis; an operation may mix along that."""
    for axis in axes:
        inside = factors(axis)
        for atom in inside:
            if atom.kind == "choice" and atom.chooser is not None and find(atom.chooser) not in inside:
                settle(atom)


def choose(atom: Atom, chooser: Atom, index: int) -> Atom:
    """What an axis is where the chooser has this index."""
    atom = find(atom)
    if atom.kind == "choice" and atom.chooser is not None and find(atom.chooser) is find(chooser):
        return atom.parts[index]
    if not atom.parts:
        return atom
    by = factors(atom.chooser) if atom.kind == "choice" and atom.chooser is not None else []
    if len(by) > 1 and find(chooser) in (by[0], by[-1]):  # of layers times directions, one or the other
        each = len(atom.parts) // by[0].size
        first = find(chooser) is by[0]
        rest = atom.parts[index * each : (index + 1) * each] if first else atom.parts[index :: by[-1].size]
        return chosen(rest, product(by[1:] if first else by[:-1]))
    both = find(chooser).chooser, atom.chooser
    alike = both[0] and both[1] and find(both[0]) is find(both[1])  # then each part has a chooser of its own
    own = find(chooser).parts if alike else (chooser,) * len(atom.parts)
    parts = [choose(part, mine, index) for part, mine in zip(atom.parts, own, strict=True)]
    if all(new is find(old) for new, old in zip(parts, atom.parts, strict=True)):
        return atom
    if atom.kind == "choice":
        return Atom(parts[0].size, "choice", tuple(parts), atom.chooser)
    return product(parts) if atom.kind == "product" else total(parts)


def split(atom: Atom, outer: int) -> Sequence[Atom] | None:
    """Refine an atom into `outer` times the rest; None where that is not possible."""
    inner = atom.size // outer
    if atom.kind == "choice":
        halves = [regroup([part], (outer, inner)) for part in atom.parts]
        if any(half is None for half in halves):
            return None
        pairs = zip(*(half for half in halves if half), strict=True)
        return refine(atom, "product", [Atom(p[0].size, "choice", p, atom.chooser) for p in pairs])
    if atom.size % outer:
        return None
    if atom.kind == "sum":  # of parts of one size, distinguished by their index
        parts, first = pieces(atom, [inner] * outer), Atom(outer, pinned=INDEXED)
        return parts and refine(atom, "product", [first, chosen(parts, first)])
    first, rest = Atom(outer), Atom(inner)
    if outer <= FEW and not atom.pinned:
        rest = Atom(inner, "choice", fresh([inner] * outer), first)
    return refine(atom, "product", [first, rest])


def chosen(parts: Sequence[Atom], chooser: Atom) -> Atom:
    """One of several parts of the same size, by the index of the chooser."""
    alike = parts[0].size == 1 or all(find(part) is find(parts[0]) for part in parts)
    return parts[0] if alike else Atom(parts[0].size, "choice", tuple(parts), chooser)


def pieces(atom: Atom, sizes: Sequence[int]) -> list[Atom] | None:
    """Parts of these sizes, one after another; None where that is not possible."""
    found: list[Atom] = []
    for size in sizes[:-1]:
        halves = cut(atom, size) if 0 < size < atom.size else None
        if halves is None:
            return None
        found, atom = [*found, halves[0]], halves[1]
    return [*found, atom]


def regroup(atoms: Iterable[Atom], sizes: Iterable[int]) -> Axes | None:
    """The axes after a reshape; None where it takes apart what has no parts."""
    queue, found = list(atoms), []
    for size in sizes:
        taken: list[Atom] = []
        while size > 1:
            if not queue:
                return None
            atom = find(queue.pop(0))
            if atom.kind == "product":
                queue = [*factors(atom), *queue]
            elif size % atom.size == 0:
                taken, size = [*taken, atom], size // atom.size
            elif atom.size % size == 0 and (halves := split(atom, size)):
                queue = [*halves, *queue]
            else:
                return None
        found.append(product(taken))
    return Axes(found)


def parted(atom: Atom, outer: int) -> Axes:
    """An axis as `outer` parts of the same size; pinned where it cannot be taken apart like that."""
    sizes = outer, atom.size // outer
    found = regroup([atom], sizes)
    if found is None:
        pin(atom, APART)
    return found or fresh(sizes, APART)


def cut(atom: Atom, at: int) -> Sequence[Atom] | None:
    """The units before `at` and those from it on; None where that is not possible."""
    atom = find(atom)
    if atom.kind == "choice":
        each = [cut(part, at) for part in atom.parts]
        pairs = zip(*(halves for halves in each if halves), strict=True)
        chooser = atom.chooser or Atom(1)
        return None if None in each else refine(atom, "sum", [chosen(pair, chooser) for pair in pairs])
    if not atom.kind:
        return refine(atom, "sum", [Atom(at), Atom(atom.size - at)])
    if atom.kind == "product" and len(terms(atom)) == 1:
        return _cut_product(factors(atom), at)
    before, after = [], terms(atom)
    while at >= after[0].size:
        at -= after[0].size
        before.append(after.pop(0))
    if at:
        halves = cut(after[0], at)
        if halves is None:
            return None
        before, after = [*before, halves[0]], [halves[1], *after[1:]]
    return total(before), total(after)


def _cut_product(atoms: Sequence[Atom], at: int) -> Sequence[Atom] | None:
    """The same for a product, between units of its first factor or, where the others are pinned, within one of them."""
    first, *rest = atoms
    for other in rest:
        if other.kind == "choice" and other.chooser is not None and find(other.chooser) not in rest:
            settle(other)
    inner = prod(other.size for other in rest)
    units, odd = divmod(at, inner)
    if odd and not all(leaf.pinned for other in rest for leaf in leaves(other)):
        return None
    sizes = [units, 1, first.size - units - 1] if odd else [units, first.size - units]
    found = pieces(first, [size for size in sizes if size])
    if found is None:
        return None
    parts = [product([piece, *rest]) for piece in found]
    if not odd:
        return parts
    middle = 1 if units else 0
    left, right = fresh([odd, inner - odd], INDEXED)
    return total([*parts[:middle], left]), total([right, *parts[middle + 1 :]])


def unify(one: Atom, two: Atom) -> None:
    """From now on both are renumbered together."""
    one, two = find(one), find(two)
    if one is two or one.size == 1 or two.size == 1:
        return
    if one.size != two.size:
        return pin_all([one, two], APART)
    if one.chooser and two.chooser and find(one.chooser) is find(two.chooser):
        for mine, yours in zip(one.parts, two.parts, strict=True):
            unify(mine, yours)
        one.link = None if find(two) is one else two
        return
    for atom in (one, two):
        if atom.kind == "choice":
            settle(atom)
            return unify(one, two)
    if one.kind and not two.kind:
        one, two = two, one
    if not one.kind:
        one.link = two
        if one.pinned:
            pin(two, one.pinned)
        return
    added = [terms(one), terms(two)]
    sums = max(map(len, added)) > 1
    parts, divide = (added, cut) if sums else ([factors(one), factors(two)], split)
    if not _side_by_side(parts[0], parts[1], divide):
        pin_all([one, two], APART)
    more, less = (one, two) if one.kind == "product" else (two, one)
    less.link = None if find(more) is less else more  # or what is alike would be found again and again


def _side_by_side(one: list[Atom], two: list[Atom], divide: Callable[[Atom, int], Sequence[Atom] | None]) -> bool:
    """Unify the parts of two axes in order, dividing the larger of each pair."""
    while one and two:
        first, second = find(one[0]), find(two[0])
        if divide is split and (first.kind == "product" or second.kind == "product"):
            one, two = [*factors(first), *one[1:]], [*factors(second), *two[1:]]
        elif first.size == second.size:
            unify(first, second)
            one, two = one[1:], two[1:]
        else:
            big, size = (one, second.size) if first.size > second.size else (two, first.size)
            atom = find(big[0])
            if divide is split and atom.kind == "choice":
                settle(atom)
                continue
            halves = divide(atom, size)
            if halves is None:
                return False
            big[:1] = halves
    return True
