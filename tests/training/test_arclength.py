"""The loss over arc length draws t in proportion to speed."""

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.training.arclength import ArclengthBends
from thalweg.weightspace.probe import Probe


def test_arclength_draws_t_in_proportion_to_speed():
    """A chain with one long and one short piece: the long one gets its share of the draws."""
    case = ZOO["mlp"]
    a, b = case.ends()
    curve = tw.PolyChain(a, b).with_bends([a.vector.lerp(b.vector, 0.8)])
    trainable = ArclengthBends(Probe(case.module(1), a), curve, seed=1)
    drawn = []
    for _ in range(2000):
        trainable.set_point(torch.tensor(trainable.draw()).double())
        drawn.append(float(trainable.t))
    share = sum(t < 0.5 for t in drawn) / len(drawn)
    assert abs(share - 0.8) < 4 * (0.8 * 0.2 / 2000) ** 0.5
    assert 0 <= min(drawn) < 0.02
    assert 0.98 < max(drawn) <= 1


def test_arclength_follows_the_curve_as_it_moves():
    case = ZOO["mlp"]
    a, b = case.ends()
    trainable = ArclengthBends(Probe(case.module(1), a), tw.PolyChain(a, b), seed=1)
    trainable.set_point(torch.tensor([0.5]).double())
    assert torch.allclose(trainable.q, trainable.q.mean().expand_as(trainable.q))
    trainable.vectors[0].copy_(trainable.points[0].lerp(trainable.points[2], 0.9))
    trainable.set_point(torch.tensor([0.5]).double())
    assert float(trainable.q[:256].sum()) == pytest.approx(0.9)
