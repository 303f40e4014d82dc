"""The fingerprint of a call in its run folder: facts as JSON, and how two of them differ, in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose, isfinite
from typing import Any

from .content import digest_of

KIND = "fact"  # the key that marks a fact, as opposed to a plain setting
NAMED = 5  # settings of a table in an error; an optimizer with other groups differs in many
Fact = dict[str, Any]


def content(digest: str | None) -> Fact:
    """Identified by a hash of its content; None if there is none."""
    return {KIND: "content", "sha256": digest}


def sequence(digests: Sequence[str], owner: str, part: str, names: Sequence[str], fixed: int = 0) -> Fact:
    """Several items in order, such as the points of a curve, of which `fixed` are not counted as parts."""
    return {
        KIND: "sequence",
        "sha256": list(digests),
        "owner": owner,
        "part": part,
        "names": list(names),
        "fixed": fixed,
    }


def table(rows: Mapping[str, Any]) -> Fact:
    """Settings by name: as they are shown, if that is short, and by their content."""
    return {KIND: "table", "rows": {name: [_shown(value), digest_of(value)] for name, value in rows.items()}}


def numbers(values: Mapping[str, Sequence[float]], within: float, on: str = "") -> Fact:
    """Measured quantities: name -> its value, a random projection that distinguishes equal values, and a scale.

    Args:
        values: The quantities.
        within: How far they may differ, relative to the scale.
        on: The kind of device, if results of two kinds cannot be compared.
    """
    return {
        KIND: "numbers",
        "values": {name: list(value) for name, value in values.items()},
        "within": within,
        "on": on,
    }


def rates(values: Mapping[int, float]) -> Fact:
    """Learning rates at some iterations."""
    return {KIND: "rates", "values": {str(i): rate for i, rate in values.items()}}


def data(batches: int, parts: Mapping[str, str]) -> Fact:
    """A data set: how many batches, and hashes of some of them."""
    return {KIND: "data", "batches": batches, "parts": dict(parts)}


def is_fact(value: Any) -> bool:
    return isinstance(value, Mapping) and KIND in value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each difference as a clause: those of plain settings, or those of facts, which follow from settings, if there are
    none.

    >>> differences({"lr": 0.1, "the start": content("a")}, {"lr": 0.2, "the start": content("b")})
    ['lr was 0.1 and is 0.2']
    """
    found: dict[bool, list[str]] = {False: [], True: []}
    for key in sorted({*old, *new}):
        found[is_fact(new.get(key, old.get(key)))] += _compared(key, old.get(key), new.get(key))
    return found[False] or found[True]


def _compared(name: str, old: Any, new: Any) -> Iterator[str]:
    if is_fact(old) and is_fact(new) and old[KIND] == new[KIND]:
        yield from _COMPARE[new[KIND]](name, old, new)
    elif is_fact(old) or is_fact(new):
        named = name.removesuffix("'s")
        yield (
            f"it did not depend on {named} and does now" if old is None else f"it depended on {named} and does not now"
        )
    elif old != new:
        yield f"{name} was {old!r} and is {new!r}"


def _contents(name: str, old: Fact, new: Fact) -> Iterator[str]:
    before, now = old["sha256"], new["sha256"]
    if before != now:
        given = "was not given and is now" if before is None else "was given and is not now"
        yield f"{name} {given if None in (before, now) else 'has changed'}"


def _sequences(name: str, old: Fact, new: Fact) -> Iterator[str]:
    before, now = old["sha256"], new["sha256"]
    if len(before) != len(now):
        was, has = len(before) - new["fixed"], len(now) - new["fixed"]
        yield f"{new['owner']} had {was} {new['part']}{'s' * (was != 1)} and has {has}"
    else:
        yield from (f"{called} has changed" for called, a, b in zip(new["names"], before, now, strict=True) if a != b)


def _tables(name: str, old: Fact, new: Fact) -> Iterator[str]:
    before, now, absent = old["rows"], new["rows"], ["absent", ""]
    pairs = {key: (before.get(key, absent), now.get(key, absent)) for key in now | before}
    changed = {key: (was, shows) for key, ((was, one), (shows, two)) in pairs.items() if one != two}
    for key, (was, shows) in [*changed.items()][:NAMED]:
        said = f"was {was} and is {shows}" if was and shows and was != shows else "has changed"
        yield f"{name} {key} {said}"
    if len(changed) > NAMED:
        yield f"{name} other settings have changed, too"


def _numbers(name: str, old: Fact, new: Fact) -> Iterator[str]:
    before, now, within = old["values"], new["values"], max(old["within"], new["within"])
    if old["on"] != new["on"]:  # dropout masks differ between kinds of devices
        return
    for key in now | before:
        if key not in before or key not in now:
            change = "is known now and was not" if key in now else "was known and cannot be computed now"
            yield f"the {key} of {name} {change}"
        elif not near(before[key], now[key], within):
            was, shows = (f"{values[key][0]:.6g}" for values in (before, now))
            yield f"the {key} of {name} " + (
                f"was {was} when this run began and is {shows} now"
                if was != shows
                else "has changed, though not in the mean"
            )


def near(old: Sequence[float], new: Sequence[float], within: float) -> bool:
    """Whether two values and projections are equal up to rounding."""
    scale = max(abs(old[-1]), abs(new[-1]))
    allowed = within * scale if isfinite(scale) else 0.0
    return all(
        abs(a - b) <= allowed if isfinite(a - b) else str(a) == str(b) for a, b in zip(old[:-1], new[:-1], strict=True)
    )


def _rates(name: str, old: Fact, new: Fact) -> Iterator[str]:
    """The first that differs; a run of another length has rates at other iterations, and differs by that."""
    before, now = old["values"], new["values"]
    odd = [i for i in now if i in before and not isclose(before[i], now[i], rel_tol=1e-9)]
    if odd:
        yield f"{name} at iteration {odd[0]} was {before[odd[0]]:.6g} and is {now[odd[0]]:.6g}"


def _data(name: str, old: Fact, new: Fact) -> Iterator[str]:
    before, now = old["parts"], new["parts"]
    if old["batches"] != new["batches"]:
        yield f"the number of batches in {name} was {old['batches']} and is {new['batches']}"
    else:
        changed = (part for part in sorted({*before, *now}) if before.get(part) != now.get(part))
        yield from (f"{part} of {name} has changed" for part in changed)


_COMPARE: dict[str, Callable[[str, Fact, Fact], Iterator[str]]] = {
    "content": _contents,
    "sequence": _sequences,
    "table": _tables,
    "numbers": _numbers,
    "rates": _rates,
    "data": _data,
}


def _shown(value: Any) -> str:
    """Empty if it is long or holds a memory address."""
    shown = repr(value)
    return shown if len(shown) <= 80 and " at 0x" not in shown else ""
