"""What a CUDA graph would freeze is noticed before one is captured; no GPU is needed."""

import random
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.runtime import cuda_graphs


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.last, self.shape, self.seen = 0, torch.zeros(1), (1, 2), []
        self.draws, self.numbers, self.cell = torch.Generator(), np.random.default_rng(0), torch.zeros(1)

    def forward(self, what):
        if what == "count":
            self.count += 1
        if what == "last":
            self.last = torch.zeros(1)
        if what == "shape":
            self.shape = (1, 3)
        if what == "seen":
            self.seen.append(1)
        if what == "random":
            random.random()
        if what == "torch":
            torch.rand(())
        if what == "draws":
            torch.rand((), generator=self.draws)
        if what == "numbers":
            self.numbers.random()
        if what == "cell":
            self.cell.add_(1)
        if what == "nothing":
            self.shape, self.count = (1, 2), 0


@pytest.mark.parametrize(
    "what", ["count", "last", "shape", "seen", "random", "torch", "draws", "numbers", "cell", "nothing"]
)
def test_capture_notices_what_a_graph_would_freeze(what):
    module = nn.Sequential(Restless())
    before = cuda_graphs._host_state(module)
    module(what)
    found = cuda_graphs._difference(before, cuda_graphs._host_state(module))
    if what == "nothing":
        assert found is None
    else:
        assert ("random numbers" in found) if what in ("random", "torch") else f"'0.{what}' changes" in found


def test_capture_watches_functions_and_optimizers():
    counted = {"calls": 0}

    class Anneal:
        weight = 1.0

    anneal, vector, module = Anneal(), torch.zeros(3, requires_grad=True), nn.Identity()
    optimizer = torch.optim.SGD([vector], lr=0.1)

    def loss(outputs, targets):
        return counted["calls"] + anneal.weight

    def changed(change):
        before = cuda_graphs._host_state(module, (optimizer, loss))
        change()
        return cuda_graphs._difference(before, cuda_graphs._host_state(module, (optimizer, loss)))

    assert changed(lambda: None) is None
    assert "of loss: anneal.weight" in changed(lambda: setattr(anneal, "weight", 0.5))
    assert "of SGD: steps of vector 0" in changed(lambda: optimizer.state[vector].update(steps=1))
    assert changed(lambda: optimizer.param_groups[0].update(lr=0.2)) is None


class CountingLoss(nn.Module):
    """A loss that is a module, with another inside."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.CrossEntropyLoss(), 0

    def forward(self, outputs, targets):
        self.calls += 1
        return self.inner(outputs, targets)


class CountingObject:
    calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return outputs

    def method(self, outputs, targets):
        return self(outputs, targets)


def counting_function(outputs, targets):
    counting_function.calls += 1
    return outputs


counting_function.calls = 0


COUNTING = {
    "module": CountingLoss(),
    "object": CountingObject(),
    "method": CountingObject().method,
    "function": counting_function,
    "partial of a module": partial(CountingLoss()),
    "partial of a partial": partial(partial(CountingObject())),
}


@pytest.mark.parametrize("kind", COUNTING)
def test_capture_notices_a_loss_that_counts_its_calls(kind):
    loss, module = COUNTING[kind], nn.Identity()
    outputs, targets = torch.zeros(2, 3), torch.tensor([0, 1])
    loss(outputs, targets)
    before = cuda_graphs._host_state(module, (loss,))
    assert cuda_graphs._difference({**before}, cuda_graphs._host_state(module, (loss,))) is None
    loss(outputs, targets)
    assert "calls' changes in every step" in cuda_graphs._difference(before, cuda_graphs._host_state(module, (loss,)))


@pytest.mark.parametrize(
    "loss", [tw.classification().loss, nn.CrossEntropyLoss(), partial(nn.functional.cross_entropy)]
)
def test_capture_accepts_the_usual_losses(loss):
    module, outputs, targets = nn.Identity(), torch.zeros(2, 3), torch.tensor([0, 1])
    loss(outputs, targets)
    before = cuda_graphs._host_state(module, (loss, tw.classification().predict))
    loss(outputs, targets)
    assert cuda_graphs._difference(before, cuda_graphs._host_state(module, (loss, tw.classification().predict))) is None


def test_one_captured_graph_serves_batches_of_the_same_shapes_and_dtypes():
    x = torch.zeros(4, 3)
    forms = [x, x + 1, x[:2], x.double(), (x,), [x], {"a": x}, {"b": x}, x.T.contiguous().T, (x, "label"), (x, "other")]
    keys = [cuda_graphs.batch_signature(batch) for batch in forms]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(forms) - 1


def test_repeated_work_is_called_directly_without_a_gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work = tw.Compute().repeated(lambda batch: batch + 1, nn.Identity(), torch.device("cpu"))
        assert [work(k) for k in range(4)] == [1, 2, 3, 4]
