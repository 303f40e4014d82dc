"""Several batches per update do what one large batch does, and count as one iteration."""

from functools import partial

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.runtime.accumulated import Parts
from thalweg.runtime.distributed import Ranks


def labels(batch):
    return batch["labels"] if isinstance(batch, dict) else batch[-1]


def accumulated_training(case, module, clip):
    """A loop as one writes it: gradients of two batches, weighted by their number of labels, then clipped."""
    module.train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for _ in range(3):
            batches = case.batches()
            for group in (batches[:2], batches[2:]):
                optimizer.zero_grad()
                for batch in group:
                    total = sum(labels(other).numel() for other in group)
                    (case.losses(module, batch).sum() / total).backward()
                if clip:
                    nn.utils.clip_grad_norm_(parameters, clip)
                optimizer.step()
    return tw.Weights.of(module)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "dropout", "tied_lstm", "transformer_dict", "frozen"])
def test_fit_with_accumulation_is_plain_training(name, clip):
    case = ZOO[name]
    settings = {"schedule": lambda i: 0.1, "weight_decay": 0.01, "clip": clip, "seed": 7, "accumulate": 2}
    ours = tw.fit(case.module(1), case.task, case.batches(), epochs=3, **settings)
    theirs = accumulated_training(case, case.module(1), clip)
    assert torch.allclose(ours.vector, theirs.vector, rtol=1e-9, atol=1e-12)
    assert all(torch.allclose(ours.buffers[key], theirs.buffers[key]) for key in theirs.buffers)


def test_accumulated_mean_with_a_size_is_weighted_by_it():
    case = ZOO["mlp"]
    mean = tw.Task(lambda outputs, targets: case.task.loss(outputs, targets).mean(), size=lambda batch: len(batch[0]))
    runs = [tw.fit(case.module(1), task, case.batches(), epochs=2, lr=0.1, accumulate=3) for task in (mean, case.task)]
    assert torch.allclose(*(run.vector for run in runs), rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_size_of_a_weighted_mean_is_the_total_weight(scale):
    """As in cross-entropy with weights of classes, which are seldom whole numbers."""
    case, weight = ZOO["mlp"], scale * torch.tensor([0.3, 1.7, 2.9], dtype=torch.float64)
    mean = tw.Task(partial(nn.functional.cross_entropy, weight=weight), size=lambda batch: weight[batch[1]].sum())
    batches = case.batches()
    whole = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]
    runs = [tw.fit(case.module(1), mean, data, epochs=2, lr=0.1, accumulate=3) for data in (batches, whole)]
    torch.testing.assert_close(runs[0].vector, runs[1].vector, rtol=1e-12, atol=1e-14)
    scans = [tw.scan(case.module(1), runs[:1], mean, data).values["data"]["loss"] for data in (batches, whole)]
    assert scans[0] == pytest.approx(scans[1], rel=1e-12)


def test_accumulated_iterations_are_updates():
    case, asked = ZOO["mlp"], []
    tw.fit(
        case.module(1),
        case.task,
        case.batches(),
        epochs=2,
        schedule=lambda i: asked.append(i) or 0.1,
        accumulate=2,
    )
    assert asked == [1, 2, 3, 4]
    method = tw.SWA(lr=0.1, cycle=1)
    walk = tw.walk(case.module(1), case.task, case.batches(), method, epochs=2, accumulate=2)
    assert walk.traces[0].collected == [2, 4]
    assert len(walk.traces[0].loss) == 4


def test_accumulated_loss_is_the_mean_over_examples():
    case = ZOO["mlp"]
    walk = tw.walk(case.module(1), case.task, case.batches(), tw.SWA(lr=1e-9), epochs=1, accumulate=3)
    values = torch.cat([case.losses(case.module(1), batch) for batch in case.batches()])
    assert walk.traces[0].loss.tolist() == pytest.approx([float(values.detach().mean())], rel=1e-8)


def test_accumulated_batches_may_be_in_the_same_memory():
    case = ZOO["mlp"]

    class Reusing(list):
        def __iter__(self):
            memory = [torch.empty_like(tensor) for tensor in self[0]]
            for batch in super().__iter__():
                yield tuple(own[: len(tensor)].copy_(tensor) for own, tensor in zip(memory, batch, strict=True))

    runs = [
        tw.fit(case.module(1), case.task, batches, epochs=2, lr=0.1, accumulate=3)
        for batches in (case.batches(), Reusing(case.batches()))
    ]
    assert torch.equal(runs[0].vector, runs[1].vector)


@pytest.mark.parametrize("wrong", [0, 1.5, "2", None])
@pytest.mark.parametrize("call", [tw.fit, tw.walk])
def test_accumulate_refuses_a_bad_number_of_batches(call, wrong):
    case = ZOO["mlp"]
    own = {"lr": 0.1} if call is tw.fit else {"method": tw.SWA(lr=0.1)}
    with pytest.raises(tw.ThalwegError, match="accumulate must be a whole number"):
        call(case.module(1), case.task, case.batches(), epochs=1, accumulate=wrong, **own)


def test_accumulate_refuses_hooks_on_parameters():
    module = nn.Linear(4, 3).double()
    module.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(tw.ThalwegError, match="hooks on parameters would run twice"):
        tw.fit(module, tw.classification(), ZOO["mlp"].batches(), epochs=1, lr=0.1, accumulate=2)


def test_accumulate_names_a_loss_without_gradient():
    task = tw.Task(lambda outputs, targets: outputs.detach().sum(1))
    with pytest.raises(tw.ThalwegError, match="does not depend on any moving weight"):
        tw.fit(nn.Linear(4, 3).double(), task, ZOO["mlp"].batches(), epochs=1, lr=0.1, accumulate=2)


def test_accumulated_part_without_counted_labels_adds_nothing():
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


def test_accumulated_parts_are_divided_among_ranks():
    """Of a single example only the second rank has any."""
    parts = Parts([(torch.arange(4), torch.arange(4)), (torch.arange(1), torch.arange(1))])
    first, second = (Ranks(rank, 2).share(parts) for rank in range(2))
    assert ([[t.tolist() for t in part] for part in first[0]], first[1]) == ([[[0, 1]] * 2], True)
    assert ([[t.tolist() for t in part] for part in second[0]], second[1]) == ([[[2, 3]] * 2, [[0]] * 2], True)
    alone = Ranks(0, 2).share(Parts(parts[1:]))
    assert (len(alone[0]), alone[1]) == (1, False)
