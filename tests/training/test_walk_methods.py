"""Schedules and collecting iterations against the paper's formulas, exactly."""

from math import ceil, cos, pi

import pytest
import torch
from torch import nn
from zoo import ZOO

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
def test_fge_cycles_in_epochs_give_the_papers_numbers_of_networks(cycle, epochs, members):
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
        (lambda: tw.FGE(cycle=1, lr_max=0.1, lr_min=0.01).plan(5, 4), "an even .* one of 1 epoch has 5: give 2 epochs"),
        (lambda: tw.FGE(cycle=tw.Iterations(7), lr_max=0.1, lr_min=0.01).plan(5, 4), "an even number of iterations"),
        (lambda: tw.FGE(cycle=0.3, lr_max=0.1, lr_min=0.01).plan(5, 4), "a whole number of iterations"),
        (lambda: tw.FGE(cycle=0, lr_max=0.1, lr_min=0.01).plan(5, 4), "at least 1"),
        (lambda: tw.FGE(cycle=float("nan"), lr_max=0.1, lr_min=0.01).plan(5, 4), "nan epochs of 5 iterations has nan"),
        (lambda: tw.SWA(lr=0.1, cycle=float("inf")).plan(5, 4), "inf epochs of 5 iterations has inf"),
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
        (lambda: tw.SWA(lr=0.0), "SWA needs a learning rate above 0"),
        (lambda: tw.SWA(lr=0.1, cycle=5).plan(5, 4), "must not be longer"),
    ],
)
def test_walk_methods_refuse_bad_settings(make, message):
    with pytest.raises(tw.ThalwegError, match=message):
        make()


def test_custom_walk_method():
    from thalweg.training.walk_methods import Plan

    class Sparse(Method):
        def plan(self, steps, epochs):
            return Plan(lambda i: 0.1 / i, lambda i: i in (2, 3), steps * epochs)

    from zoo import ZOO

    case = ZOO["mlp"]
    walk = tw.walk(case.module(1), case.task, case.batches(), Sparse(), epochs=1)
    assert walk.traces[0].collected == [2, 3]
    assert walk.traces[0].lr.tolist() == [0.1, 0.05, 0.1 / 3]


@pytest.mark.parametrize("warmup", [2, 0.5, tw.Iterations(6), 0])
def test_warmup_cosine(warmup):
    rate = tw.WarmupCosine(lr_max=0.4, warmup=warmup, lr_min=0.1).plan(steps=10, epochs=5).rate
    warm = {2: 20, 0.5: 5, 0: 0}.get(warmup, 6)
    for i in range(1, 51):
        along = 0.1 + 0.3 * (1 + cos(pi * (i - 1 - warm) / (50 - warm))) / 2
        assert rate(i) == pytest.approx(0.4 * i / warm if i <= warm else along, rel=1e-12)


def test_warmup_cosine_knows_the_length_of_the_run():
    case, seen = ZOO["mlp"], []

    class Recorded(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    def made(named):
        return Recorded([{"params": named[:2], "lr": 1.0}, {"params": named[2:], "lr": 0.5}])

    schedule = tw.WarmupCosine(0.2, warmup=1)
    settings = {"epochs": 3, "schedule": schedule, "accumulate": 2, "optimizer": made}
    tw.fit(case.module(1), case.task, case.batches(), **settings)
    rates = [schedule.plan(2, 3).rate(i) for i in range(1, 7)]
    assert [first for first, _ in seen] == rates
    assert [second for _, second in seen] == pytest.approx([0.5 * lr for lr in rates], rel=1e-15)


def test_warmup_cosine_in_your_own_loop():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = tw.WarmupCosine(0.2, warmup=tw.Iterations(2))
    scheduler, seen = tw.WalkScheduler(optimizer, schedule, steps=5, epochs=2, accumulate=2), []
    for _ in range(6):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == [schedule.plan(3, 2).rate(i) for i in range(1, 7)]
    assert schedule.plan(3, 2).rate(7) == schedule.plan(3, 2).rate(99) == 0.0  # a loop that goes on stays there


@pytest.mark.parametrize("resumed", [False, True])
def test_warmup_cosine_scales_the_rate_of_your_own_optimizer(resumed):
    def made():
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        return torch.optim.AdamW([{"params": p, "lr": lr} for p, lr in zip(parameters, (0.2, 0.05), strict=True)])

    optimizer = made()
    schedule, seen = tw.WarmupCosine(warmup=tw.Iterations(2)), []
    scheduler = tw.WalkScheduler(optimizer, schedule, steps=3, epochs=2)
    for i in range(6):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
        if resumed and i == 2:
            states = optimizer.state_dict(), scheduler.state_dict()
            optimizer = made()
            optimizer.load_state_dict(states[0])
            scheduler = tw.WalkScheduler(optimizer, schedule, steps=3, epochs=2, last_epoch=i)
            scheduler.load_state_dict(states[1])
            optimizer.load_state_dict(states[0])
    rates = [tw.WarmupCosine(0.2, tw.Iterations(2)).plan(3, 2).rate(i) for i in range(1, 7)]
    assert seen == [pytest.approx([rate, 0.25 * rate]) for rate in rates]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: tw.WarmupCosine(0.0), "needs lr_max > 0"),
        (lambda: tw.WarmupCosine(0.1, warmup=-1), "warmup >= 0"),
        (lambda: tw.WarmupCosine(0.1, lr_min=0.2), "lr_min <= lr_max"),
        (lambda: tw.WarmupCosine(0.1, warmup=3).plan(4, 3), "it is 12 iterations, and the run is 12"),
        (
            lambda: tw.fit(nn.Linear(1, 1), tw.regression(), [1], epochs=1, schedule=tw.WarmupCosine),
            "must be a function",
        ),
    ],
)
def test_warmup_cosine_refuses_bad_settings(made, message):
    with pytest.raises(tw.ThalwegError, match=message):
        made()
