"""A network that the user has compiled is computed compiled, with the user's backend, and gives the same results."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import thalweg as tw

torch.manual_seed(0)
BATCHES = [(torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3) for _ in range(3)]
OBSERVED = "batch-norm statistics are computed without the compiler: compiled code does not call the hooks"
FGE = tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.01)


class Head(nn.Module):  # torch compiles no layer of its own in place
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x)


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), Head()
        self.double()

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


class Backend:
    """Runs what it is given as it is, and counts how often."""

    def __init__(self):
        self.runs = 0

    def __call__(self, graph, inputs):
        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


def wrapped(backend, seed=0):
    return torch.compile(Net(seed), backend=backend, fullgraph=True, dynamic=False)


def in_place(backend, seed=0):
    net = Net(seed)
    net.compile(backend=backend)
    return net


def part(backend, seed=0):
    net = Net(seed)
    net.last = torch.compile(net.last, backend=backend)
    return net


def part_in_place(backend, seed=0):
    net = Net(seed)
    net.last.compile(backend=backend)
    return net


def calls():
    a, b = (tw.Weights.of(Net(seed)) for seed in (1, 2))
    task = tw.classification()
    line = tw.Segment(a, b)
    return {
        "fit": lambda net: tw.fit(net, task, BATCHES, epochs=2, lr=0.1).vector,
        "connect": lambda net: tw.connect(net, tw.Bezier(a, b), task, BATCHES, epochs=2, lr=0.1).bends[0].vector,
        "walk": lambda net: tw.walk(net, task, BATCHES, FGE, epochs=2).members[-1].vector,
        "scan": lambda net: (
            tw.scan(net, line, task, BATCHES, points=3, bn_batches=BATCHES).values["data"]["loss"].tolist()
        ),
        "ensemble": lambda net: tw.Ensemble(net, [a, b]).predict(task, BATCHES)[0],
    }


def statistics(net):
    return tw.update_bn(net, tw.average([tw.Weights.of(Net(seed)) for seed in (1, 2)]), BATCHES)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own, of parts
@pytest.mark.parametrize("compiled", [wrapped, in_place, part, part_in_place])
@pytest.mark.parametrize("call", calls())
def test_recompiled_module_uses_the_users_backend_and_gives_the_same(call, compiled):
    torch._dynamo.reset()
    plain = calls()[call](Net())
    backend = Backend()
    net = compiled(backend)
    with pytest.warns(tw.SlowPathWarning, match=OBSERVED) if call == "scan" else nullcontext():
        found = calls()[call](net)
    # three batches for each of two epochs or members, of which the first may be watched instead
    assert backend.runs >= 5
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(plain), rtol=1e-12, atol=1e-12)
    before = backend.runs
    net(BATCHES[0][0])
    assert backend.runs == before + 1  # the caller's own is still compiled


@pytest.mark.parametrize("compiled", [wrapped, in_place, part, part_in_place])
def test_update_bn_of_a_compiled_network_warns_that_it_runs_eagerly(compiled):
    torch._dynamo.reset()
    with pytest.warns(tw.SlowPathWarning, match=OBSERVED):
        found = statistics(compiled(Backend()))
    plain = statistics(Net())
    assert found.buffers.keys() == plain.buffers.keys()
    for name, buffer in plain.buffers.items():
        torch.testing.assert_close(found.buffers[name], buffer, rtol=1e-12, atol=1e-12)


def test_recompiled_copies_need_no_more_compiling():
    torch._dynamo.reset()
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    net = wrapped(backend)
    for _ in range(12):
        tw.fit(net, tw.classification(), BATCHES, epochs=1, lr=0.1)
    assert len(made) == 1


def test_recompiled_warns_of_what_cannot_be_compiled_again():
    net = Net()
    net._compiled_call_impl = net._call_impl
    with pytest.warns(
        tw.SlowPathWarning, match="Net is computed without the compiler: how it was compiled cannot be read"
    ):
        tw.fit(net, tw.classification(), BATCHES, epochs=1, lr=0.1)
