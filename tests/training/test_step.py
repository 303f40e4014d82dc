"""The gradients of a step against autograd."""

from functools import partial
from typing import Literal

import pytest
import torch
from torch.func import functional_call
from zoo import ZOO

import thalweg as tw
from thalweg.runtime.streamed import StreamedBends
from thalweg.training import connect as connecting
from thalweg.training.arclength import ArclengthBends
from thalweg.training.curve_losses import CURVE_LOSSES
from thalweg.training.step import OTHER_STREAM, Step, UniformBends
from thalweg.weightspace.probe import Probe

DECAY = 0.03


def bent(case, kind, bends=2):
    a, b = case.ends()
    g = torch.Generator().manual_seed(0)
    curve = kind(a, b, bends)
    return curve.with_bends([w.vector + 0.3 * torch.randn(w.layout.size, generator=g).double() for w in curve.bends])


def naive_loss(case, module, curve, bends, t, batch, decay=DECAY):
    """L(phi(t)) as a differentiable function of the bends, through functional_call."""
    controls = [curve.start.vector, *bends, curve.end.vector]
    phi = sum(c * w for c, w in zip(curve.coefficients(t).tolist(), controls, strict=True))
    inner = getattr(module, "_orig_mod", module)
    torch.manual_seed(0)
    values = case.losses(lambda *a, **k: functional_call(inner, curve.layout.split(phi), a, k), batch)
    return values.mean() + decay / 2 * phi.square().sum()


def our_gradient(case, trainable, move, batch, clip=None):
    step = Step(trainable, case.task, torch.optim.SGD(trainable.vectors, lr=0.0), DECAY, clip)
    trainable.set_point = lambda _: move()
    torch.manual_seed(0)
    step(batch, 0.0)
    return torch.stack([trainable.probe.to_layout_order(grad) for grad in trainable.gradient])


def move_to(trainable, t):
    trainable.write_phi(trainable.curve.checked_coefficients(t))


def make(case, kind, trainable):
    curve = bent(case, kind)
    module = case.module(1)
    probe = Probe(module, curve.start)
    probe.module.train()
    getattr(module, "_orig_mod", module).train()
    leaves = [w.vector.clone().requires_grad_() for w in curve.bends]
    return curve, module, trainable(probe, curve), leaves


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", ZOO)
def test_gradient_of_the_uniform_loss_is_autograds(name, kind):
    case = ZOO[name]
    curve, module, trainable, leaves = make(case, kind, UniformBends)
    for t, batch in zip([0.15, 0.5, 0.9], case.batches(), strict=True):
        ours = our_gradient(case, trainable, lambda t=t: move_to(trainable, t), batch)
        theirs = torch.stack(torch.autograd.grad(naive_loss(case, module, curve, leaves, t, batch), leaves))
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert theirs.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "tied_lstm"])
@pytest.mark.parametrize("streamed", [False, True])
def test_clipping_acts_on_the_gradient_of_the_bends_before_weight_decay(name, streamed):
    case, t = ZOO[name], 0.3
    trainable = partial(StreamedBends, seed=0, where=torch.device("cpu")) if streamed else UniformBends
    curve, module, trainable, leaves = make(case, tw.Bezier, trainable)
    batch = case.batches()[0]
    data, whole = (
        torch.stack(torch.autograd.grad(naive_loss(case, module, curve, leaves, t, batch, decay), leaves))
        for decay in (0.0, DECAY)
    )
    clip = 0.5 * float(data.norm())
    ours = our_gradient(
        case, trainable, lambda: type(trainable).set_point(trainable, curve.checked_coefficients(t)), batch, clip
    )
    assert torch.allclose(ours, clip / (data.norm() + 1e-6) * data + (whole - data), rtol=1e-9, atol=1e-12)
    assert torch.allclose(our_gradient(case, trainable, lambda: None, batch, 1e6), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
@pytest.mark.parametrize("name", ZOO)
def test_gradient_of_the_arclength_loss_is_autograds_on_a_grid(name, kind):
    case = ZOO[name]
    few = partial(ArclengthBends, grid=[0.05, 0.2, 0.45, 0.6, 0.85])
    curve, module, trainable, leaves = make(case, kind, few)
    batch, grid = case.batches()[0], trainable.grid.tolist()
    trainable.measure()
    ours = torch.zeros(len(leaves), curve.layout.size).double()
    for k, q in enumerate(trainable.q.tolist()):
        trainable.mean.fill_(0.7)  # any number that does not depend on t
        ours += q * our_gradient(case, trainable, lambda k=k: trainable.set_grid_point(torch.tensor([k])), batch)
    controls = torch.stack([curve.start.vector, *leaves, curve.end.vector])
    speeds = torch.stack([(curve.derivatives(t) @ controls).norm() for t in grid])
    values = torch.stack([naive_loss(case, module, curve, leaves, t, batch) for t in grid])
    theirs = torch.stack(torch.autograd.grad((speeds * values).sum() / speeds.sum(), leaves, retain_graph=True))
    assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-12)
    fixed_q = (speeds / speeds.sum()).detach()
    assert not torch.allclose(ours, torch.stack(torch.autograd.grad((fixed_q * values).sum(), leaves)), rtol=1e-2)


