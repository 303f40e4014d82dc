"""Curve training: gradients against autograd, trained bends against closed forms."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.runtime.streamed import StreamedBends
from thalweg.training.arclength import ArclengthBends
from thalweg.training.step import Step, UniformBends
from thalweg.weightspace.probe import Probe

DECAY = 0.03


def bent(animal, kind, bends=2):
    a, b = animal.ends()
    g = torch.Generator().manual_seed(0)
    curve = kind(a, b, bends)
    return curve.with_bends([w.vector + 0.3 * torch.randn(w.layout.size, generator=g).double() for w in curve.bends])


def naive_loss(animal, module, curve, bends, t, batch, decay=DECAY):
    """L(phi(t)) as a differentiable function of the bends, through functional_call."""
    controls = [curve.start.vector, *bends, curve.end.vector]
    phi = sum(c * w for c, w in zip(curve.coefficients(t).tolist(), controls, strict=True))
    inner = getattr(module, "_orig_mod", module)
    torch.manual_seed(0)
    values = animal.losses(lambda *a, **k: functional_call(inner, curve.layout.split(phi), a, k), batch)
    return values.mean() + decay / 2 * phi.square().sum()


def our_gradient(animal, trainable, move, batch, clip=None):
    step = Step(trainable, animal.task, torch.optim.SGD(trainable.vectors, lr=0.0), DECAY, clip)
    trainable.set_point = lambda _: move()
    torch.manual_seed(0)
    step(batch, 0.0)
    return torch.stack([trainable.probe.to_layout_order(grad) for grad in trainable.gradient])


def move_to(trainable, t):
    trainable.write_phi(trainable.curve.checked_coefficients(t))


def make(animal, kind, trainable):
    curve = bent(animal, kind)
    module = animal.module(1)
    probe = Probe(module, curve.start)
    probe.module.train()
    getattr(module, "_orig_mod", module).train()
    leaves = [w.vector.clone().requires_grad_() for w in curve.bends]
    return curve, module, trainable(probe, curve), leaves


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", ZOO)
def test_gradient_of_the_uniform_loss_is_autograds(name, kind):
    animal = ZOO[name]
    curve, module, trainable, leaves = make(animal, kind, UniformBends)
    for t, batch in zip([0.15, 0.5, 0.9], animal.batches(), strict=True):
        ours = our_gradient(animal, trainable, lambda t=t: move_to(trainable, t), batch)
        theirs = torch.stack(torch.autograd.grad(naive_loss(animal, module, curve, leaves, t, batch), leaves))
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert theirs.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "tied_lstm"])
@pytest.mark.parametrize("streamed", [False, True])
def test_clipping_acts_on_the_gradient_of_the_bends_before_weight_decay(name, streamed):
    animal, t = ZOO[name], 0.3
    trainable = partial(StreamedBends, seed=0, where=torch.device("cpu")) if streamed else UniformBends
    curve, module, trainable, leaves = make(animal, tw.Bezier, trainable)
    batch = animal.batches()[0]
    data, whole = (
        torch.stack(torch.autograd.grad(naive_loss(animal, module, curve, leaves, t, batch, decay), leaves))
        for decay in (0.0, DECAY)
    )
    clip = 0.5 * float(data.norm())
    ours = our_gradient(
        animal, trainable, lambda: type(trainable).set_point(trainable, curve.checked_coefficients(t)), batch, clip
    )
    assert torch.allclose(ours, clip / (data.norm() + 1e-6) * data + (whole - data), rtol=1e-9, atol=1e-12)
    assert torch.allclose(our_gradient(animal, trainable, lambda: None, batch, 1e6), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", ZOO)
def test_gradient_of_the_arclength_loss_is_autograds_on_a_grid(name, kind):
    animal = ZOO[name]
    few = partial(ArclengthBends, grid=[0.05, 0.2, 0.45, 0.6, 0.85])
    curve, module, trainable, leaves = make(animal, kind, few)
    batch, grid = animal.batches()[0], trainable.grid.tolist()
    trainable.measure()
    ours = torch.zeros(len(leaves), curve.layout.size).double()
    for k, q in enumerate(trainable.q.tolist()):
        trainable.mean.fill_(0.7)  # any number that does not depend on t
        ours += q * our_gradient(animal, trainable, lambda k=k: trainable.set_grid_point(torch.tensor([k])), batch)
    controls = torch.stack([curve.start.vector, *leaves, curve.end.vector])
    speeds = torch.stack([(curve.derivatives(t) @ controls).norm() for t in grid])
    values = torch.stack([naive_loss(animal, module, curve, leaves, t, batch) for t in grid])
    theirs = torch.stack(torch.autograd.grad((speeds * values).sum() / speeds.sum(), leaves, retain_graph=True))
    assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-12)
    fixed_q = (speeds / speeds.sum()).detach()
    assert not torch.allclose(ours, torch.stack(torch.autograd.grad((fixed_q * values).sum(), leaves)), rtol=1e-2)


def test_arclength_draws_t_in_proportion_to_speed():
    """A chain with one long and one short piece: the long one gets its share of the draws."""
    animal = ZOO["mlp"]
    a, b = animal.ends()
    curve = tw.PolyChain(a, b).with_bends([a.vector.lerp(b.vector, 0.8)])
    trainable = ArclengthBends(Probe(animal.module(1), a), curve, seed=1)
    drawn = []
    for _ in range(2000):
        trainable.set_point(torch.tensor(trainable.draw()).double())
        drawn.append(float(trainable.t))
    share = sum(t < 0.5 for t in drawn) / len(drawn)
    assert abs(share - 0.8) < 4 * (0.8 * 0.2 / 2000) ** 0.5
    assert 0 <= min(drawn) < 0.02
    assert 0.98 < max(drawn) <= 1


def test_arclength_follows_the_curve_as_it_moves():
    animal = ZOO["mlp"]
    a, b = animal.ends()
    trainable = ArclengthBends(Probe(animal.module(1), a), tw.PolyChain(a, b), seed=1)
    trainable.set_point(torch.tensor([0.5]).double())
    assert torch.allclose(trainable.q, trainable.q.mean().expand_as(trainable.q))
    trainable.vectors[0].copy_(trainable.points[0].lerp(trainable.points[2], 0.9))
    trainable.set_point(torch.tensor([0.5]).double())
    assert float(trainable.q[:256].sum()) == pytest.approx(0.9)


def test_an_optimizer_may_take_the_gradient_away():
    animal = ZOO["mlp"]

    class Tidy(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.zero_grad()

    fresh = tw.Bezier(*animal.ends())
    settings = {"epochs": 3, "schedule": lambda i: 0.1}
    ours, tidy = (
        tw.connect(animal.module(1), fresh, animal.task, animal.batches(), optimizer=kind, **settings)
        for kind in (lambda v: torch.optim.SGD(v, lr=0.1), lambda v: Tidy(v, lr=0.1))
    )
    assert torch.equal(ours.bends[0].vector, tidy.bends[0].vector)


def test_t_is_not_what_a_task_draws():
    animal, drawn, seen = ZOO["mlp"], [], []
    fresh = tw.Bezier(*animal.ends())
    original = fresh.coefficients

    def loss(outputs, targets):
        drawn.append(float(torch.rand((), dtype=torch.float64)))
        return animal.task.loss(outputs, targets)

    fresh.coefficients = lambda t: seen.append(t) or original(t)
    tw.connect(animal.module(1), fresh, tw.Task(loss), animal.batches(), epochs=3, lr=0.1, seed=4)
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
def test_on_a_quadratic_the_trained_bend_is_the_closed_form(kind, weight_decay):
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
    animal = ZOO[name]
    module = animal.module(3)
    before = bits(module)
    a, b = animal.ends()
    kept = [a.vector.clone(), b.vector.clone()]
    fresh = tw.Bezier(a, b)
    middle = fresh.bends[0].vector.clone()
    curve = tw.connect(module, fresh, animal.task, animal.batches(), epochs=25, lr=0.05, loss=loss)
    assert same_bits(before, bits(module))
    assert curve.start is a
    assert curve.end is b
    assert all(torch.equal(w.vector, old) for w, old in zip((a, b), kept, strict=True))
    assert torch.equal(fresh.bends[0].vector, middle)
    scans = [
        tw.scan(module, path, animal.task, {"train": animal.batches()}, points=9, bn_batches=animal.batches())
        for path in (tw.Segment(a, b), curve)
    ]
    line, trained = (scan.summary()["train"]["data_loss"]["mean"] for scan in scans)
    assert trained < line


def test_same_seed_same_curve():
    animal = ZOO["dropout"]
    fresh = tw.PolyChain(*animal.ends())
    runs = [
        tw.connect(animal.module(1), fresh, animal.task, animal.batches(), epochs=3, lr=0.1, seed=s) for s in (5, 5, 6)
    ]
    assert torch.equal(runs[0].bends[0].vector, runs[1].bends[0].vector)
    assert not torch.equal(runs[0].bends[0].vector, runs[2].bends[0].vector)


def test_the_frozen_weights_are_the_curves_not_the_modules():
    animal = ZOO["frozen"]
    module = animal.module(1)
    with torch.no_grad():
        module[0].weight.add_(100)
    curve = tw.connect(module, tw.Bezier(*animal.ends()), animal.task, animal.batches(), epochs=2, lr=0.1)
    expected = tw.connect(animal.module(1), tw.Bezier(*animal.ends()), animal.task, animal.batches(), epochs=2, lr=0.1)
    assert torch.equal(curve.bends[0].vector, expected.bends[0].vector)


def test_divergence_names_the_step_the_t_and_the_rate():
    animal = ZOO["mlp"]
    with pytest.raises(tw.Diverged, match=r"in step \d+ at t = 0\.\d+ with learning rate inf") as caught:
        tw.connect(
            animal.module(1),
            tw.Bezier(*animal.ends()),
            animal.task,
            animal.batches(),
            epochs=3,
            schedule=lambda i: float("inf"),
        )
    assert isinstance(caught.value.last_good, tw.Bezier)
    assert caught.value.last_good.bends[0].vector.isfinite().all()


class Floating(tw.Curve):
    """Misses its start."""

    def coefficients(self, t):
        return [0.9 - 0.9 * t, 0.1 - 0.1 * t, t]


def test_what_cannot_be_trained_says_so():
    animal = ZOO["mlp"]
    a, b = animal.ends()

    def attempt(curve, **settings):
        tw.connect(animal.module(1), curve, animal.task, animal.batches(), epochs=1, lr=0.1, **settings)

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
