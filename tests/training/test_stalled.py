"""A network that has not begun to learn is noticed after a tenth of its training."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thalweg as tw

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


def test_a_dead_network_is_noticed_once_after_a_tenth_of_the_training():
    with pytest.warns(tw.Stalled, match="not begun to learn: after 5 of 50 epochs") as caught:
        trained(network(dead=True))
    assert len(caught) == 1


@pytest.mark.parametrize("middle", [nn.Identity, partial(nn.BatchNorm1d, 16), partial(nn.Dropout, 0.5)])
def test_a_network_that_learns_is_not(middle):
    trained(network(middle=middle))


def test_labels_that_say_nothing_are_noticed_in_a_regression_too():
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.zeros(8, 4), torch.randn(8, 3, generator=draw)) for _ in range(STEPS)]
    with pytest.warns(tw.Stalled):
        trained(network(), tw.regression(), batches=batches)


def test_a_filter_stops_the_training_there():
    seen = []

    def loss(outputs, targets):
        seen.append(1)
        return F.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(tw.Stalled):  # here every warning is an error
        trained(network(dead=True), tw.Task(loss))
    assert len(seen) == 5 * STEPS  # what the loss remembers of being looked at is undone


def test_a_walk_is_looked_at_and_a_curve_is_not():
    with pytest.warns(tw.Stalled):
        tw.walk(network(dead=True), tw.classification(), data(), tw.FGE(2, 0.05, 0.01), epochs=EPOCHS)
    ends = [tw.Weights.of(network(dead=True, seed=seed)) for seed in range(2)]
    tw.connect(network(), tw.Bezier(*ends), tw.classification(), data(), epochs=EPOCHS, lr=0.05)


def test_short_trainings_and_later_epochs_are_left_alone():
    trained(network(dead=True), epochs=4)


def test_outputs_without_a_row_per_example_are_left_alone():
    net = network(dead=True)
    task = tw.Task(lambda outputs, targets: outputs["loss"], lambda net, batch: ({"loss": net(batch[0]).sum(1)}, None))
    trained(net, task)


def test_looking_changes_nothing_in_the_training(monkeypatch):
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
