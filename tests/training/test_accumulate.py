"""Several batches per update do what one large batch does, and count as one iteration."""

from math import cos, pi

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.runtime.accumulated import Parts
from thalweg.runtime.distributed import Ranks


def labels(batch):
    return batch["labels"] if isinstance(batch, dict) else batch[-1]


def accumulated_training(animal, module, clip):
    """A loop as one writes it: gradients of two batches, weighted by their number of labels, then clipped."""
    module.train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for _ in range(3):
            batches = animal.batches()
            for group in (batches[:2], batches[2:]):
                optimizer.zero_grad()
                for batch in group:
                    total = sum(labels(other).numel() for other in group)
                    (animal.losses(module, batch).sum() / total).backward()
                if clip:
                    nn.utils.clip_grad_norm_(parameters, clip)
                optimizer.step()
    return tw.Weights.of(module)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "dropout", "tied_lstm", "transformer_dict", "frozen"])
def test_fit_with_accumulation_is_plain_training(name, clip):
    animal = ZOO[name]
    settings = {"schedule": lambda i: 0.1, "weight_decay": 0.01, "clip": clip, "seed": 7, "accumulate": 2}
    ours = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=3, **settings)
    theirs = accumulated_training(animal, animal.module(1), clip)
    assert torch.allclose(ours.vector, theirs.vector, rtol=1e-9, atol=1e-12)
    assert all(torch.allclose(ours.buffers[key], theirs.buffers[key]) for key in theirs.buffers)


def test_a_mean_with_a_size_is_weighted_by_it():
    animal = ZOO["mlp"]
    mean = tw.Task(lambda outputs, targets: animal.task.loss(outputs, targets).mean(), size=lambda batch: len(batch[0]))
    runs = [
        tw.fit(animal.module(1), task, animal.batches(), epochs=2, lr=0.1, accumulate=3) for task in (mean, animal.task)
    ]
    assert torch.allclose(*(run.vector for run in runs), rtol=1e-12)


def test_iterations_are_updates():
    animal, asked = ZOO["mlp"], []
    tw.fit(
        animal.module(1),
        animal.task,
        animal.batches(),
        epochs=2,
        schedule=lambda i: asked.append(i) or 0.1,
        accumulate=2,
    )
    assert asked == [1, 2, 3, 4]
    method = tw.SWA(lr=0.1, cycle=1)
    walk = tw.walk(animal.module(1), animal.task, animal.batches(), method, epochs=2, accumulate=2)
    assert walk.traces[0].collected == [2, 4]
    assert len(walk.traces[0].loss) == 4


def test_the_loss_of_an_update_is_the_mean_over_its_examples():
    animal = ZOO["mlp"]
    walk = tw.walk(animal.module(1), animal.task, animal.batches(), tw.SWA(lr=1e-9), epochs=1, accumulate=3)
    values = torch.cat([animal.losses(animal.module(1), batch) for batch in animal.batches()])
    assert walk.traces[0].loss.tolist() == pytest.approx([float(values.detach().mean())], rel=1e-8)


@pytest.mark.parametrize("wrong", [0, 1.5, "2", None])
@pytest.mark.parametrize("call", [tw.fit, tw.walk])
def test_a_number_of_batches_that_is_none_is_refused(call, wrong):
    animal = ZOO["mlp"]
    own = {"lr": 0.1} if call is tw.fit else {"method": tw.SWA(lr=0.1)}
    with pytest.raises(tw.ThalwegError, match="accumulate must be a whole number"):
        call(animal.module(1), animal.task, animal.batches(), epochs=1, accumulate=wrong, **own)


def test_hooks_on_parameters_are_refused():
    module = nn.Linear(4, 3).double()
    module.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(tw.ThalwegError, match="hooks on parameters would run twice"):
        tw.fit(module, tw.classification(), ZOO["mlp"].batches(), epochs=1, lr=0.1, accumulate=2)


