"""Networks, losses and optimizers that keep state outside parameters: resumed exactly, or named in a warning."""

import itertools
import os
import random
import shutil
import signal
from collections import defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.store.runs import Run
from thalweg.training.side_state import NotExact
from thalweg.weightspace.checkpoint import Checkpoint

BATCHES = [(x.float(), y) for x, y in ZOO["mlp"].batches()]
WIDTH, CLASSES = BATCHES[0][0].shape[1], 1 + max(int(y.max()) for _, y in BATCHES)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.layer(x)


class Counts(Plain):
    calls, word = 0, None

    def forward(self, x):
        self.calls += 1
        self.word = f"call {self.calls}"
        return super().forward(x) * (1 + 0.1 * self.calls) + len(self.word)


class Remembers(Plain):
    hidden = None

    def forward(self, x):
        y = super().forward(x)
        out = y if self.hidden is None else y + 0.1 * self.hidden
        self.hidden = out.detach().mean(0, keepdim=True)
        return out


class Draws(Plain):
    def __init__(self):
        super().__init__()
        self.dice, self.story = random.Random(3), {"drawn": [0.0]}

    def forward(self, x):
        self.story["drawn"].append(self.dice.random())
        return super().forward(x) * (1 + self.story["drawn"][-1] + self.story["drawn"][-2])


class Teacher(Plain):
    """Its frozen parameter follows the other, through `.data`, as many write it."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, x):
        for slow, fast in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
        return super().forward(x) + self.teacher(x)


class Freezes(Teacher):
    """Freezes one part of itself at first, then another."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            self.layer.bias.requires_grad_(False)
        if self.calls == 6:
            self.layer.bias.requires_grad_(True)
            self.layer.weight.requires_grad_(False)
        return super().forward(x)


class Grows(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(0), persistent=False)
        self.register_buffer("late", None, persistent=False)

    def forward(self, x):
        self.memory = torch.cat([self.memory, x.detach().mean()[None]])
        self.late = self.memory.sum()
        return super().forward(x) + self.late


class ScheduleFree(SGD):
    """Keeps its step count and a tensor in the group, a rate on itself, and lists by parameter."""

    def __init__(self, vectors):
        super().__init__(vectors, lr=0.0, momentum=0.5)
        self.param_groups[0] |= {"k": 0, "total": torch.zeros(()), "last": None}
        self.scale = 1.0

    def step(self, closure=None):
        group = self.param_groups[0]
        group["k"] += 1
        group["total"] = group["total"] + group["k"]
        self.scale *= 0.9
        for vector in group["params"]:
            seen = self.state[vector].setdefault("seen", [])
            seen.append(vector.grad.abs().mean())
            vector.grad.mul_(self.scale + 1 / float(group["total"]) + float(sum(seen)))
        group["last"] = f"step {group['k']}"
        super().step()


class Lookahead(Optimizer):
    """Around another optimizer, whose state is its own."""

    def __init__(self, vectors):
        self.inner = torch.optim.Adam(vectors, lr=0.0)
        super().__init__(vectors, {"lr": 0.0})

    def step(self, closure=None):
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()


def counting_loss():
    calls, dice = 0, random.Random(5)

    def loss(outputs, targets):
        nonlocal calls
        calls += 1
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * (1 + 0.1 * calls + dice.random())

    return tw.Task(loss)


@dataclass(frozen=True, slots=True)
class Place:
    number: int = 0


class Holds(Plain):
    """State in what others made to hold it: a namespace, a dict with keys that are no texts, a frozen object, a mixed
    list.
    """

    def __init__(self):
        super().__init__()
        self.space, self.counts, self.place, self.mixed = SimpleNamespace(n=0), defaultdict(int), Place(), [0, Plain]

    def forward(self, x):
        self.space.n += 1
        self.counts[self.space.n % 3] += 1
        self.place = Place(self.place.number + 1)
        self.mixed[0] += 1
        return super().forward(x) * (
            self.space.n + self.counts[1] + self.counts["1"] + self.place.number + self.mixed[0]
        )


