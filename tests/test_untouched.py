"""The caller's module is bit-identical after every public call, also when something fails in the middle."""

import pytest
import torch
from zoo import ZOO, bits, same_bits

import thalweg as tw


class Stop(Exception):
    pass


def failing_task(case, error, after):
    calls = []

    def predict(net, batch):
        calls.append(1)
        if len(calls) > after:
            raise error
        return case.task.predict(net, batch)

    return tw.Task(case.task.loss, predict)


class FailingBatches:
    def __init__(self, batches, error):
        self.batches, self.error = batches, error

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield self.batches[0]
        raise self.error


def calls(case, module, task, batches):
    a, b = case.ends()
    third = tw.Weights.of(case.module(3))
    common = {"epochs": 2, "lr": 0.1}
    return {
        "fit": lambda: tw.fit(module, task, batches, **common),
        "connect": lambda: tw.connect(module, tw.Bezier(a, b), task, batches, **common),
        "arclength": lambda: tw.connect(module, tw.PolyChain(a, b), task, batches, loss="arclength", **common),
        "scan": lambda: tw.scan(module, tw.Segment(a, b), task, {"x": batches}, points=3, bn_batches=batches),
        "plane": lambda: tw.scan(module, tw.Plane(a, b, third), task, {"x": batches}, grid=(2, 2), bn_batches=batches),
        "bn_batches": lambda: tw.update_bn(module, tw.average([a, b]), batches, task),
    }


def prepared(case):
    """A module in use: gradients, hooks, and some parts in evaluation mode."""
    module = case.module(1)
    inner = getattr(module, "_orig_mod", module)
    case.losses(module, case.batches()[0]).mean().backward()
    inner.register_forward_hook(lambda *_: None)
    next(inner.children()).eval()
    return module


@pytest.mark.parametrize("call", ["fit", "connect", "arclength", "scan", "plane", "bn_batches"])
@pytest.mark.parametrize("name", ZOO)
def test_module_is_untouched_after_every_call(name, call):
    case = ZOO[name]
    module = prepared(case)
    before, state = bits(module), torch.get_rng_state()
    calls(case, module, case.task, case.batches())[call]()
    assert same_bits(before, bits(module))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("error", [Stop("in the middle"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
@pytest.mark.parametrize("where", ["predict", "data"])
@pytest.mark.parametrize("call", ["fit", "connect", "arclength", "scan", "plane", "bn_batches"])
def test_module_is_untouched_after_a_failure(call, where, error):
    case = ZOO["conv_bn"]
    module = prepared(case)
    before, state = bits(module), torch.get_rng_state()
    task = failing_task(case, error, after=2) if where == "predict" else case.task
    batches = FailingBatches(case.batches(), error) if where == "data" else case.batches()
    with pytest.raises(type(error)):
        calls(case, module, task, batches)[call]()
    assert same_bits(before, bits(module))
    assert torch.equal(state, torch.get_rng_state())
