"""Plain training equals torch's own, step for step."""

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw

ONES = [(torch.ones(2, 1), torch.ones(2, 1))]


def plain_training(case, module, epochs, lr, weight_decay, clip=None):
    """Ten lines of ordinary torch."""
    module.train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for _ in range(epochs):
            for batch in case.batches():
                optimizer.zero_grad()
                case.losses(module, batch).mean().backward()
                if clip:
                    nn.utils.clip_grad_norm_(parameters, clip)
                optimizer.step()
    return tw.Weights.of(module)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ZOO)
def test_fit_is_plain_training(name, clip):
    case = ZOO[name]
    module = case.module(1)
    before = bits(module)
    ours = tw.fit(
        module, case.task, case.batches(), epochs=3, schedule=lambda i: 0.1, weight_decay=0.01, clip=clip, seed=7
    )
    assert same_bits(before, bits(module))
    theirs = plain_training(case, module, 3, 0.1, 0.01, clip)
    assert torch.allclose(ours.vector, theirs.vector, rtol=1e-9, atol=1e-12)
    assert all(torch.allclose(ours.buffers[key], theirs.buffers[key]) for key in theirs.buffers)
    assert not torch.allclose(ours.vector, tw.Weights.of(case.module(1)).vector, atol=1e-3)


@pytest.mark.parametrize("name", ["conv_bn", "dropout", "tied_lstm"])
def test_fit_with_the_same_seed_gives_the_same_bits(name):
    case = ZOO[name]
    loader = torch.utils.data.DataLoader(
        [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)], batch_size=4, shuffle=True
    )
    runs = [tw.fit(case.module(1), case.task, loader, epochs=2, lr=0.1, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert not torch.equal(runs[0].vector, runs[2].vector)


def test_fit_refuses_an_optimizer_that_needs_a_closure():
    with pytest.raises(tw.ThalwegError, match="must take steps without a closure, and LBFGS needs one"):
        tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=1, lr=0.1, optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": lambda i: None}, "the learning rate of iteration 1 must be a number of 0 or more; got None"),
        ({"schedule": lambda i: -0.1}, "the learning rate of iteration 1 must be a number of 0 or more; got -0.1"),
        ({"lr": 0.1, "compute": "bf16"}, "compute must be a Compute, such as Compute"),
    ],
)
def test_fit_names_settings_of_another_kind(wrong, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=1, **wrong)


def test_fit_takes_a_mean_loss_with_a_size():
    case = ZOO["mlp"]
    mean = tw.Task(lambda outputs, targets: case.task.loss(outputs, targets).mean(), size=lambda batch: len(batch[0]))
    runs = [tw.fit(case.module(1), task, case.batches(), epochs=1, lr=0.1) for task in (mean, case.task)]
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
def test_fit_refuses_bad_settings(change, message):
    case = ZOO["mlp"]
    settings = {"batches": case.batches(), "epochs": 1, "lr": 0.1, **change}
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(case.module(1), case.task, **settings)
