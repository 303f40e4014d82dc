"""Walks against plain torch, from kept checkpoints, with everything that is told about them."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from zoo import ZOO, bits, same_bits

import thalweg as tw

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def plain_walk(animal, module, method, epochs, weight_decay):
    """Ordinary torch, with weights copied where the plan says so."""
    module.train()
    moving = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(moving, lr=1.0, momentum=0.9, weight_decay=weight_decay)
    plan, members, i = method.plan(3, epochs), [], 0
    for _ in range(epochs):
        for batch in animal.batches():
            i += 1
            optimizer.param_groups[0]["lr"] = plan.rate(i)
            optimizer.zero_grad()
            animal.losses(module, batch).mean().backward()
            optimizer.step()
            if plan.collects(i):
                members.append(tw.Weights.of(module))
    return members


@pytest.mark.parametrize(
    "method", [FGE, tw.Snapshot(cycles=3, lr_max=0.1), tw.SWA(lr=0.05)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("name", [name for name in ZOO if name != "dropout"])
def test_a_walk_is_plain_training_with_copies(name, method):
    animal = ZOO[name]
    module = animal.module(1)
    before = bits(module)
    ours = tw.walk(module, animal.task, animal.batches(), method, epochs=4, weight_decay=0.01).members
    assert same_bits(before, bits(module))
    theirs = plain_walk(animal, module, method, 4, 0.01)
    assert len(ours) == len(theirs) == 3 + isinstance(method, tw.SWA)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-8, atol=1e-11)
        assert all(torch.allclose(one.buffers[key], two.buffers[key]) for key in two.buffers)


def test_a_walk_is_a_frozen_result_and_not_a_list():
    animal = ZOO["mlp"]
    walk = tw.walk(animal.module(1), animal.task, animal.batches(), FGE, epochs=4)
    assert type(walk) is tw.Walk
    with pytest.raises(FrozenInstanceError):
        walk.members = ()
    assert type(walk.members) is type(walk.traces) is tuple
    for misused in (
        lambda: tw.Ensemble(animal.module(1), walk),
        lambda: tw.average(walk),
        lambda: tw.PolyChain.through(walk),
    ):
        with pytest.raises(tw.ThalwegError, match=r"Weights,? such as walk\(\.\.\.\)\.members; got Walk"):
            misused()


@pytest.mark.parametrize("start", [torch.nn.Linear(2, 2), "weights.safetensors", [1]])
def test_a_start_of_another_kind_is_refused(start):
    with pytest.raises(
        tw.ThalwegError, match=r"a walk starts at Weights, or at a checkpoint of fit\(keep=\); got (Linear|str|int)"
    ):
        tw.walk(ZOO["mlp"].module(1), ZOO["mlp"].task, ZOO["mlp"].batches(), FGE, epochs=4, start=start)


def test_a_kept_epoch_resumes_with_its_momentum():
    """Training in one go equals training to a kept epoch and walking on from it."""
    animal = ZOO["channels_last"]
    rate = tw.SWA(lr=0.05)
    whole = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=5, schedule=lambda i: 0.05, keep=[2, 5])
    assert sorted(whole.kept) == [2, 5]
    assert torch.equal(whole.kept[5].weights.vector, whole.vector)
    walked = tw.walk(animal.module(9), animal.task, animal.batches(), rate, epochs=3, start=whole.kept[2])
    assert torch.allclose(walked.members[-1].vector, whole.vector, rtol=1e-12)
    cold = tw.walk(animal.module(9), animal.task, animal.batches(), rate, epochs=3, start=whole.kept[2].weights)
    assert not torch.allclose(cold.members[-1].vector, whole.vector, rtol=1e-3)


def test_adam_keeps_its_state_too_and_another_optimizer_is_refused():
    animal = ZOO["mlp"]
    settings = {"schedule": lambda i: 0.01, "optimizer": torch.optim.Adam}
    whole = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=4, keep=[2], **settings)
    walk = {"epochs": 2, "start": whole.kept[2]}
    walked = tw.walk(
        animal.module(1), animal.task, animal.batches(), tw.SWA(lr=0.01), optimizer=torch.optim.Adam, **walk
    )
    assert torch.allclose(walked.members[-1].vector, whole.vector, rtol=1e-12)
    with pytest.raises(tw.ThalwegError, match="kept with the state of Adam, and cannot be resumed with SGD"):
        tw.walk(animal.module(1), animal.task, animal.batches(), tw.SWA(lr=0.01), **walk)


def test_several_starts_are_pooled():
    animal = ZOO["conv_bn"]
    trained = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=4, lr=0.1, keep=[2, 3])
    both = tw.walk(animal.module(1), animal.task, animal.batches(), FGE, epochs=4, start=list(trained.kept.values()))
    alone = [
        tw.walk(animal.module(1), animal.task, animal.batches(), FGE, epochs=4, start=s) for s in trained.kept.values()
    ]
    assert len(both.members) == 6
    assert len(both.traces) == 2
    assert all(
        torch.equal(a.vector, b.vector) for a, b in zip(both.members, alone[0].members + alone[1].members, strict=True)
    )
    assert [member.made["start"] for member in both.members] == [0, 0, 0, 1, 1, 1]


def test_the_trace_tells_every_iteration():
    animal = ZOO["conv_bn"]
    module, test = animal.module(1), animal.batches()[:2]
    walk = tw.walk(module, animal.task, animal.batches(), FGE, epochs=4, watch={"test": test})
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
        alone = tw.scan(module, [member], animal.task, {"test": test}).values["test"]
        assert trace.watched["test"]["data_loss"][place] == pytest.approx(alone["data_loss"][0], rel=1e-12)
        assert trace.watched["test"]["error"][place] == alone["error"][0]
    assert np.isfinite(trace.loss).all()


def test_watching_does_not_change_the_walk():
    animal = ZOO["dropout"]
    loader = torch.utils.data.DataLoader(animal.batches()[0][0], batch_size=2, shuffle=True)
    task = tw.Task(
        lambda outputs, targets: outputs.square().mean(1),
        lambda net, batch: (net(batch if isinstance(batch, torch.Tensor) else batch[0]), None),
    )
    walks = [
        tw.walk(animal.module(1), task, animal.batches(), FGE, epochs=4, watch=watch)
        for watch in (None, {"test": loader})
    ]
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(*(walk.members for walk in walks), strict=True))


def test_a_trace_survives_its_file(tmp_path):
    animal = ZOO["mlp"]
    walk = tw.walk(animal.module(1), animal.task, animal.batches(), FGE, epochs=2, watch={"test": animal.batches()})
    walk.traces[0].save(tmp_path / "trace.json")
    assert tw.Trace.load(tmp_path / "trace.json").to_dict() == walk.traces[0].to_dict()


def test_swa_average_is_torchs():
    animal = ZOO["conv_bn"]
    module, batches = animal.module(1), animal.batches()
    members = tw.walk(module, animal.task, batches, tw.SWA(lr=0.05), epochs=4).members
    averaged = torch.optim.swa_utils.AveragedModel(animal.module(2))
    for member in members:
        member.load_into(module)
        averaged.update_parameters(module)
    ours = tw.average(members)
    assert torch.allclose(ours.vector, tw.Weights.of(averaged.module).vector, rtol=1e-12)
    torch.optim.swa_utils.update_bn(batches[:1], averaged.module)
    ours = tw.update_bn(module, ours, batches[:1])
    for name, value in tw.Weights.of(averaged.module).buffers.items():
        assert torch.allclose(ours.buffers[name].double(), value.double(), rtol=1e-10)


def test_the_chain_through_members_is_a_curve():
    animal = ZOO["conv_bn"]
    members = tw.walk(animal.module(1), animal.task, animal.batches(), FGE, epochs=4).members
    chain = tw.PolyChain.through(members)
    scan = tw.scan(
        animal.module(1), chain, animal.task, {"train": animal.batches()}, points=5, bn_batches=animal.batches()
    )
    alone = tw.scan(animal.module(1), members, animal.task, {"train": animal.batches()}, bn_batches=animal.batches())
    assert np.allclose(scan.values["train"]["loss"][[0, 2, 4]], alone.values["train"]["loss"], rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": []}, "at least one start"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"method": tw.FGE}, "walk needs a method"),
    ],
)
def test_bad_walks(settings, message):
    animal = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match=message):
        tw.walk(animal.module(1), animal.task, animal.batches(), **{"method": FGE, "epochs": 2, **settings})


@pytest.mark.parametrize("keep", [[0], [4], [1, 9]])
def test_only_epochs_of_the_run_can_be_kept(keep):
    animal = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match="keep names epochs between 1 and 3"):
        tw.fit(animal.module(1), animal.task, animal.batches(), epochs=3, lr=0.1, keep=keep)


def test_a_walk_that_diverges_keeps_what_it_collected():
    animal, seen = ZOO["mlp"], []

    def loss(outputs, targets):
        seen.append(1)
        return animal.task.loss(outputs, targets) * (float("nan") if len(seen) == 11 else 1)

    with pytest.raises(tw.Diverged, match="in step 11") as caught:
        tw.walk(animal.module(1), tw.Task(loss), animal.batches(), FGE, epochs=4)
    assert [member.made["iteration"] for member in caught.value.members] == [2, 6, 10]


def test_several_starts_do_not_see_the_same_order():
    animal, orders = ZOO["mlp"], []
    data = torch.utils.data.DataLoader(
        [(x, y) for b in animal.batches() for x, y in zip(*b, strict=True)], 5, shuffle=True
    )

    def loss(outputs, targets):
        orders.append(tuple(targets.tolist()))
        return animal.task.loss(outputs, targets)

    a, b = animal.ends()
    tw.walk(animal.module(1), tw.Task(loss), data, tw.SWA(lr=0.01), epochs=2, start=[a, b])
    assert orders[:6] != orders[6:]


def test_a_loader_that_promises_more_than_it_gives():
    animal = ZOO["mlp"]

    class Short(list):
        def __len__(self):
            return 6

    with pytest.raises(tw.ThalwegError, match="of the batches is 6, but iterating gave 3"):
        tw.fit(animal.module(1), animal.task, Short(animal.batches()), epochs=1, lr=0.1)
