"""Data that keep state of their own: a run folder changes nothing, and a resumed run draws what it would have drawn."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.store.runs import Run

EXAMPLES = [(x, y) for batch in ZOO["mlp"].batches() for x, y in zip(*batch, strict=True)]


class Noisy(Dataset):
    """Adds noise from a generator of its own."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return len(EXAMPLES)

    def __getitem__(self, i):
        x, y = EXAMPLES[i]
        return x + 0.1 * self.draw(), y


class Ordered(Sampler):
    """An order that depends on how often it was asked for, and on an order that it shuffles in place."""

    def __init__(self, in_place):
        self.in_place, self.epoch, self.order = in_place, 0, list(range(len(EXAMPLES)))

    def __len__(self):
        return len(EXAMPLES)

    def __iter__(self):
        self.epoch += 1
        order = self.order if self.in_place else self.order.copy()
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Late(Sampler):
    """A counter that is set at first use, and a generator that moves within the pass."""

    epoch = 0

    def __init__(self):
        self.rng = np.random.default_rng()

    def __len__(self):
        return len(EXAMPLES)

    def __iter__(self):
        self.epoch = self.epoch + 1
        for _ in range(len(EXAMPLES)):
            yield int(self.rng.integers(len(EXAMPLES)) + self.epoch) % len(EXAMPLES)


def drawing(kind):
    generators = {"torch": torch.Generator(), "numpy": np.random.default_rng(), "random": random.Random()}
    generator = generators[kind]
    return (lambda: torch.rand(1, generator=generator)) if kind == "torch" else generator.random


LOADERS = {
    "torch": lambda: DataLoader(Noisy(drawing("torch")), 4, shuffle=True),
    "numpy": lambda: DataLoader(Noisy(drawing("numpy")), 4, shuffle=True),
    "random": lambda: DataLoader(Noisy(drawing("random")), 4, shuffle=True),
    "epochs": lambda: DataLoader(EXAMPLES, 4, sampler=Ordered(False)),
    "in place": lambda: DataLoader(EXAMPLES, 4, sampler=Ordered(True)),
    "late": lambda: DataLoader(EXAMPLES, 4, sampler=Late()),
    "workers": lambda: DataLoader(Noisy(drawing("numpy")), 4, sampler=Late(), num_workers=1),
}


def fitted(loader, run=None, stop=-1):
    seen = []

    def loss(outputs, targets):
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # in a step, not when the fingerprint is taken
            seen.append(1)
            if len(seen) == stop:
                signal_stop()
        return ZOO["mlp"].task.loss(outputs, targets)

    return tw.fit(ZOO["mlp"].module(1), tw.Task(loss), loader, epochs=3, lr=0.1, run=run).vector


def signal_stop():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", LOADERS)
def test_run_folder_alone_changes_nothing(kind, tmp_path):
    assert torch.equal(fitted(LOADERS[kind](), tmp_path / "r"), fitted(LOADERS[kind]()))


@pytest.mark.parametrize("kind", LOADERS)
def test_resume_draws_what_would_have_been_drawn(kind, tmp_path):
    """With data made anew, as another process would; with the same, if their first batch is still the same."""
    whole = fitted(LOADERS[kind]())
    for stop in (1, 4, 6):
        loader = LOADERS[kind]()
        with pytest.raises(Stopped):
            fitted(loader, Run(tmp_path / str(stop), every=1), stop)
        again = loader if kind in ("torch", "numpy", "random") and stop == 4 else LOADERS[kind]()
        assert torch.equal(fitted(again, tmp_path / str(stop)), whole)


def test_resume_refuses_a_generator_that_is_made_at_first_use(tmp_path):
    class Lazy(Sampler):
        def __len__(self):
            return len(EXAMPLES)

        def __iter__(self):
            if not hasattr(self, "rng"):
                self.rng = random.Random(0)
            return iter(self.rng.sample(range(len(EXAMPLES)), len(EXAMPLES)))

    with pytest.raises(Stopped):
        fitted(DataLoader(EXAMPLES, 4, sampler=Lazy()), tmp_path, stop=4)
    with pytest.raises(tw.ThalwegError, match=r"saved with a random generator 'sampler.rng', which does not exist now"):
        fitted(DataLoader(EXAMPLES, 4, sampler=Lazy()), tmp_path)


def test_scan_points_see_the_same_data():
    """Though their order depends on how often they were gone through: scanned twice, one point has one loss, to the
    bit.
    """
    loader = DataLoader(Noisy(drawing("numpy")), 4, sampler=Ordered(True))
    point = tw.Weights.of(ZOO["mlp"].module(1))
    found = tw.scan(ZOO["mlp"].module(1), [point, point, point], ZOO["mlp"].task, {"x": loader})
    assert len(set(found.values["x"]["data_loss"].tolist())) == 1