class Balanced(nn.Module):
    """A loss with a buffer and a teacher that follows the network."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(CLASSES))
        self.teacher = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
        nn.init.ones_(self.teacher.weight), nn.init.ones_(self.teacher.bias)

    def predict(self, net, batch):
        x, y = batch
        with torch.no_grad():
            self.teacher.weight.lerp_(net.layer.weight, 0.1)
        return net(x) + self.teacher(x), y

    def forward(self, outputs, targets):
        self.seen = 0.9 * self.seen + nn.functional.one_hot(targets, CLASSES).sum(0)
        return nn.functional.cross_entropy(outputs, targets, weight=self.seen / self.seen.sum(), reduction="none")


def balanced_loss():
    balanced = Balanced()
    return tw.Task(balanced, balanced.predict)


def plain_loss():
    return tw.classification()


CASES = {
    "a counter and a text": (Counts, plain_loss, None),
    "a tensor": (Remembers, plain_loss, None),
    "a generator and a list": (Draws, plain_loss, None),
    "a teacher": (Teacher, plain_loss, None),
    "parts that are frozen later": (Freezes, plain_loss, None),
    "holders of state": (Holds, plain_loss, None),
    "a loss with modules of its own": (Plain, balanced_loss, None),
    "growing buffers": (Grows, plain_loss, None),
    "a loss that counts and draws": (Plain, counting_loss, None),
    "an optimizer with values in its groups": (Plain, plain_loss, ScheduleFree),
    "an optimizer around another": (Plain, plain_loss, Lookahead),
}


class Stops(list):
    """Batches of which one brings SIGTERM."""

    def __init__(self, items, stop=0):
        super().__init__(items)
        self.stop, self.given = stop, 0

    def __iter__(self):
        for item in super().__iter__():
            self.given += 1
            if self.given == self.stop and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # in training
                os.kill(os.getpid(), signal.SIGTERM)
            yield item


def made(kind):
    torch.manual_seed(1)
    return kind()


def fitted(case, stop=0, run=None, **settings):
    kind, task, optimizer = CASES[case]
    return tw.fit(made(kind), task(), Stops(BATCHES, stop), epochs=3, lr=0.02, optimizer=optimizer, run=run, **settings)


def same(one, two):
    tensors = [[w.vector, *w.buffers.values(), *w.frozen.values()] for w in (one, two)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_resume_restores_state_outside_parameters(case, tmp_path):
    whole = fitted(case)
    assert same(fitted(case, run=tmp_path / "whole"), whole)
    for stop in (1, 5, 7):
        with pytest.raises(Stopped):
            fitted(case, stop + 1, run=Run(tmp_path / str(stop), every="0m"))  # the fingerprint takes one
        assert same(fitted(case, run=tmp_path / str(stop)), whole)


@pytest.mark.parametrize("optimizer", [ScheduleFree, Lookahead])
def test_kept_epoch_has_the_whole_optimizer_state(optimizer, tmp_path):
    """From the file or from memory, a walk begins as training would have gone on; a file without it is still read."""

    def begun(start):
        return tw.walk(
            Plain(), plain_loss(), BATCHES, tw.SWA(lr=0.02), epochs=1, start=start, optimizer=optimizer
        ).members[0]

    torch.manual_seed(1)
    first = tw.fit(Plain(), plain_loss(), BATCHES, epochs=2, schedule=lambda i: 0.02, optimizer=optimizer, keep=[1])
    kept = first.kept[1]
    kept.save(tmp_path / "kept.safetensors")
    assert torch.equal(begun(kept).vector, first.vector)
    assert torch.equal(begun(Checkpoint.load(tmp_path / "kept.safetensors")).vector, first.vector)
    bare = Checkpoint(kept.weights, kept.optimizer, kept.kind, kept.epoch)
    bare.save(tmp_path / "old.safetensors")
    assert Checkpoint.load(tmp_path / "old.safetensors").extra == {}
    assert not torch.equal(begun(bare).vector, first.vector)


class Queues(Plain):
    def __init__(self):
        super().__init__()
        self.queue = deque()

    def forward(self, x):
        self.queue.append(x.mean())
        return super().forward(x)


class Iterates(Plain):
    def __init__(self):
        super().__init__()
        self.number = itertools.count()

    def forward(self, x):
        next(self.number)
        return super().forward(x)


class Late(Plain):
    state = None

    def forward(self, x):
        self.state = self.state or SimpleNamespace(n=0)
        self.state.n += 1
        return super().forward(x)


class LateNone(Late):
    def __init__(self):
        super().__init__()
        self.state = None


class Pair(NamedTuple):
    n: int = 0


class Pairs(Plain):
    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def forward(self, x):
        self.pair = Pair(self.pair.n + 1)
        return super().forward(x)


class Objects(Plain):
    def __init__(self):
        super().__init__()
        self.objects = []

    def forward(self, x):
        self.objects.append(SimpleNamespace())
        return super().forward(x)


class Complex(Plain):
    def __init__(self):
        super().__init__()
        self.phase = torch.zeros(2, dtype=torch.complex128)

    def forward(self, x):
        self.phase = self.phase + 1j
        return super().forward(x)


class Passes(list):
    def __init__(self, items):
        super().__init__(items)
        self.turn = itertools.cycle([0, 1])


UNSAVED = {
    Queues: "network.queue",
    Iterates: "network.number",
    Late: "network.state.n",
    LateNone: "network.state.n",
    Pairs: "network.pair",
    Objects: "network.objects",
    Complex: "network.phase",
}


@pytest.mark.parametrize(("kind", "name"), UNSAVED.items())
def test_run_warns_of_what_cannot_be_saved(kind, name, tmp_path):
    with pytest.warns(NotExact, match=f"'{name}' may change in training and cannot be saved") as heard:
        tw.fit(kind(), plain_loss(), BATCHES, epochs=2, lr=0.1, run=tmp_path / "r")
    assert len(heard) == 1
    tw.fit(kind(), plain_loss(), BATCHES, epochs=2, lr=0.1)  # nothing to resume, nothing to say


def test_run_warns_of_unsaved_state_after_the_second_step(tmp_path):
    """Early enough to stop the run and change that."""
    steps = []

    def loss(outputs, targets):
        steps.append(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)  # not where the fingerprint is taken
        return plain_loss().loss(outputs, targets)

    with pytest.raises(NotExact, match=r"'network\.queue' may change"):  # an error, as all warnings are here
        tw.fit(Queues(), tw.Task(loss), BATCHES, epochs=9, lr=0.1, run=tmp_path)
    assert sum(steps) == 2


class LateOptimizer(SGD):
    late = None

    def step(self, closure=None):
        self.late = self.late or SimpleNamespace(n=0)
        self.late.n += 1
        super().step()


class LateData(Stops):
    """Makes an iterator and an object at its first use, in place of None."""

    turn = late = None

    def __init__(self, items, stop=0):
        super().__init__(items, stop)
        self.turn, self.late = None, None

    def __iter__(self):
        self.turn, self.late = self.turn or itertools.cycle([0, 1]), self.late or SimpleNamespace(n=0)
        for item in super().__iter__():
            self.late.n += next(self.turn)
            yield item


def test_resume_leaves_unsaved_state_to_the_caller(tmp_path):
    def run(kind=Plain, data=BATCHES, **settings):
        tw.fit(made(kind), plain_loss(), data, epochs=4, lr=0.1, run=Run(tmp_path / "r", every="0m"), **settings)

    for settings in ({"kind": LateNone}, {"optimizer": lambda vectors: LateOptimizer(vectors, lr=0.0)}, {}):
        stopping = (LateData if not settings else Stops)(BATCHES, 5)
        with pytest.warns(NotExact, match="may change in training"), pytest.raises(Stopped):
            run(data=stopping, **settings)
        with pytest.warns(NotExact):
            run(data=type(stopping)(BATCHES), **settings)
        shutil.rmtree(tmp_path / "r")


def test_run_warns_of_data_that_cannot_be_followed(tmp_path):
    with pytest.warns(NotExact, match="'turn' may change"):
        tw.fit(Plain(), plain_loss(), Passes(BATCHES), epochs=1, lr=0.1, run=tmp_path / "a")
    examples = [(x, y) for batch in BATCHES for x, y in zip(*batch, strict=True)]
    loader = DataLoader(examples, 4, num_workers=1, persistent_workers=True)
    with pytest.warns(NotExact, match="'persistent_workers' may change"):
        tw.fit(Plain(), plain_loss(), loader, epochs=1, lr=0.1, run=tmp_path / "b")
