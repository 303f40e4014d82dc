"""Walks against plain torch, from kept checkpoints, with everything that is reported about them."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from zoo import ZOO, bits, same_bits

import thalweg as tw

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def plain_walk(case, module, method, epochs, weight_decay):
    """Ordinary torch, with weights copied where the plan says so."""
    module.train()
    moving = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(moving, lr=1.0, momentum=0.9, weight_decay=weight_decay)
    plan, members, i = method.plan(3, epochs), [], 0
    for _ in range(epochs):
        for batch in case.batches():
            i += 1
            optimizer.param_groups[0]["lr"] = plan.rate(i)
            optimizer.zero_grad()
            case.losses(module, batch).mean().backward()
            optimizer.step()
            if plan.collects(i):
                members.append(tw.Weights.of(module))
    return members


@pytest.mark.parametrize(
    "method", [FGE, tw.Snapshot(cycles=3, lr_max=0.1), tw.SWA(lr=0.05)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("name", [name for name in ZOO if name != "dropout"])
def test_walk_is_plain_training_with_copies(name, method):
    case = ZOO[name]
    module = case.module(1)
    before = bits(module)
    ours = tw.walk(module, case.task, case.batches(), method, epochs=4, weight_decay=0.01).members
    assert same_bits(before, bits(module))
    theirs = plain_walk(case, module, method, 4, 0.01)
    assert len(ours) == len(theirs) == 3 + isinstance(method, tw.SWA)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-8, atol=1e-11)
        assert all(torch.allclose(one.buffers[key], two.buffers[key]) for key in two.buffers)


def test_walk_is_a_frozen_result_and_not_a_list():
    case = ZOO["mlp"]
    walk = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=4)
    assert type(walk) is tw.Walk
    with pytest.raises(FrozenInstanceError):
        walk.members = ()
    assert type(walk.members) is type(walk.traces) is tuple
    for misused in (
        lambda: tw.Ensemble(case.module(1), walk),
        lambda: tw.average(walk),
        lambda: tw.PolyChain.through(walk),
    ):
        with pytest.raises(tw.ThalwegError, match=r"Weights,? such as walk\(\.\.\.\)\.members; got Walk"):
            misused()


@pytest.mark.parametrize(
    ("start", "kind"), [(torch.nn.Linear(2, 2), "Linear"), ("weights.safetensors", "str"), ([1], "int")]
)
def test_walk_refuses_a_start_of_another_kind(start, kind):
    with pytest.raises(
        tw.ThalwegError, match=rf"a walk starts from Weights, or from a checkpoint of fit\(keep=\); got {kind}"
    ):
        tw.walk(ZOO["mlp"].module(1), ZOO["mlp"].task, ZOO["mlp"].batches(), FGE, epochs=4, start=start)


def test_walk_from_a_kept_epoch_has_its_momentum():
    """Training in one go equals training to a kept epoch and walking on from it."""
    case = ZOO["channels_last"]
    rate = tw.SWA(lr=0.05)
    whole = tw.fit(case.module(1), case.task, case.batches(), epochs=5, schedule=lambda i: 0.05, keep=[2, 5])
    assert sorted(whole.kept) == [2, 5]
    assert torch.equal(whole.kept[5].weights.vector, whole.vector)
    walked = tw.walk(case.module(9), case.task, case.batches(), rate, epochs=3, start=whole.kept[2])
    assert torch.allclose(walked.members[-1].vector, whole.vector, rtol=1e-12)
    cold = tw.walk(case.module(9), case.task, case.batches(), rate, epochs=3, start=whole.kept[2].weights)
    assert not torch.allclose(cold.members[-1].vector, whole.vector, rtol=1e-3)


def test_walk_from_a_kept_epoch_of_adam_refuses_another_optimizer():
    case = ZOO["mlp"]
    settings = {"schedule": lambda i: 0.01, "optimizer": torch.optim.Adam}
    whole = tw.fit(case.module(1), case.task, case.batches(), epochs=4, keep=[2], **settings)
    walk = {"epochs": 2, "start": whole.kept[2]}
    walked = tw.walk(case.module(1), case.task, case.batches(), tw.SWA(lr=0.01), optimizer=torch.optim.Adam, **walk)
    assert torch.allclose(walked.members[-1].vector, whole.vector, rtol=1e-12)
    with pytest.raises(
        tw.ThalwegError,
        match=r"kept with the state of Adam, and cannot be resumed with SGD: .* start from weights without",
    ):
        tw.walk(case.module(1), case.task, case.batches(), tw.SWA(lr=0.01), **walk)


def test_walk_pools_several_starts():
    case = ZOO["conv_bn"]
    trained = tw.fit(case.module(1), case.task, case.batches(), epochs=4, lr=0.1, keep=[2, 3])
    both = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=4, start=list(trained.kept.values()))
    alone = [tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=4, start=s) for s in trained.kept.values()]
    assert len(both.members) == 6
    assert len(both.traces) == 2
    assert all(
        torch.equal(a.vector, b.vector) for a, b in zip(both.members, alone[0].members + alone[1].members, strict=True)
    )
    assert [member.made["start"] for member in both.members] == [0, 0, 0, 1, 1, 1]


def test_walk_trace_has_every_iteration():
    case = ZOO["conv_bn"]
    module, test = case.module(1), case.batches()[:2]
    walk = tw.walk(module, case.task, case.batches(), FGE, epochs=4, watch={"test": test})
    [trace], members = walk.traces, walk.members
    plan = FGE.plan(3, 4)
    assert trace.lr.tolist() == [plan.rate(i) for i in range(1, 13)]
    assert trace.collected == [2, 6, 10]
    start = tw.Weights.of(module)
    for member, i in zip(members, trace.collected, strict=True):
        assert member.made["iteration"] == i
        assert trace.distance[i - 1] == pytest.approx(start.distance(member), rel=1e-9)
    assert trace.watched_at == [0, 2, 3, 6, 9, 10, 12]
    for member, i in zip(members, trace.collected, strict=True):
        place = trace.watched_at.index(i)
        alone = tw.scan(module, [member], case.task, {"test": test}).values["test"]
        assert trace.watched["test"]["data_loss"][place] == pytest.approx(alone["data_loss"][0], rel=1e-12)
        assert trace.watched["test"]["error"][place] == alone["error"][0]
    assert np.isfinite(trace.loss).all()


def test_walk_watch_changes_nothing():
    case = ZOO["dropout"]
    loader = torch.utils.data.DataLoader(case.batches()[0][0], batch_size=2, shuffle=True)
    task = tw.Task(
        lambda outputs, targets: outputs.square().mean(1),
        lambda net, batch: (net(batch if isinstance(batch, torch.Tensor) else batch[0]), None),
    )
    walks = [
        tw.walk(case.module(1), task, case.batches(), FGE, epochs=4, watch=watch) for watch in (None, {"test": loader})
    ]
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(*(walk.members for walk in walks), strict=True))


def test_swa_average_is_torchs():
    case = ZOO["conv_bn"]
    module, batches = case.module(1), case.batches()
    members = tw.walk(module, case.task, batches, tw.SWA(lr=0.05), epochs=4).members
    averaged = torch.optim.swa_utils.AveragedModel(case.module(2))
    for member in members:
        member.load_into(module)
        averaged.update_parameters(module)
    ours = tw.average(members)
    assert torch.allclose(ours.vector, tw.Weights.of(averaged.module).vector, rtol=1e-12)
    torch.optim.swa_utils.update_bn(batches[:1], averaged.module)
    ours = tw.update_bn(module, ours, batches[:1])
    for name, value in tw.Weights.of(averaged.module).buffers.items():
        assert torch.allclose(ours.buffers[name].double(), value.double(), rtol=1e-10)


def test_polychain_through_walk_members_is_a_curve():
    case = ZOO["conv_bn"]
    members = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=4).members
    chain = tw.PolyChain.through(members)
    scan = tw.scan(case.module(1), chain, case.task, {"train": case.batches()}, points=5, bn_batches=case.batches())
    alone = tw.scan(case.module(1), members, case.task, {"train": case.batches()}, bn_batches=case.batches())
    assert np.allclose(scan.values["train"]["loss"][[0, 2, 4]], alone.values["train"]["loss"], rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": []}, "at least one start"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"method": tw.FGE}, "walk needs a method"),
    ],
)
def test_walk_refuses_bad_settings(settings, message):
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match=message):
        tw.walk(case.module(1), case.task, case.batches(), **{"method": FGE, "epochs": 2, **settings})


@pytest.mark.parametrize("keep", [[0], [4], [1, 9]])
def test_fit_keeps_only_epochs_of_the_run(keep):
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="keep must list epochs from 1 to 3"):
        tw.fit(case.module(1), case.task, case.batches(), epochs=3, lr=0.1, keep=keep)


def test_diverged_walk_keeps_what_it_collected():
    case, seen = ZOO["mlp"], []

    def loss(outputs, targets):
        seen.append(1)
        return case.task.loss(outputs, targets) * (float("nan") if len(seen) == 11 else 1)

    with pytest.raises(tw.Diverged, match="in step 11") as caught:
        tw.walk(case.module(1), tw.Task(loss), case.batches(), FGE, epochs=4)
    assert [member.made["iteration"] for member in caught.value.members] == [2, 6, 10]


def test_walk_from_several_starts_draws_different_orders():
    case, orders = ZOO["mlp"], []
    data = torch.utils.data.DataLoader(
        [(x, y) for b in case.batches() for x, y in zip(*b, strict=True)], 5, shuffle=True
    )

    def loss(outputs, targets):
        orders.append(tuple(targets.tolist()))
        return case.task.loss(outputs, targets)

    a, b = case.ends()
    tw.walk(case.module(1), tw.Task(loss), data, tw.SWA(lr=0.01), epochs=2, start=[a, b])
    assert orders[:6] != orders[6:]


def test_walk_refuses_a_loader_that_gives_less_than_its_length():
    case = ZOO["mlp"]

    class Short(list):
        def __len__(self):
            return 6

    with pytest.raises(tw.ThalwegError, match="of the batches is 6, but iterating gave 3"):
        tw.fit(case.module(1), case.task, Short(case.batches()), epochs=1, lr=0.1)


def test_walk_watching_its_own_loader_with_persistent_workers_says_what_to_do():
    """Such a loader has one iterator, which the measurement in the middle of an epoch starts over."""
    case = ZOO["mlp"]
    loader = torch.utils.data.DataLoader(case.batches(), batch_size=None, num_workers=1, persistent_workers=True)
    with pytest.raises(tw.ThalwegError, match=r"iterating gave 1: a loader with persistent workers .* give watch= an"):
        tw.walk(
            case.module(1), case.task, loader, tw.SWA(lr=0.1, cycle=tw.Iterations(1)), epochs=1, watch={"x": loader}
        )
