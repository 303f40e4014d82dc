"""What products that are summed over axes do to these: einsum, matrix products, distances."""

from collections.abc import Collection, Mapping, Sequence

from .axes import Atom, Axes, unify
from .tensors import Operation, broadcast


def contract(call: Operation, equation: str, *tensors: Axes | None) -> Axes:
    """An einsum: a letter is one atom, and the dots stand for axes that are broadcast."""
    given, _, wanted = equation.partition("->")
    found: dict[str, Atom] = {}
    middles, every = [], []
    for spelled, axes in zip(given.split(","), tensors, strict=False):
        if axes is None:
            continue
        head, _, tail = spelled.partition("...")
        last = len(axes) - len(tail)
        middles.append(Axes(axes[len(head) : last]))
        own = [*zip(head + tail, axes[: len(head)] + axes[last:], strict=True)]
        for letter, axis in own:
            if found.setdefault(letter, axis).size == 1:
                found[letter] = axis
            unify(found[letter], axis)
        every.append(dict(own) | {f"...{k}": axis for k, axis in enumerate(reversed(middles[-1]))})
    middle, (head, dots, tail) = broadcast(*middles), wanted.partition("...")
    _note_mixing(call, every, {*wanted, *(f"...{k}" for k in range(len(middle)) if dots)})
    return Axes([*(found[each] for each in head), *(middle if dots else ()), *(found[each] for each in tail)])


def _note_mixing(call: Operation, tensors: Sequence[Mapping[str, Atom]], kept: Collection[str]) -> None:
    """What is summed over mixes what stays beside it; an axis that another tensor lacks mixes what the two share."""
    for own in tensors:
        for letter, axis in own.items():
            lacking = [each for each in tensors if letter not in each]
            mixed = [
                other
                for name, other in own.items()
                if (letter not in kept and name in kept) or any(name in each for each in lacking)
            ]
            call.mix(axis, mixed)


def einsum(call: Operation) -> Axes:
    given, arrow, wanted = call["equation"].replace(" ", "").partition("->")
    letters = given.replace("...", "").replace(",", "")
    once = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    return contract(call, f"{given}->{wanted if arrow else '...' * ('...' in given) + once}", *call["tensors"])


def matmul(call: Operation) -> Axes:
    *added, one, two = call.tensors
    left, right = ("...ij" if len(one) > 1 else "j"), ("...jk" if len(two) > 1 else "j")
    dots = "..." if len(left) > 1 or len(right) > 1 else ""
    return broadcast(contract(call, f"{left},{right}->{dots}{left[3:4]}{right[4:]}", one, two), *added)


def distances(call: Operation) -> Axes:
    return contract(call, "...id,...jd->...ij", *call.tensors)
