"""Schedules and collecting iterations against the paper's formulas, exactly."""

from math import ceil, cos, pi

import pytest

import thalweg as tw
from thalweg.training.walk_methods import Method


def paper_fge(i, c, a1, a2):
    """The formula as printed: t(i) = (mod(i-1, c) + 1) / c."""
    t = ((i - 1) % c + 1) / c
    return (1 - 2 * t) * a1 + 2 * t * a2 if t <= 1 / 2 else (2 - 2 * t) * a2 + (2 * t - 1) * a1


@pytest.mark.parametrize("c", [2, 4, 6, 10, 100, 782])
def test_fge_is_the_papers_formula_and_algorithm(c):
    plan = tw.FGE(cycle=tw.Iterations(c), lr_max=0.05, lr_min=0.0005).plan(steps=c, epochs=4)
    for i in range(1, 4 * c + 1):
        assert plan.rate(i) == paper_fge(i, c, 0.05, 0.0005)
        assert plan.collects(i) == (i % c == c // 2)
    assert plan.rate(c // 2) == pytest.approx(0.0005)
    assert min(plan.rate(i) for i in range(1, c + 1)) == plan.rate(c // 2)
    assert plan.rate(c) == pytest.approx(0.05)
    assert len(plan.collected) == 4


@pytest.mark.parametrize(("cycle", "epochs", "members"), [(2, 22, 11), (4, 22, 6), (4, 20, 5), (0.5, 3, 6)])
def test_cycles_in_epochs_give_the_papers_numbers_of_networks(cycle, epochs, members):
    plan = tw.FGE(cycle=cycle, lr_max=0.05, lr_min=0.0005).plan(steps=392, epochs=epochs)
    assert len(plan.collected) == members


@pytest.mark.parametrize(("steps", "epochs", "cycles"), [(10, 6, 3), (7, 5, 4), (391, 3, 5), (3, 1, 3)])
def test_snapshot_is_the_cosine(steps, epochs, cycles):
    total = steps * epochs
    plan = tw.Snapshot(cycles=cycles, lr_max=0.1).plan(steps, epochs)
    length = ceil(total / cycles)
    for i in range(1, total + 1):
        assert plan.rate(i) == 0.1 / 2 * (cos(pi * ((i - 1) % length) / length) + 1)
    collected = [i for i in range(1, total + 1) if plan.collects(i)]
    assert collected == [min(k * length, total) for k in range(1, cycles + 1)]


def test_swa_is_constant_and_collects_at_the_end_of_each_cycle():
    plan = tw.SWA(lr=0.03, cycle=2).plan(steps=5, epochs=6)
    assert {plan.rate(i) for i in range(1, 31)} == {0.03}
    assert [i for i in range(1, 31) if plan.collects(i)] == [10, 20, 30]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tw.FGE(cycle=1, lr_max=0.1, lr_min=0.01).plan(5, 4), "an even number of iterations"),
        (lambda: tw.FGE(cycle=tw.Iterations(7), lr_max=0.1, lr_min=0.01).plan(5, 4), "an even number of iterations"),
        (lambda: tw.FGE(cycle=0.3, lr_max=0.1, lr_min=0.01).plan(5, 4), "a whole number of iterations"),
        (lambda: tw.FGE(cycle=0, lr_max=0.1, lr_min=0.01).plan(5, 4), "at least 1"),
        (lambda: tw.FGE(cycle=float("nan"), lr_max=0.1, lr_min=0.01).plan(5, 4), "nan epochs of 5 iterations are nan"),
        (lambda: tw.SWA(lr=0.1, cycle=float("inf")).plan(5, 4), "inf epochs of 5 iterations are inf"),
        (
            lambda: tw.FGE(cycle=6, lr_max=0.1, lr_min=0.01).plan(5, 4),
            "must not be longer than the run; it is 30 iterations",
        ),
        (lambda: tw.FGE(cycle=2, lr_max=0.01, lr_min=0.1), "lr_min 0.1 and lr_max 0.01"),
        (lambda: tw.FGE(cycle=2, lr_max=0.01, lr_min=0.0), "0 < lr_min"),
        (lambda: tw.Snapshot(cycles=0, lr_max=0.1), "cycles >= 1"),
        (lambda: tw.Snapshot(cycles=21, lr_max=0.1).plan(5, 4), "21 cycles of 1 iterations leave 0 of 20"),
        (lambda: tw.Snapshot(cycles=5, lr_max=0.1).plan(21, 1), "5 cycles of 5 iterations leave 1 of 21"),
        (lambda: tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01, starts=(1.2,)), "above 0 and below 1"),
        (lambda: tw.SWA(lr=0.0), "lr > 0"),
        (lambda: tw.SWA(lr=0.1, cycle=5).plan(5, 4), "must not be longer"),
    ],
)
def test_bad_methods(make, message):
    with pytest.raises(tw.ThalwegError, match=message):
        make()


def test_a_method_of_the_users_own():
    from thalweg.training.walk_methods import Plan

    class Sparse(Method):
        def plan(self, steps, epochs):
            return Plan(lambda i: 0.1 / i, lambda i: i in (2, 3), steps * epochs)

    from zoo import ZOO

    animal = ZOO["mlp"]
    walk = tw.walk(animal.module(1), animal.task, animal.batches(), Sparse(), epochs=1)
    assert walk.traces[0].collected == [2, 3]
    assert walk.traces[0].lr.tolist() == [0.1, 0.05, 0.1 / 3]
