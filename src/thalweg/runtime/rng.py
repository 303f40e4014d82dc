"""A seed for the duration of a call; the caller's random states are restored afterwards."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..errors import ThalwegError
from ..generators import (
    generator_state,
    global_randomness,
    is_generator,
    same_randomness,
    set_generator,
    set_global_randomness,
)
from ..object_state import ABSENT, Found, generators, marked, moved, numbered, put_back, traverse, values

Snapshot = dict[str, Any]
MEASURING = 0x7E42  # the seed of what is measured: not one of training, whose dropout and crops the network knows


@contextmanager
def seeded(seed: int, *sources: Any, states: "RandomStates | None" = None) -> Iterator[None]:
    """Seed torch, numpy and random, and every generator inside `sources` (data loaders and the like), within a block.

    Examples:
        >>> with seeded(0):
        ...     first = torch.rand(2)
        >>> with seeded(0):
        ...     bool((torch.rand(2) == first).all())
        True

    Args:
        seed: The seed.
        sources: Objects that may hold generators.
        states: The random states of an interleaved run, during which other runs take steps.
    """
    if not -(2**63) <= seed < 2**63:
        raise ThalwegError(f"a seed must fit into 64 bits; got {seed}")
    own = generators(*sources)
    kept = [generator_state(generator) if states is None else states.before(generator) for generator in own]
    if states is not None:
        states.generators += own
    with same_randomness():
        seed_all(seed)
        for generator in own:
            seed_generator(generator, seed)
        try:
            yield
        finally:
            for generator, state in zip(own, kept, strict=True):
                set_generator(generator, state)
            if states is not None:
                del states.generators[len(states.generators) - len(own) :]


def seed_generator(generator: Any, seed: int) -> None:
    match generator:
        case torch.Generator():
            generator.manual_seed(seed)
        case random.Random():
            generator.seed(seed)
        case np.random.RandomState():
            generator.seed(seed % 2**32)
        case _:
            bits = getattr(generator, "bit_generator", generator)
            bits.state = type(bits)(seed % 2**64).state


def seed_all(seed: int) -> None:
    """Seed torch, numpy and random."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    elif torch.accelerator.is_available():
        torch.manual_seed(seed)  # slower: it records a traceback for every kind of device that is missing
    random.seed(seed)
    np.random.seed(seed % 2**32)


class RandomStates:
    """All random states of one of several interleaved runs, including the generators it was seeded with.

    Args:
        seed: The seed, or None to start from the current states. With a seed it has its own states on CUDA GPUs, since
            a captured graph keeps the one it was captured with.
        shared: The state in which the first of the runs found each generator that they share.
    """

    def __init__(self, seed: int | None = None, shared: dict[int, tuple[Any, Any]] | None = None) -> None:
        self.generators: list[Any] = []
        self.shared = {} if shared is None else shared
        defaults = torch.cuda.default_generators
        self.kept: tuple[torch.Tensor, Any, Any, list[torch.Tensor]]
        self.cuda = [g.graphsafe_get_state() if seed is None else g.clone_state() for g in defaults]
        self.inside = False
        self.leave()
        if seed is not None:
            for own in self.cuda:
                own.manual_seed(seed)
            cpu = torch.Generator().manual_seed(seed).get_state()
            self.kept = cpu, random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state(), []

    def before(self, generator: Any) -> Any:
        """The state to restore when the generator is no longer used here."""
        state, inside = generator_state(generator), any(generator is known for known in self.generators)
        return state if inside else self.shared.setdefault(id(generator), (generator, state))[1]

    def leave(self) -> None:
        own = [generator_state(generator) for generator in self.generators]
        self.kept = torch.get_rng_state(), random.getstate(), np.random.get_state(), own
        if self.inside:  # a failed capture may have replaced it
            self.cuda = [generator.graphsafe_get_state() for generator in torch.cuda.default_generators]
        self.inside = False

    def enter(self) -> None:
        self.inside = True
        cpu, python, numpy, own = self.kept
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(self.generators, own, strict=True):
            set_generator(generator, state)
        for default, own_state in zip(torch.cuda.default_generators, self.cuda, strict=True):
            default.graphsafe_set_state(own_state)


def capture(*sources: Any) -> Snapshot:
    """The state of every source of randomness, and the counters and orders of `sources`, by name."""
    return global_randomness() | values(traverse(numbered(sources)))


def reinstate(before: Mapping[str, Any], *sources: Any) -> None:
    """Restore everything named to what `capture` found."""
    _restore(before, traverse(numbered(sources)))


@contextmanager
def undisturbed(*sources: Any, seed: int | None = None, whole: bool = False) -> Iterator[None]:
    """Undo whatever the block draws from the global generators or from `sources`, or counts in them; of an object in
    which something else changed that cannot be undone, such as what it caches, generators alone.

    >>> with undisturbed():
    ...     first = torch.rand(2)
    >>> bool((torch.rand(2) == first).all())
    True

    Args:
        sources: Objects that may hold generators and counters.
        seed: For all generators within the block; by default they go on from where they are.
        whole: Undo changes of large tensors and nested containers, too, of which copies are made.
    """
    first = traverse(numbered(sources), whole)
    before, marks = global_randomness() | values(first), marked(first)
    if seed is not None:
        seed_all(seed)
        for place in first.places.values():
            if is_generator(place.value):
                seed_generator(place.value, seed)
    try:
        yield
    finally:
        found = traverse(numbered(sources), whole)
        known = dict.fromkeys(found.places, ABSENT) | before
        kept = moved(first, marks, found)
        drawn = {name for name, place in (first.places | found.places).items() if is_generator(place.value)}
        _restore({name: known[name] for name in known if name in drawn or not name.startswith(kept)}, found)


def _restore(before: Mapping[str, Any], found: Found) -> None:
    """What belongs to a source has a path, which begins with its number."""
    own = {name: value for name, value in before.items() if name[0].isdigit()}
    put_back(own, found)
    if len(own) < len(before):
        set_global_randomness(before)
