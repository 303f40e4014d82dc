"""Plain training equals torch's own, step for step."""

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw

ONES = [(torch.ones(2, 1), torch.ones(2, 1))]


def plain_training(animal, module, epochs, lr, weight_decay, clip=None):
    """Ten lines of ordinary torch."""
    module.train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for _ in range(epochs):
            for batch in animal.batches():
                optimizer.zero_grad()
                animal.losses(module, batch).mean().backward()
                if clip:
                    nn.utils.clip_grad_norm_(parameters, clip)
                optimizer.step()
    return tw.Weights.of(module)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ZOO)
def test_fit_is_plain_training(name, clip):
    animal = ZOO[name]
    module = animal.module(1)
    before = bits(module)
    ours = tw.fit(
        module, animal.task, animal.batches(), epochs=3, schedule=lambda i: 0.1, weight_decay=0.01, clip=clip, seed=7
    )
    assert same_bits(before, bits(module))
    theirs = plain_training(animal, module, 3, 0.1, 0.01, clip)
    assert torch.allclose(ours.vector, theirs.vector, rtol=1e-9, atol=1e-12)
    assert all(torch.allclose(ours.buffers[key], theirs.buffers[key]) for key in theirs.buffers)
    assert not torch.allclose(ours.vector, tw.Weights.of(animal.module(1)).vector, atol=1e-3)


@pytest.mark.parametrize("name", ["conv_bn", "dropout", "tied_lstm"])
def test_same_seed_same_bits(name):
    animal = ZOO[name]
    loader = torch.utils.data.DataLoader(
        [(x, y) for batch in animal.batches() for x, y in zip(*batch, strict=True)], batch_size=4, shuffle=True
    )
    runs = [tw.fit(animal.module(1), animal.task, loader, epochs=2, lr=0.1, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert not torch.equal(runs[0].vector, runs[2].vector)


def test_an_optimizer_that_needs_a_closure_is_refused():
    with pytest.raises(tw.ThalwegError, match="must take steps without a closure, and LBFGS needs one"):
        tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=1, lr=0.1, optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize("scalar", [np.float32, torch.tensor])
def test_a_schedule_may_give_any_kind_of_number(scalar, tmp_path):
    def trained(kind, run):
        torch.manual_seed(1)
        return tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=2, schedule=lambda i: kind(0.5), run=run).vector

    assert torch.equal(trained(scalar, tmp_path / "a"), trained(float, None))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"schedule": lambda i: None}, "the learning rate of iteration 1 must be a number; got None"),
        ({"lr": 0.1, "compute": "bf16"}, "compute must be a Compute, such as Compute"),
    ],
)
def test_settings_of_another_kind_are_named(wrong, told):
    with pytest.raises(tw.ThalwegError, match=told):
        tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=1, **wrong)


def test_the_schedule_is_asked_for_each_iteration_from_one():
    asked = []
    animal = ZOO["mlp"]
    tw.fit(animal.module(1), animal.task, animal.batches(), epochs=2, schedule=lambda i: asked.append(i) or 0.1)
    assert asked == [1, 2, 3, 4, 5, 6]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_weights():
    animal, seen = ZOO["mlp"], []

    def loss(outputs, targets):
        seen.append(1)
        values = animal.task.loss(outputs, targets)
        return values * float("nan") if len(seen) == 5 else values

    with pytest.raises(tw.Diverged, match=r"became nan in step 5 with learning rate 0\.1") as caught:
        tw.fit(animal.module(1), tw.Task(loss), animal.batches(), epochs=9, schedule=lambda i: 0.1)
    one_epoch = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=1, schedule=lambda i: 0.1)
    assert torch.equal(caught.value.last_good.vector, one_epoch.vector)
    assert (caught.value.step, caught.value.lr, caught.value.t) == (5, 0.1, None)


def test_weights_that_overflow_are_not_a_result():
    """The last update of an epoch may break what every loss before it found in order."""
    animal = ZOO["mlp"]
    with pytest.raises(tw.Diverged, match="are no longer finite after step 3"):
        tw.fit(
            animal.module(1),
            animal.task,
            animal.batches(),
            epochs=1,
            schedule=lambda i: float("inf") if i == 3 else 0.1,
        )


def test_a_mean_with_a_size_is_a_loss_too():
    animal = ZOO["mlp"]
    mean = tw.Task(lambda outputs, targets: animal.task.loss(outputs, targets).mean(), size=lambda batch: len(batch[0]))
    runs = [tw.fit(animal.module(1), task, animal.batches(), epochs=1, lr=0.1) for task in (mean, animal.task)]
    assert torch.equal(runs[0].vector, runs[1].vector)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"lr": None}, "lr must be above 0"),
        ({"lr": 0.1, "schedule": lambda i: 0.1}, "lr= would be ignored"),
        ({"lr": -1.0}, "lr must be above 0"),
        ({"weight_decay": -1e-4}, "weight_decay must be 0 or more"),
        ({"weight_decay": None}, "weight_decay must be a number; got None"),
        ({"momentum": None}, "momentum must be a number; got None"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"optimizer": torch.optim.AdamW, "weight_decay": 0.1}, "not both; got weight_decay=0.1, and 0.01 in AdamW"),
        ({"optimizer": lambda named: None}, "a function that turns named parameters"),
        ({"optimizer": lambda named: torch.optim.SGD(named[1:])}, "'0.weight' is in no group"),
        ({"optimizer": lambda named: torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "1 of 1 are others"),
        ({"optimizer": lambda named: [{"params": named[:2], "lr": 0.0}, {"params": named[2:]}]}, "must not be 0"),
        ({"batches": []}, "the batches are empty"),
        ({"batches": iter([1])}, "must have a length"),
    ],
)
def test_bad_settings(change, message):
    animal = ZOO["mlp"]
    settings = {"batches": animal.batches(), "epochs": 1, "lr": 0.1, **change}
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(animal.module(1), animal.task, **settings)


def test_bad_inputs_are_named_when_the_loss_is_not_finite():
    animal = ZOO["mlp"]
    batches = animal.batches()
    batches[1][0][0, 0] = torch.nan
    with pytest.raises(
        tw.Diverged, match=r"in step 2 with learning rate 0\.\d+: item 0 of the batch of that step holds NaN"
    ):
        tw.fit(animal.module(1), animal.task, batches, epochs=2, lr=0.1)
