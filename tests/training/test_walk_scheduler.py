"""Three lines in a loop of the user's own give the same walk."""

import io

import pytest
import torch
from zoo import ZOO

import thalweg as tw

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def loop(case, module, optimizer, scheduler, collector, epochs):
    getattr(module, "_orig_mod", module).train()
    for _ in range(epochs):
        for batch in case.batches():
            optimizer.zero_grad()
            case.losses(module, batch).mean().backward()
            optimizer.step()
            collector.step()
            scheduler.step()


def prepare(case):
    module = case.module(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=123.0, momentum=0.9)
    scheduler = tw.WalkScheduler(optimizer, FGE, steps=3, epochs=4)
    return module, optimizer, scheduler, tw.Collector(module, scheduler)


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "tied_lstm", "compiled"])
def test_walk_scheduler_collects_the_networks_of_walk(name):
    case = ZOO[name]
    parts = prepare(case)
    loop(case, *parts, epochs=4)
    ours = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=4).members
    for one, two in zip(parts[-1].members, ours, strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-9, atol=1e-12)
        assert one.made["iteration"] == two.made["iteration"]


def test_walk_scheduler_resumes_in_the_middle_of_a_cycle():
    """State goes through a file that `torch.load` reads without running code; rates and networks are as if never
    stopped.
    """
    case = ZOO["conv_bn"]
    whole = prepare(case)
    loop(case, *whole, epochs=4)
    first = prepare(case)
    loop(case, *first, epochs=1)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    second = prepare(case)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    plan = FGE.plan(3, 4)
    assert second[2].get_last_lr() == [plan.rate(4)]
    loop(case, *second, epochs=3)
    assert [m.made["iteration"] for m in second[-1].members] == [2, 6, 10]
    for one, two in zip(second[-1].members, whole[-1].members, strict=True):
        assert torch.equal(one.vector, two.vector)
        assert all(torch.equal(one.buffers[key], two.buffers[key]) for key in two.buffers)


def grouped(rates=(1.0, 5.0, 0.0)):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in rates]
    return torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(parameters, rates, strict=True)])


def test_walk_scheduler_keeps_the_ratio_of_rates_of_parameter_groups():
    optimizer, plan = grouped(), FGE.plan(3, 4)
    scheduler = tw.WalkScheduler(optimizer, FGE, steps=3, epochs=4)
    for i in range(1, 13):
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([plan.rate(i), 5 * plan.rate(i), 0.0])
        assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()


def test_walk_scheduler_ratios_of_parameter_groups_survive_a_checkpoint():
    optimizer, plan = grouped(), FGE.plan(3, 4)
    scheduler = tw.WalkScheduler(optimizer, FGE, steps=3, epochs=4)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    saved = optimizer.state_dict(), scheduler.state_dict()
    for way in ("state", "last_epoch"):
        resumed = grouped((7.0, 7.0, 7.0))
        resumed.load_state_dict(saved[0])
        last = {"last_epoch": 4} if way == "last_epoch" else {}
        again = tw.WalkScheduler(resumed, FGE, steps=3, epochs=4, **last)
        if way == "state":
            again.load_state_dict(saved[1])
            assert again.get_last_lr() == pytest.approx([plan.rate(6), 5 * plan.rate(6), 0.0])
        else:
            assert [group["lr"] for group in resumed.param_groups] == pytest.approx(
                [plan.rate(6), 5 * plan.rate(6), 0.0]
            )
        resumed.step()
        again.step()
        assert [group["lr"] for group in resumed.param_groups] == pytest.approx([plan.rate(7), 5 * plan.rate(7), 0.0])


def test_walk_scheduler_refuses_a_first_group_without_a_rate():
    with pytest.raises(tw.ThalwegError, match=r"ratio to the first, which must not be 0; got \[0\.0, 1\.0\]"):
        tw.WalkScheduler(grouped((0.0, 1.0)), FGE, steps=3, epochs=4)
