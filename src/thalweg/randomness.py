"""A seed for the length of a call; the caller's random states come back as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    kept = [generator.get_state() for generator in generators]
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
