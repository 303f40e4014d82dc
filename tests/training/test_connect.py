"""Curve training: trained bends against closed forms, and what cannot be trained."""

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw


def test_connect_optimizer_may_clear_the_gradient():
    case = ZOO["mlp"]

    class Tidy(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.zero_grad()

    fresh = tw.Bezier(*case.ends())
    settings = {"epochs": 3, "schedule": lambda i: 0.1}
    ours, tidy = (
        tw.connect(case.module(1), fresh, case.task, case.batches(), optimizer=kind, **settings)
        for kind in (lambda v: torch.optim.SGD(v, lr=0.1), lambda v: Tidy(v, lr=0.1))
    )
    assert torch.equal(ours.bends[0].vector, tidy.bends[0].vector)


def test_connect_draws_t_apart_from_the_task():
    case, drawn, seen = ZOO["mlp"], [], []
    fresh = tw.Bezier(*case.ends())
    original = fresh.coefficients

    def loss(outputs, targets):
        drawn.append(float(torch.rand((), dtype=torch.float64)))
        return case.task.loss(outputs, targets)

    fresh.coefficients = lambda t: seen.append(t) or original(t)
    tw.connect(case.module(1), fresh, tw.Task(loss), case.batches(), epochs=3, lr=0.1, seed=4)
    assert not set(drawn) & set(seen)


def quadratic(centre: torch.Tensor) -> tw.Task:
    """L(w) = |w - centre|^2 / 2, whatever the batch."""

    def loss(weight, targets):
        return 0.5 * (weight.reshape(-1) - centre).square().sum().reshape(1)

    return tw.Task(loss, lambda net, batch: (net.weight, None))


# For phi = c0 a + c1 bend + c2 b, the mean over t of c1^2, of c0 c1 (and by symmetry c1 c2), and of c1.
MOMENTS = {tw.Bezier: (2 / 15, 1 / 10, 1 / 3), tw.PolyChain: (1 / 3, 1 / 12, 1 / 2)}


@pytest.mark.parametrize("kind", MOMENTS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_connect_on_a_quadratic_is_the_closed_form(kind, weight_decay):
    """The mean over t of |phi - centre|^2 / 2 + decay |phi|^2 / 2 is least where its derivative in the bend is zero."""
    square, cross, mean = MOMENTS[kind]
    torch.manual_seed(0)
    module = nn.Linear(3, 1, bias=False).double()
    a, b = (tw.Weights.of(nn.Linear(3, 1, bias=False).double()) for _ in range(2))
    centre = torch.tensor([1.0, -2.0, 0.5]).double()
    expected = (mean * centre / (1 + weight_decay) - cross * (a.vector + b.vector)) / square
    settings = {"momentum": 0.0, "schedule": lambda i: 8 / (i + 20), "weight_decay": weight_decay}
    curve = tw.connect(module, kind(a, b), quadratic(centre), [None] * 200, epochs=60, **settings)
    assert torch.allclose(curve.bends[0].vector, expected, atol=0.05)
    assert (kind(a, b).bends[0].vector - expected).abs().max() > 0.5


@pytest.mark.parametrize("loss", ["uniform", "arclength"])
@pytest.mark.parametrize("name", ZOO)
def test_connect_lowers_the_loss_and_leaves_everything_else_alone(name, loss):
    case = ZOO[name]
    module = case.module(3)
    before = bits(module)
    a, b = case.ends()
    kept = [a.vector.clone(), b.vector.clone()]
    fresh = tw.Bezier(a, b)
    middle = fresh.bends[0].vector.clone()
    curve = tw.connect(module, fresh, case.task, case.batches(), epochs=25, lr=0.05, loss=loss)
    assert same_bits(before, bits(module))
    assert curve.start is a
    assert curve.end is b
    assert all(torch.equal(w.vector, old) for w, old in zip((a, b), kept, strict=True))
    assert torch.equal(fresh.bends[0].vector, middle)
    scans = [
        tw.scan(module, path, case.task, {"train": case.batches()}, points=9, bn_batches=case.batches())
        for path in (tw.Segment(a, b), curve)
    ]
    line, trained = (scan.summary()["train"]["data_loss"]["mean"] for scan in scans)
    assert trained < line


def test_connect_with_the_same_seed_gives_the_same_curve():
    case = ZOO["dropout"]
    fresh = tw.PolyChain(*case.ends())
    runs = [tw.connect(case.module(1), fresh, case.task, case.batches(), epochs=3, lr=0.1, seed=s) for s in (5, 5, 6)]
    assert torch.equal(runs[0].bends[0].vector, runs[1].bends[0].vector)
    assert not torch.equal(runs[0].bends[0].vector, runs[2].bends[0].vector)


def test_connect_takes_frozen_weights_from_the_curve():
    case = ZOO["frozen"]
    module = case.module(1)
    with torch.no_grad():
        module[0].weight.add_(100)
    curve = tw.connect(module, tw.Bezier(*case.ends()), case.task, case.batches(), epochs=2, lr=0.1)
    expected = tw.connect(case.module(1), tw.Bezier(*case.ends()), case.task, case.batches(), epochs=2, lr=0.1)
    assert torch.equal(curve.bends[0].vector, expected.bends[0].vector)


def test_diverged_connect_names_the_step_the_t_and_the_rate():
    case = ZOO["mlp"]
    with pytest.raises(tw.Diverged, match=r"in step \d+ at t = 0\.\d+ with learning rate inf") as caught:
        tw.connect(
            case.module(1),
            tw.Bezier(*case.ends()),
            case.task,
            case.batches(),
            epochs=3,
            schedule=lambda i: float("inf"),
        )
    assert isinstance(caught.value.last_good, tw.Bezier)
    assert caught.value.last_good.bends[0].vector.isfinite().all()


class Floating(tw.Curve):
    """Misses its start."""

    def coefficients(self, t):
        return [0.9 - 0.9 * t, 0.1 - 0.1 * t, t]


def test_connect_refuses_what_cannot_be_trained():
    case = ZOO["mlp"]
    a, b = case.ends()

    def attempt(curve, **settings):
        tw.connect(case.module(1), curve, case.task, case.batches(), epochs=1, lr=0.1, **settings)

    with pytest.raises(tw.ThalwegError, match="a Segment has nothing to train"):
        attempt(tw.Segment(a, b))
    with pytest.raises(tw.ThalwegError, match="must meet its ends"):
        attempt(Floating(a, b))
    with pytest.raises(tw.ThalwegError, match="lr= would be ignored"):
        attempt(tw.Bezier(a, b), schedule=lambda i: 0.1)
    with pytest.raises(tw.ThalwegError, match="'uniform' or 'arclength'"):
        attempt(tw.Bezier(a, b), loss="other")
    with pytest.raises(
        tw.ThalwegError, match=r"the same network: '0\.weight' is in the network but not in the weights$"
    ):
        attempt(tw.Bezier(*ZOO["transformer_dict"].ends()))
