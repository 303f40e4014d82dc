"""A network that has not begun to learn is noticed after a tenth of its training."""

import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.training.stalled import _losses
from thalweg.weightspace.probe import Probe

STEPS, EPOCHS = 20, 50  # a tenth of them is 100 steps


def data(classes=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS * 8, 4, generator=draw)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    assert int(y.max()) == classes - 1
    return list(zip(x.split(8), y.split(8), strict=True))


def network(dead=False, seed=0, middle=nn.Identity):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), middle(), nn.ReLU(), nn.Linear(16, 3))
    if dead:  # nothing passes the ReLU, and no gradient comes back
        nn.init.constant_(net[0].bias, -1e3)
    return net


def trained(net, task=None, epochs=EPOCHS, batches=None, **settings):
    return tw.fit(net, task or tw.classification(), batches or data(), epochs=epochs, lr=0.05, **settings)


def test_stalled_warns_once_of_a_dead_network():
    with pytest.warns(tw.Stalled, match="not begun to learn: after 5 of 50 epochs") as caught:
        trained(network(dead=True))
    assert len(caught) == 1


@pytest.mark.parametrize("middle", [nn.Identity, partial(nn.BatchNorm1d, 16), partial(nn.Dropout, 0.5)])
def test_stalled_does_not_warn_of_a_network_that_learns(middle):
    trained(network(middle=middle))


def sorted_data(size=8):
    """One class after another, so that most batches have only one."""
    x, y = (torch.cat(parts) for parts in zip(*data(), strict=True))
    order = y.argsort(stable=True)
    return list(zip(x[order].split(size), y[order].split(size), strict=True))


def rare_positives():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(400, 4, generator=draw)
    return list(zip(x.split(8), (x[:, 0] > 2).long().split(8), strict=True))


def constant_targets():
    return [(x, torch.ones(len(x), 3)) for x, _ in data()]


LEARNABLE = {
    "single examples": (lambda: [(x[k : k + 1], y[k : k + 1]) for x, y in data() for k in range(8)], tw.classification),
    "sorted by class": (sorted_data, tw.classification),
    "rare positives": (rare_positives, tw.classification),
    "constant targets": (constant_targets, tw.regression),
}


@pytest.mark.parametrize("name", LEARNABLE)
def test_stalled_is_not_raised_where_the_first_batch_has_one_target(name):
    make, task = LEARNABLE[name]
    trained(network(), task(), batches=make())


@pytest.mark.parametrize("name", ["single examples", "sorted by class", "rare positives"])
def test_stalled_is_raised_for_a_dead_network_wherever_targets_differ(name):
    with pytest.warns(tw.Stalled, match="not begun to learn"):
        trained(network(dead=True), batches=LEARNABLE[name][0]())


def test_stalled_warns_where_a_mean_is_over_nothing():
    batches = [part for x, y in data() for part in ((x, torch.full_like(y, -100)), (x, y))]
    task = tw.Task(F.cross_entropy, size=lambda batch: (batch[1] != -100).sum())
    with pytest.warns(tw.Stalled, match="not begun to learn"):
        trained(network(dead=True), task, batches=batches, accumulate=2)


def test_stalled_warns_where_batches_differ_in_shape():
    """Sequences of four or five steps, eight in a batch, as a sampler by length gives them."""
    draw = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(8, 4 + k % 2, 4, generator=draw), torch.randn(8, 4 + k % 2, 3, generator=draw))
        for k in range(STEPS)
    ]
    with pytest.warns(tw.Stalled, match="not begun to learn"):
        trained(network(dead=True), tw.regression(), batches=batches)


def test_stalled_warns_of_a_regression_with_random_targets():
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.zeros(8, 4), torch.randn(8, 3, generator=draw)) for _ in range(STEPS)]
    with pytest.warns(tw.Stalled, match="not begun to learn"):
        trained(network(), tw.regression(), batches=batches)


def test_stalled_as_an_error_stops_the_training():
    seen = []

    def loss(outputs, targets):
        seen.append(1)
        return F.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(tw.Stalled, match="not begun to learn"):  # here every warning is an error
        trained(network(dead=True), tw.Task(loss))
    assert len(seen) == 5 * STEPS  # what the loss remembers of being looked at is undone


def test_stalled_warns_in_walk_and_not_in_connect():
    with pytest.warns(tw.Stalled, match="not begun to learn"):
        tw.walk(network(dead=True), tw.classification(), data(), tw.FGE(2, 0.05, 0.01), epochs=EPOCHS)
    ends = [tw.Weights.of(network(dead=True, seed=seed)) for seed in range(2)]
    tw.connect(network(), tw.Bezier(*ends), tw.classification(), data(), epochs=EPOCHS, lr=0.05)


def test_stalled_ignores_short_training_runs_and_later_epochs():
    trained(network(dead=True), epochs=4)


def test_stalled_ignores_outputs_without_a_row_per_example():
    net = network(dead=True)
    task = tw.Task(lambda outputs, targets: outputs["loss"], lambda net, batch: ({"loss": net(batch[0]).sum(1)}, None))
    trained(net, task)


def test_stalled_check_changes_nothing_in_the_training(monkeypatch):
    class Counting(nn.Module):
        """A loss with state: a count, a tensor of two dimensions, random numbers."""

        def __init__(self):
            super().__init__()
            self.calls, self.draw = 0, torch.Generator().manual_seed(0)
            self.register_buffer("seen", torch.zeros(2, 3))

        def forward(self, outputs, targets):
            self.calls += 1
            self.seen += outputs.detach()[:2]
            noise = 0.1 * torch.rand((), generator=self.draw) + 1e-3 * self.calls + 1e-4 * self.seen.mean()
            return (1 + noise) * F.cross_entropy(outputs, targets, reduction="none")

    def result():
        torch.manual_seed(7)
        batches = torch.utils.data.DataLoader(
            [(x, y) for xs, ys in data() for x, y in zip(xs, ys, strict=True)], 8, True
        )
        net = network(middle=partial(nn.Dropout, 0.5))
        return trained(net, tw.Task(Counting()), batches=batches).vector

    looked = result()
    monkeypatch.setattr("thalweg.training.stalled.FEWEST", 10**9)
    assert torch.equal(looked, result())


def test_stalled_check_holds_the_outputs_of_few_batches():
    """Those of a language model are large."""
    made, held = [], []

    def predict(net, batch):
        outputs = net(batch[0])
        made.append(weakref.ref(outputs))
        held.append(sum(each() is not None for each in made))
        return outputs, batch[1]

    task = tw.Task(tw.classification().loss, predict)
    own, constant = _losses(Probe(network()), task, data(), tw.Compute())
    assert held == [1] + 7 * [2]  # batches of eight examples: the present one, and the last
    with torch.no_grad():
        outputs, targets = network()(torch.cat([x for x, _ in data()[:8]])), torch.cat([y for _, y in data()[:8]])
    assert own == pytest.approx(float(F.cross_entropy(outputs, targets)))
    assert constant == pytest.approx(float(F.cross_entropy(outputs.mean(0).expand_as(outputs), targets)))
