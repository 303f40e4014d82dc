"""Tasks: shapes, labels, metrics."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.tasks import outputs_of

LOGITS, LABELS = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])


def test_classification_is_cross_entropy_and_error():
    task = tw.classification()
    assert torch.equal(task.loss(nn.Identity(), (LOGITS, LABELS)), F.cross_entropy(LOGITS, LABELS, reduction="none"))
    outputs, targets = task.predict(nn.Identity(), (LOGITS, LABELS))
    assert torch.equal(task.measure(outputs, targets)["error"], (LOGITS.argmax(1) != LABELS).float())
    assert torch.allclose(task.probabilities(outputs, targets), LOGITS.softmax(1))


def test_segmentation_has_its_classes_in_dimension_one():
    logits, labels = torch.randn(2, 4, 3, 3), torch.randint(4, (2, 3, 3))
    assert tw.classification().losses(nn.Identity(), (logits, labels))[1] == 18
    assert tw.classification().measure(logits, labels)["error"].shape == (2, 3, 3)
    assert torch.allclose(tw.classification().probabilities(logits, labels).sum(1), torch.ones(2, 3, 3))


def test_language_modelling_counts_tokens():
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [4, 0, 1]])
    task = tw.language_modelling()
    values, count = task.losses(nn.Identity(), (logits, labels))
    expected = F.cross_entropy(logits.reshape(-1, 5), labels.reshape(-1), reduction="none")[labels.reshape(-1) != -100]
    assert count == 5
    assert torch.allclose(values, expected)


def test_regression_averages_over_outputs():
    outputs, targets = torch.randn(4, 3), torch.randn(4, 3)
    task = tw.regression()
    assert torch.allclose(task.loss(nn.Identity(), (outputs, targets)), (outputs - targets).square().mean(1))
    assert task.measure(outputs, targets) == {}
    assert torch.equal(task.probabilities(outputs, targets), outputs)
    with pytest.raises(tw.ThalwegError, match=r"outputs and targets of one shape; got \(4, 1\) and \(4,\)"):
        task.loss(nn.Identity(), (outputs[:, :1], targets[:, 0]))


@pytest.mark.parametrize("result", [LOGITS, SimpleNamespace(logits=LOGITS), {"logits": LOGITS}, (LOGITS, "state")])
def test_networks_may_return_more_than_logits(result):
    assert outputs_of(result) is LOGITS


def test_dict_batches_go_in_by_name():
    batch = {"input": LOGITS, "label": LABELS}
    assert tw.classification().predict(lambda input: 2 * input, batch)[0].equal(2 * LOGITS)


def test_metrics_of_the_users_own():
    task = tw.Task(lambda net, batch: batch, metrics={"length": lambda outputs, targets: outputs.norm(dim=1)})
    assert torch.equal(task.measure(LOGITS, LABELS)["length"], LOGITS.norm(dim=1))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda net, batch: net(batch[0]).mean(), "one value per example, so that a short last batch counts exactly"),
        (lambda net, batch: 3.0, "must return a tensor of floats, one per example; got float"),
        (lambda net, batch: net(batch[0]).argmax(1), r"got torch\.int64 \(6,\)"),
        (lambda net, batch: net(batch[0])[:0], "got an empty tensor"),
    ],
)
def test_a_loss_of_the_wrong_shape(loss, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(nn.Linear(4, 4), tw.Task(loss), [(LOGITS, LABELS)], epochs=1, lr=0.1)


def test_a_metric_must_not_average():
    task = tw.Task(tw.classification().loss, tw.classification().predict, metrics={"mine": lambda o, y: o.mean()})
    with pytest.raises(tw.ThalwegError, match="the metric 'mine' must return one value per example"):
        task.measure(LOGITS, LABELS)


def test_predict_returns_two_tensors():
    with pytest.raises(tw.ThalwegError, match="predict must return two tensors"):
        tw.Task(lambda net, batch: batch, lambda net, batch: LOGITS).predictions(nn.Identity(), None)


@pytest.mark.parametrize("bad", [-1, 4])
def test_labels_out_of_range(bad):
    labels = LABELS.clone()
    labels[2] = bad
    with pytest.raises(tw.ThalwegError, match=r"labels must lie between 0 and 3, since the network gives 4 logits"):
        tw.fit(nn.Linear(4, 4), tw.classification(), [(LOGITS, labels)], epochs=1, lr=0.1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (LOGITS, "a batch must be"),
        ({"x": LOGITS}, "a dict batch needs its targets under one of"),
        (("x", LABELS), "the network must return a tensor or something with logits; got str"),
    ],
)
def test_batches_no_task_understands(batch, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.classification().loss(nn.Identity(), batch)


@pytest.mark.parametrize("name", ["loss", "data_loss"])
def test_metrics_must_not_take_the_names_of_the_loss(name):
    with pytest.raises(tw.ThalwegError, match=f"'{name}' is the name of the task's own loss"):
        tw.Task(tw.classification().loss, tw.classification().predict, metrics={name: lambda o, y: o[:, 0]})


def test_label_smoothing_is_torch_own():
    expected = F.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=0.1)
    assert torch.equal(tw.classification(label_smoothing=0.1).loss(nn.Identity(), (LOGITS, LABELS)), expected)
    with pytest.raises(tw.ThalwegError, match=r"label_smoothing is a share, from 0 to 1; got 1\.5"):
        tw.classification(label_smoothing=1.5)


def test_integer_one_hot_targets_are_probabilities():
    expected = F.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(tw.classification().loss(nn.Identity(), (LOGITS, F.one_hot(LABELS, 4))), expected)
