"""A seed for the length of a call; the caller's random states come back as they were."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch


@contextmanager
def seeded(seed: int, *sources: Any) -> Iterator[None]:
    """Seed torch, numpy and random, and the generators that belong to `sources` (data loaders and the like).

    >>> with seeded(0):
    ...     first = torch.rand(2)
    >>> with seeded(0):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    generators = list(_generators(sources))
    world = World.present
    kept = [generator.get_state() if world is None else world.before(generator) for generator in generators]
    if world is not None:
        world.generators += generators
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for generator, state in zip(generators, kept, strict=True):
                generator.set_state(state)
            if world is not None:
                del world.generators[len(world.generators) - len(generators) :]


class World:
    """All random states as one of several runs that take turns knows them, the generators that it was seeded with included.

    seed: where it begins, None for where things stand. On CUDA cards it then has states of its own, since a recorded graph keeps
        the one it was recorded with.
    shared: in what state the first of the runs found each generator that they share.
    """

    present: ClassVar["World | None"] = None

    def __init__(self, seed: int | None = None, shared: dict[int, tuple[torch.Generator, torch.Tensor]] | None = None) -> None:
        self.generators: list[torch.Generator] = []
        self.shared = {} if shared is None else shared
        defaults = torch.cuda.default_generators
        self.kept: tuple[torch.Tensor, Any, Any, list[torch.Tensor]]
        self.cuda = [g.graphsafe_get_state() if seed is None else g.clone_state() for g in defaults]
        self.leave()
        if seed is not None:
            for own in self.cuda:
                own.manual_seed(seed)
            cpu = torch.Generator().manual_seed(seed).get_state()
            self.kept = cpu, random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state(), []

    def before(self, generator: torch.Generator) -> torch.Tensor:
        """The state to put back when it is no longer used here."""
        inside = any(generator is known for known in self.generators)
        return generator.get_state() if inside else self.shared.setdefault(id(generator), (generator, generator.get_state()))[1]

    def leave(self) -> None:
        own = [generator.get_state() for generator in self.generators]
        self.kept = torch.get_rng_state(), random.getstate(), np.random.get_state(), own
        if World.present is self:  # a recording that failed may have put another in its place
            self.cuda = [generator.graphsafe_get_state() for generator in torch.cuda.default_generators]

    def enter(self) -> None:
        World.present = self
        cpu, python, numpy, own = self.kept
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(self.generators, own, strict=True):
            generator.set_state(state)
        for default, own_state in zip(torch.cuda.default_generators, self.cuda, strict=True):
            default.graphsafe_set_state(own_state)


def capture(*sources: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Where every source of randomness stands: tensors, and what JSON can hold."""
    tensors = {"torch": torch.get_rng_state()}
    for i in range(torch.cuda.device_count()):
        tensors[f"cuda{i}"] = torch.cuda.get_rng_state(i)
    for i, generator in enumerate(_generators(sources)):
        tensors[f"own{i}"] = generator.get_state()
    version, state, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    return tensors, {"python": [version, list(state), gauss], "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def reinstate(tensors: Mapping[str, torch.Tensor], other: Mapping[str, Any], *sources: Any) -> None:
    """Put every source of randomness back where `capture` found it."""
    torch.set_rng_state(tensors["torch"])
    for i in range(torch.cuda.device_count()):
        if f"cuda{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda{i}"], i)
    for i, generator in enumerate(_generators(sources)):
        generator.set_state(tensors[f"own{i}"])
    version, state, gauss = other["python"]
    random.setstate((version, tuple(state), gauss))
    kind, keys, *rest = other["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))


def _generators(sources: tuple[Any, ...]) -> Iterator[torch.Generator]:
    """A DataLoader keeps its generator on itself, its sampler, or its batch sampler's sampler."""
    seen: set[int] = set()
    for source in sources:
        sampler = getattr(source, "sampler", None)
        batch_sampler = getattr(source, "batch_sampler", None)
        for owner in (source, sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and id(generator) not in seen:
                seen.add(id(generator))
                yield generator
