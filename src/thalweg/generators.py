"""Random generators of torch, numpy and Python, global ones included: their states."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def is_generator(value: Any) -> bool:
    kinds = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def generator_state(generator: Any) -> Any:
    """A copy of its state, made of tensors, arrays, dicts, tuples and numbers."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case random.Random():
            return generator.getstate()
        case np.random.RandomState():
            return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_generator(generator: Any, state: Any) -> None:
    match generator:
        case torch.Generator() | np.random.RandomState():
            generator.set_state(state)
        case random.Random():
            generator.setstate(state)
        case _:
            getattr(generator, "bit_generator", generator).state = state


def global_randomness() -> dict[str, Any]:
    """The states of the global generators, by name."""
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        **{f"cuda{i}": torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())},
    }


def set_global_randomness(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for i in range(torch.cuda.device_count()):
        if f"cuda{i}" in states:  # there may be more GPUs than where they were saved
            torch.cuda.set_rng_state(states[f"cuda{i}"], i)


@contextmanager
def same_randomness() -> Iterator[None]:
    """Undo whatever is drawn inside from the global generators, such as by a network's own `__deepcopy__`."""
    before = global_randomness()
    try:
        yield
    finally:
        set_global_randomness(before)
