"""A seed for the length of a call, whatever happens in it."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

from thalweg.object_state import changed
from thalweg.runtime.rng import capture, seeded, undisturbed


def draw():
    return torch.rand(1).item(), random.random(), np.random.rand()


def test_rng_state_of_the_caller_is_restored_also_after_an_error():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = draw()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with pytest.raises(ZeroDivisionError), seeded(5):
        draw()[0] / 0
    assert draw() == expected


def test_seed_decides_every_source_of_randomness():
    with seeded(5):
        first = draw()
    with seeded(5):
        assert draw() == first
    with seeded(6):
        assert draw() != first


@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_seed_reaches_loaders_with_a_generator_of_their_own(where):
    generator = torch.Generator().manual_seed(9)
    if where == "loader":
        loader = DataLoader(range(20), 5, shuffle=True, generator=generator)
    else:
        loader = DataLoader(range(20), 5, sampler=RandomSampler(range(20), generator=generator))
    state = generator.get_state()
    orders = []
    for _ in range(2):
        with seeded(3, loader):
            orders.append(torch.cat(list(loader)))
    assert torch.equal(*orders)
    assert torch.equal(generator.get_state(), state)


class Cropping:
    """A transform with a generator of its own, as many are written."""

    def __init__(self, generator):
        self.generator = generator


class Slotted:
    __slots__ = ("generator",)

    def __init__(self, generator):
        self.generator = generator


RNG = random.Random(0)
MAKE = {
    "torch": lambda: torch.Generator().manual_seed(9),
    "numpy": lambda: np.random.default_rng(9),
    "philox": lambda: np.random.Generator(np.random.Philox(9)),
    "bits": lambda: np.random.PCG64(9),
    "legacy": lambda: np.random.RandomState(9),
    "python": lambda: random.Random(9),
}


def one_number(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    if isinstance(generator, np.random.BitGenerator):
        return np.random.Generator(generator).random()
    return generator.random()


def held(generator):
    """One generator in every kind of hiding place."""

    def closing(items):
        return one_number(generator)

    def defaulting(items, source=generator):
        return one_number(source)

    return {
        "attribute": Cropping(generator),
        "slot": Slotted(generator),
        "list": [Cropping([generator])],
        "dict": {"crop": (0, generator)},
        "partial": partial(one_number, generator),
        "method": Cropping(generator).__init__,
        "closure": closing,
        "default": defaulting,
        "data set": DataLoader(Subset(Numbers(Cropping(generator)), range(3))),
        "batch sampler": DataLoader(
            range(9), batch_sampler=BatchSampler(RandomSampler(range(9), generator=generator), 3, False)
        ),
        "module": torch.nn.Sequential(Noise(generator)),
    }


class Numbers(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 9

    def __getitem__(self, i):
        return i


class Noise(torch.nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("where", held(MAKE["torch"]()))
def test_every_generator_is_found_seeded_and_restored(kind, where):
    generator = MAKE[kind]()
    source, drawn = held(generator)[where], []
    for _ in range(2):
        with seeded(3, source):
            drawn.append(one_number(generator))
    with undisturbed(source):
        one_number(generator)
    assert drawn[0] == drawn[1]
    assert one_number(generator) == one_number(MAKE[kind]())


def test_global_generator_that_a_function_names_is_found():
    with undisturbed(lambda: RNG.random()):
        RNG.random()
    assert RNG.random() == random.Random(0).random()


class Counting:
    """Counts in an attribute, on its class, in a dict and in a variable, and shuffles a list and an array in place."""

    passes = 0

    def __init__(self):
        self.epoch, self.story, self.order, self.array = 0, {"calls": 0}, list(range(9)), np.arange(9)
        inside = 0

        def count():
            nonlocal inside
            inside += 1
            return inside

        self.count = count

    def __len__(self):
        return 9

    def __iter__(self):
        self.epoch += 1
        self.lazily = self.epoch
        Counting.passes += 1
        self.story["calls"] += 1
        random.shuffle(self.order)
        np.random.shuffle(self.array)
        return iter([*self.order, *self.array, self.epoch, self.passes, self.story["calls"], self.count()])


def test_undisturbed_undoes_what_a_block_counts():
    batches, order = Counting(), None
    with undisturbed(batches):
        first = list(batches)
    order = batches.order
    assert not hasattr(batches, "lazily")
    assert list(batches) == first
    assert batches.order is order


def test_generator_search_visits_a_cycle_and_a_large_set_once():
    batches = Counting()
    batches.itself, batches.big = batches, [[torch.zeros(2, 2)] for _ in range(100_000)]
    with undisturbed(batches):
        list(batches)
    assert batches.epoch == 0


def test_only_generators_that_moved_are_named():
    batches = Counting()
    batches.root = "data"
    before = capture(batches)
    batches.epoch += 1
    assert changed(before, capture(batches)) == {"0/epoch"}
