"""Labels that do not count, where looking at them would wait for a GPU: the same means, and no look."""

import pytest
import torch
from looks import Looks
from torch import nn

import thalweg as tw
from thalweg import tasks
from thalweg.training.step import mean_loss

TOKENS = torch.randint(5, (3, 4, 6), generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def reader(seed=1):
    torch.manual_seed(seed)
    return Reader().double()


def batches():
    """The second is half padding, the third has none."""
    following = TOKENS.roll(-1, 2).clone()
    following[0, 0, 3:] = -100
    following[1, :, 3:] = -100
    return list(zip(TOKENS, following, strict=True))


def plain_mean(module, some):
    """Over all tokens that count."""
    logits = torch.cat([module(x).flatten(0, 1) for x, _ in some])
    return nn.functional.cross_entropy(logits, torch.cat([y.flatten() for _, y in some]))


@pytest.fixture
def away(monkeypatch):
    """As if all tensors were on a GPU."""
    monkeypatch.setattr(tasks, "looking_is_free", lambda tensor: False)


def test_padding_is_not_read_in_a_step(away):
    task, module = tw.language_modelling(), reader()
    mean_loss(task, module, lambda batch: batch, batches()[2])  # the first may, at the range of labels
    for batch in batches():
        with Looks() as looks:
            loss, number = mean_loss(task, module, lambda batch: batch, batch)
            loss.backward()
        assert not looks.seen
        assert int(number) == int((batch[1] != -100).sum())
        torch.testing.assert_close(loss, plain_mean(module, [batch]), rtol=1e-12, atol=0)


def test_padding_gradient_is_that_of_the_mean_over_tokens(away):
    task, module, batch = tw.language_modelling(), reader(), batches()[1]
    ours, theirs = mean_loss(task, module, lambda batch: batch, batch)[0], plain_mean(module, [batch])
    parameters = list(module.parameters())
    for one, two in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_padding_accumulated_batches_are_weighted_by_tokens(away):
    ours = tw.fit(
        reader(), tw.language_modelling(), batches(), epochs=1, schedule=lambda i: 0.1, momentum=0.0, accumulate=3
    )
    module = reader()
    plain_mean(module, batches()).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(ours.vector, tw.Weights.of(module).vector, rtol=1e-12, atol=1e-14)


def test_padding_scan_is_the_mean_over_tokens(away):
    a, b = tw.Weights.of(reader(1)), tw.Weights.of(reader(2))
    scan = tw.scan(reader(), tw.Segment(a, b), tw.language_modelling(), {"x": batches()}, points=3)
    module = reader(2)
    logits = torch.cat([module(x).flatten(0, 1) for x, _ in batches()])
    labels = torch.cat([y.flatten() for _, y in batches()])
    counted = labels != -100
    assert scan.values["x"]["loss"][-1] == pytest.approx(plain_mean(module, batches()).item(), rel=1e-12)
    assert scan.values["x"]["error"][-1] == pytest.approx(
        (logits.argmax(1) != labels)[counted].double().mean().item(), rel=1e-12
    )


def test_language_modelling_on_a_cpu_has_one_loss_per_counted_token():
    """One value per token that counts."""
    task, module, batch = tw.language_modelling(), reader(), batches()[1]
    values, number = task.losses(*task.predictions(module, batch), batch)
    assert (len(values), number) == (12, 12)


@pytest.mark.parametrize("where", [0, 1, 3])
def test_scan_leaves_out_batches_without_counted_labels(where):
    """Also where they are all that is measured again with a new copy."""
    some = batches()
    some.insert(where, (TOKENS[0], torch.full_like(TOKENS[0], -100)))
    scan = tw.scan(reader(), [tw.Weights.of(reader())], tw.language_modelling(), {"x": some})
    assert scan.values["x"]["loss"][0] == pytest.approx(plain_mean(reader(), batches()).item(), rel=1e-12)


def test_scan_refuses_data_without_counted_labels(away):
    batch = TOKENS[0], torch.full_like(TOKENS[0], -100)
    with pytest.raises(tw.ThalwegError, match="nothing in these data counts"):
        tw.scan(reader(), [tw.Weights.of(reader())], tw.language_modelling(), {"x": [batch]})


def test_task_size_may_be_a_tensor(away):
    """As the number of tokens of a model that computes its own mean."""
    sized = tw.Task(
        lambda outputs, targets: nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()),
        size=lambda batch: (batch[1] != -100).sum(),
    )
    runs = [
        tw.fit(reader(), task, batches(), epochs=2, lr=0.1, accumulate=2) for task in (sized, tw.language_modelling())
    ]
    torch.testing.assert_close(runs[0].vector, runs[1].vector, rtol=1e-12, atol=1e-14)
