"""The caller's module is bit-identical after every public call, also when something fails in the middle."""

import pytest
import torch
from zoo import ZOO, bits, same_bits

import thalweg as tw


class Stop(Exception):
    pass


def failing_task(animal, error, after):
    calls = []

    def predict(net, batch):
        calls.append(1)
        if len(calls) > after:
            raise error
        return animal.task.predict(net, batch)

    return tw.Task(animal.task.loss, predict)


class FailingBatches:
    def __init__(self, batches, error):
        self.batches, self.error = batches, error

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield self.batches[0]
        raise self.error


def calls(animal, module, task, batches):
    a, b = animal.ends()
    third = tw.Weights.of(animal.module(3))
    common = {"epochs": 2, "lr": 0.1}
    return {
        "fit": lambda: tw.fit(module, task, batches, **common),
        "connect": lambda: tw.connect(module, tw.Bezier(a, b), task, batches, **common),
        "arclength": lambda: tw.connect(module, tw.PolyChain(a, b), task, batches, loss="arclength", **common),
        "scan": lambda: tw.scan(module, tw.Segment(a, b), task, {"x": batches}, points=3, bn_batches=batches),
        "plane": lambda: tw.scan(module, tw.Plane(a, b, third), task, {"x": batches}, grid=(2, 2), bn_batches=batches),
        "bn_batches": lambda: tw.update_bn(module, tw.average([a, b]), batches, task),
    }


def prepared(animal):
    """A module in use: gradients, hooks, and some parts in evaluation mode."""
    module = animal.module(1)
    inner = getattr(module, "_orig_mod", module)
    animal.losses(module, animal.batches()[0]).mean().backward()
    inner.register_forward_hook(lambda *_: None)
    next(inner.children()).eval()
    return module


@pytest.mark.parametrize("call", ["fit", "connect", "arclength", "scan", "plane", "bn_batches"])
@pytest.mark.parametrize("name", ZOO)
def test_after_a_call(name, call):
    animal = ZOO[name]
    module = prepared(animal)
    before, state = bits(module), torch.get_rng_state()
    calls(animal, module, animal.task, animal.batches())[call]()
    assert same_bits(before, bits(module))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("error", [Stop("in the middle"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
@pytest.mark.parametrize("where", ["predict", "data"])
@pytest.mark.parametrize("call", ["fit", "connect", "arclength", "scan", "plane", "bn_batches"])
def test_after_a_failure(call, where, error):
    animal = ZOO["conv_bn"]
    module = prepared(animal)
    before, state = bits(module), torch.get_rng_state()
    task = failing_task(animal, error, after=2) if where == "predict" else animal.task
    batches = FailingBatches(animal.batches(), error) if where == "data" else animal.batches()
    with pytest.raises(type(error)):
        calls(animal, module, task, batches)[call]()
    assert same_bits(before, bits(module))
    assert torch.equal(state, torch.get_rng_state())