def test_a_loss_without_gradient_is_still_named():
    task = tw.Task(lambda outputs, targets: outputs.detach().sum(1))
    with pytest.raises(tw.ThalwegError, match="does not depend on any moving weight"):
        tw.fit(nn.Linear(4, 3).double(), task, ZOO["mlp"].batches(), epochs=1, lr=0.1, accumulate=2)


def test_a_part_without_any_label_that_counts_adds_nothing():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 4, generator=g).double(), torch.randint(3, (6,), generator=g)
    full, empty = (x, y), (x, torch.full_like(y, -100))
    module = nn.Linear(4, 3).double()
    mean = tw.Task(nn.functional.cross_entropy, size=lambda batch: (batch[1] != -100).sum())  # NaN without any
    runs = [
        tw.fit(module, task, parts, epochs=1, lr=0.1, accumulate=2)
        for parts in ([full], [full, empty], [empty, full])
        for task in (tw.classification(), mean)
    ]
    assert all(torch.allclose(run.vector, runs[0].vector, rtol=1e-12) for run in runs)
    with pytest.raises(tw.ThalwegError, match="nothing in this batch counts"):
        tw.fit(module, tw.classification(), [full, full, empty], epochs=1, lr=0.1, accumulate=2)


def test_sparse_gradients_are_accumulated():
    """As those of an embedding may be; a single batch adds them to the dense gradient by itself."""
    runs = []
    for sparse in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.EmbeddingBag(7, 4, sparse=sparse), nn.Linear(4, 3)).double()
        batches = [(torch.randint(7, (5, 3)), torch.randint(3, (5,))) for _ in range(3)]
        runs.append(tw.fit(module, tw.classification(), batches, epochs=2, lr=0.1, accumulate=2))
    assert torch.allclose(runs[0].vector, runs[1].vector, rtol=1e-12)


def test_each_part_is_divided_among_ranks():
    """Of a single example only the second rank has any."""
    parts = Parts([(torch.arange(4), torch.arange(4)), (torch.arange(1), torch.arange(1))])
    first, second = (Ranks(rank, 2).share(parts) for rank in range(2))
    assert ([[t.tolist() for t in part] for part in first[0]], first[1]) == ([[[0, 1]] * 2], True)
    assert ([[t.tolist() for t in part] for part in second[0]], second[1]) == ([[[2, 3]] * 2, [[0]] * 2], True)
    alone = Ranks(0, 2).share(Parts(parts[1:]))
    assert (len(alone[0]), alone[1]) == (1, False)


@pytest.mark.parametrize("warmup", [2, 0.5, tw.Iterations(6), 0])
def test_warm_up_and_cosine(warmup):
    rate = tw.WarmupCosine(lr_max=0.4, warmup=warmup, lr_min=0.1).plan(steps=10, epochs=5).rate
    warm = {2: 20, 0.5: 5, 0: 0}.get(warmup, 6)
    for i in range(1, 51):
        along = 0.1 + 0.3 * (1 + cos(pi * (i - 1 - warm) / (50 - warm))) / 2
        assert rate(i) == pytest.approx(0.4 * i / warm if i <= warm else along, rel=1e-12)


def test_warm_up_and_cosine_knows_the_length_of_the_run():
    animal, seen = ZOO["mlp"], []

    class Recorded(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    def made(named):
        return Recorded([{"params": named[:2], "lr": 1.0}, {"params": named[2:], "lr": 0.5}])

    schedule = tw.WarmupCosine(0.2, warmup=1)
    settings = {"epochs": 3, "schedule": schedule, "accumulate": 2, "optimizer": made}
    tw.fit(animal.module(1), animal.task, animal.batches(), **settings)
    rates = [schedule.plan(2, 3).rate(i) for i in range(1, 7)]
    assert [first for first, _ in seen] == rates
    assert [second for _, second in seen] == pytest.approx([0.5 * lr for lr in rates], rel=1e-15)


def test_warm_up_and_cosine_in_a_loop_of_ones_own():
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
def test_warm_up_and_cosine_scale_the_rate_of_ones_own_optimizer(resumed):
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
    ("made", "told"),
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
def test_what_is_no_warm_up_is_named(made, told):
    with pytest.raises(tw.ThalwegError, match=told):
        made()