class InnerBends(UniformBends):
    """A way to train a curve that is not ours: t from the middle half alone."""

    def draw(self):
        self.t = 0.25 + 0.5 * self.uniform()
        return self.curve.checked_coefficients(self.t).tolist()


@pytest.mark.parametrize("compute", [tw.Compute(), tw.Compute(stream=True)])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_dict"])
def test_new_way_to_train_a_curve_is_one_class(name, compute, monkeypatch):
    """Listed by its name, it needs nothing else, and is streamed like ours; compared with a loop of plain autograd."""
    monkeypatch.setitem(CURVE_LOSSES, "inner", InnerBends)
    monkeypatch.setattr(connecting, "CurveLoss", Literal["uniform", "arclength", "inner"])
    case, lr = ZOO[name], 0.05
    curve, module = bent(case, tw.Bezier), case.module(1)
    common = {"epochs": 2, "momentum": 0.0, "weight_decay": DECAY, "schedule": lambda i: lr, "seed": 4}
    found = tw.connect(module, curve, case.task, case.batches(), **common, loss="inner", compute=compute)
    module.train()
    leaves = [w.vector.clone().requires_grad_() for w in curve.bends]
    draws = torch.Generator().manual_seed(4 + OTHER_STREAM)
    for batch in [*case.batches(), *case.batches()]:
        t = 0.25 + 0.5 * float(torch.rand((), generator=draws, dtype=torch.float64))
        gradients = torch.autograd.grad(naive_loss(case, module, curve, leaves, t, batch), leaves)
        leaves = [(leaf - lr * own).detach().requires_grad_() for leaf, own in zip(leaves, gradients, strict=True)]
    for own, leaf in zip(found.bends, leaves, strict=True):
        assert torch.allclose(own.vector, leaf, rtol=1e-9, atol=1e-12)
    plain = tw.connect(module, curve, case.task, case.batches(), **common, compute=compute)
    assert not torch.allclose(plain.bends[0].vector, leaves[0], rtol=1e-3)


@pytest.mark.parametrize("name", ZOO)
def test_gradients_of_single_parameters_are_the_flat_gradient(name):
    case, found = ZOO[name], []
    probe = Probe(case.module(1))
    for way in (lambda loss: probe.gather(probe.gradients(loss)), probe.backward):
        torch.manual_seed(0)
        probe.grad.fill_(torch.nan)
        way(case.losses(probe.module, case.batches()[0]).mean())
        found.append(probe.grad.clone())
    assert torch.allclose(*found, rtol=1e-12)
