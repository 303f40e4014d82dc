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


class Shards:
    """Keeps the part of the data that it has loaded last; `kept` says in what."""

    def __init__(self, kept):
        self.kept, self.data = kept, torch.arange(24.0).reshape(4, 3, 2)
        self.number, self.shard, self.order, self.recent = 0, self.data[0].clone(), [], {}
        self.array = self.shard.numpy().copy()

    def __getitem__(self, k):
        number = k // 3
        if self.kept == "recent":
            if number not in self.recent:
                self.recent[number] = self.data[number].clone()
                if len(self.order) == 2:
                    del self.recent[self.order.pop(0)]
            else:
                self.order.remove(number)
            self.order.append(number)
            return self.recent[number][k % 3].tolist()
        if number != self.number:
            self.number = number
            if self.kept == "another tensor":
                self.shard = self.data[number].clone()
            elif self.kept == "the same tensor":
                self.shard.copy_(self.data[number])
            else:
                self.array[:] = self.data[number].numpy()
        return (self.array if self.kept == "array" else self.shard)[k % 3].tolist()


@pytest.mark.parametrize("kept", ["another tensor", "the same tensor", "array", "recent"])
@pytest.mark.parametrize("around", [lambda data: data, lambda data: [data], lambda data: {"a": (data,)}])
def test_undisturbed_leaves_data_that_keep_what_they_loaded_consistent(kept, around):
    """A number that says what is in a cache must not be put back without the cache."""
    data, expected = Shards(kept), torch.arange(24.0).reshape(12, 2).tolist()
    for first in (0, 4, 8, 2):
        with undisturbed(around(data)):
            assert [data[k] for k in range(first, 12)] == expected[first:]
        assert [data[k] for k in range(12)] == expected


def test_undisturbed_puts_generators_back_next_to_what_it_leaves_alone():
    data = Shards("another tensor")
    data.own = torch.Generator().manual_seed(1)
    before = data.own.get_state()
    with undisturbed(data):
        torch.rand(3, generator=data.own)
        data[5]
    assert torch.equal(data.own.get_state(), before)


class Bank:
    """A loss that remembers features, in a tensor and by a pointer."""

    def __init__(self):
        self.features, self.pointer = torch.zeros(4, 2), 0

    def __call__(self, values):
        self.features[self.pointer] = values
        self.pointer = (self.pointer + 1) % 4


def test_undisturbed_as_a_whole_undoes_large_tensors():
    bank = Bank()
    with undisturbed(bank, whole=True):
        bank(torch.ones(2))
    assert (bank.pointer, float(bank.features.sum())) == (0, 0.0)
