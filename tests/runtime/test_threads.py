"""Small networks on a CPU compute in one thread, whatever the machine does; the user's own choice is respected."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.paper.data import DeviceBatches
from thalweg.runtime import threads


@pytest.fixture
def several(monkeypatch):
    """As on a machine with two cores on which nobody has said anything about threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Counting(nn.Linear):
    """Notes how many threads there are whenever it is called."""

    seen: list[int] = []  # noqa: RUF012

    def forward(self, x):
        self.seen.append(torch.get_num_threads())
        return super().forward(x.flatten(1))


CALLS = {
    "fit": lambda net, data, w: tw.fit(net, tw.classification(), data, epochs=1, lr=0.1),
    "connect": lambda net, data, w: tw.connect(net, tw.Bezier(w, w), tw.classification(), data, epochs=1, lr=0.1),
    "walk": lambda net, data, w: tw.walk(net, tw.classification(), data, tw.SWA(lr=0.1), epochs=1),
    "scan": lambda net, data, w: tw.scan(net, [w], tw.classification(), {"train": data}),
    "predict": lambda net, data, w: tw.Ensemble(net, [w]).predict(tw.classification(), data),
    "curve_ensemble": lambda net, data, w: tw.curve_ensemble(
        net, tw.Bezier(w, w), tw.classification(), data, bn_batches=data, points=2
    ),
}


def called(call, width=8, count=4):
    net = Counting(width, 2)
    Counting.seen.clear()
    data = [(torch.randn(count, width), torch.arange(count) % 2)] * 2
    CALLS[call](net, data, tw.Weights.of(net))
    return set(Counting.seen)


@pytest.mark.parametrize("call", CALLS)
def test_threads_small_networks_compute_in_one(call, several):
    assert called(call) == {1}
    assert torch.get_num_threads() == 2


def test_update_bn_of_a_small_network_computes_in_one_thread(several):
    net = nn.Sequential(Counting(8, 4), nn.BatchNorm1d(4))
    Counting.seen.clear()
    tw.update_bn(net, tw.Weights.of(net), [(torch.randn(4, 8), None)])
    assert set(Counting.seen) == {1}


def test_threads_large_batches_keep_them(several):
    assert called("scan", width=4000, count=20) == {2}


def test_threads_count_the_pixels_of_images_on_the_device(several):
    net = Counting(3 * 40 * 40, 2)
    Counting.seen.clear()
    images = DeviceBatches(torch.zeros(20, 3, 40, 40, dtype=torch.uint8), torch.zeros(20, dtype=torch.long), 20)
    tw.fit(net, tw.classification(), images, epochs=1, lr=0.1)
    assert set(Counting.seen) == {2}


def test_threads_are_restored_after_an_error(several):
    def fails(outputs, targets):
        raise RuntimeError("mine")

    net = Counting(8, 2)
    with pytest.raises(RuntimeError, match="mine"):
        tw.fit(net, tw.Task(fails), [(torch.randn(4, 8), torch.zeros(4))], epochs=1, lr=0.1)
    assert torch.get_num_threads() == 2


def test_threads_of_the_users_choice_are_kept(several, monkeypatch):
    torch.set_num_threads(3)
    assert called("fit") == {3}
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert called("fit") == {2}


def test_results_do_not_depend_on_the_number_of_threads(several, monkeypatch):
    """For a network whose bits two threads change."""
    torch.manual_seed(0)
    net = tw.models.digits_net()
    data = [(torch.randn(64, 1, 8, 8), torch.randint(10, (64,))) for _ in range(3)]

    def trained(cores):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(cores)))
        torch.set_num_threads(cores)
        return tw.fit(net, tw.classification(), data, epochs=1, lr=0.1).vector

    assert torch.equal(trained(2), trained(1))
    assert torch.equal(trained(4), trained(1))


@pytest.mark.parametrize(
    ("batch", "width", "expected"),
    [
        (lambda x, y: SimpleNamespace(x=x, y=y), 8, {1}),
        (lambda x, y: SimpleNamespace(x=x, y=y), 4000, {2}),
        (lambda x, y: (x.numpy(), y), 8, {1}),
        (lambda x, y: (x.numpy(), y), 4000, {2}),
        (lambda x, y: f"{len(x)} {x.shape[1]}", 4000, {2}),  # nobody knows how large it will be
    ],
    ids=["small objects", "large objects", "small arrays", "large arrays", "texts"],
)
def test_threads_count_the_numbers_in_any_batch(batch, width, expected, several):
    def predict(net, drawn):
        if isinstance(drawn, str):
            drawn = [torch.ones(*map(int, drawn.split())), torch.arange(20) % 2]
        x, y = vars(drawn).values() if isinstance(drawn, SimpleNamespace) else drawn
        return net(torch.as_tensor(x)), y

    net = Counting(width, 2)
    Counting.seen.clear()
    data = [batch(torch.ones(20, width), torch.arange(20) % 2)] * 2
    tw.scan(net, [tw.Weights.of(net)], tw.Task(tw.classification().loss, predict), {"train": data})
    assert set(Counting.seen) == expected
