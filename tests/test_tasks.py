"""Tasks: shapes, labels, metrics."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.evaluation.metrics import Metrics, averaged
from thalweg.tasks import outputs_of
from thalweg.training.step import mean_loss

LOGITS, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1])


def test_logits_without_a_dimension_of_classes_are_refused():
    net, task = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)), tw.classification()
    points, batches = [tw.Weights.of(net)], [(torch.ones(3, 1), torch.tensor([0, 1, 0]))]
    calls = (lambda: tw.scan(net, points, task, batches), lambda: tw.Ensemble(net, points).score(task, batches))
    for call in calls:
        with pytest.raises(tw.ThalwegError, match=r"logits are of shape \(count, classes, \.\.\.\); got \(3,\)"):
            call()


def test_classification_is_cross_entropy_and_error():
    task = tw.classification()
    outputs, targets = task.predict(nn.Identity(), (LOGITS, LABELS))
    assert torch.equal(task.loss(outputs, targets), F.cross_entropy(LOGITS, LABELS, reduction="none"))
    assert torch.equal(Metrics(task)(outputs, targets)["error"], (LOGITS.argmax(1) != LABELS).float())
    assert torch.allclose(averaged(task, outputs, targets), LOGITS.double().softmax(1))


def test_segmentation_has_its_classes_in_dimension_one():
    logits, labels = torch.randn(2, 4, 3, 3), torch.randint(4, (2, 3, 3))
    assert tw.classification().losses(logits, labels, None)[1] == 18
    assert Metrics(tw.classification())(logits, labels)["error"].shape == (2, 3, 3)
    assert torch.allclose(averaged(tw.classification(), logits, labels).sum(1), torch.ones(2, 3, 3).double())


def test_language_modelling_counts_tokens():
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [4, 0, 1]])
    task = tw.language_modelling()
    values, count = task.losses(*task.predict(nn.Identity(), (logits, labels)), None)
    expected = F.cross_entropy(logits.reshape(-1, 5), labels.reshape(-1), reduction="none")[labels.reshape(-1) != -100]
    assert count == 5
    assert torch.allclose(values, expected)


def test_regression_averages_over_outputs():
    outputs, targets = torch.randn(4, 3), torch.randn(4, 3)
    task = tw.regression()
    assert torch.allclose(task.loss(outputs, targets), (outputs - targets).square().mean(1))
    assert Metrics(task)(outputs, targets) == {}
    assert torch.equal(averaged(task, outputs, targets), outputs.double())
    with pytest.raises(tw.ThalwegError, match=r"outputs and targets of one shape; got \(4, 1\) and \(4,\)"):
        task.loss(outputs[:, :1], targets[:, 0])


@pytest.mark.parametrize("result", [LOGITS, SimpleNamespace(logits=LOGITS), {"logits": LOGITS}, (LOGITS, "state")])
def test_classification_takes_networks_that_return_more_than_logits(result):
    assert outputs_of(result) is LOGITS


def test_dict_batches_go_in_by_name():
    batch = {"input": LOGITS, "label": LABELS}
    assert tw.classification().predict(lambda input: 2 * input, batch)[0].equal(2 * LOGITS)


def test_custom_metrics():
    task = tw.Task(tw.classification().loss, metrics={"length": lambda outputs, targets: outputs.norm(dim=1)})
    assert torch.equal(Metrics(task)(LOGITS, LABELS)["length"], LOGITS.norm(dim=1))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: outputs.mean(), "one value per example, so that a short last batch counts exactly"),
        (lambda outputs, targets: 3.0, "must return a tensor of floats, one per example; got float"),
        (lambda outputs, targets: outputs.argmax(1), r"got torch\.int64 \(6,\)"),
        (lambda outputs, targets: outputs[:0], "nothing in this batch counts \\(all labels are -100"),
    ],
)
def test_task_refuses_a_loss_of_the_wrong_shape(loss, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(nn.Linear(4, 4), tw.Task(loss), [(LOGITS, LABELS)], epochs=1, lr=0.1)


def test_task_refuses_a_metric_that_averages():
    task = tw.Task(tw.classification().loss, metrics={"mine": lambda o, y: o.mean()})
    with pytest.raises(tw.ThalwegError, match="the metric 'mine' must return one value per example"):
        Metrics(task)(LOGITS, LABELS)


def test_task_predict_must_return_outputs_and_targets():
    task = tw.Task(tw.classification().loss, lambda net, batch: LOGITS)
    with pytest.raises(
        tw.ThalwegError, match=r"predict must return two things, outputs and targets; got torch\.float32 \(6, 4\)"
    ):
        tw.fit(nn.Linear(4, 4), task, [(LOGITS, LABELS)], epochs=1, lr=0.1)


@pytest.mark.parametrize("bad", [-1, 4])
def test_classification_refuses_labels_out_of_range(bad):
    labels = LABELS.clone()
    labels[2] = bad
    with pytest.raises(tw.ThalwegError, match=r"labels must lie between 0 and 3, since the network gives 4 logits"):
        tw.fit(nn.Linear(4, 4), tw.classification(), [(LOGITS, labels)], epochs=1, lr=0.1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (LOGITS, "a batch must be"),
        ({"x": LOGITS}, "a dict batch needs its targets under one of"),
        (("x", LABELS), "outputs must be a tensor, have one as .logits, or start with one; got str"),
    ],
)
def test_task_refuses_batches_it_does_not_understand(batch, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.classification().predict(nn.Identity(), batch)


@pytest.mark.parametrize("name", ["loss", "data_loss"])
def test_task_refuses_metrics_named_as_the_loss(name):
    with pytest.raises(tw.ThalwegError, match=f"'{name}' is the name of the task's own loss"):
        tw.Task(tw.classification().loss, metrics={name: lambda o, y: o[:, 0]})


def test_label_smoothing_is_torch_own():
    expected = F.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=0.1)
    assert torch.equal(tw.classification(label_smoothing=0.1).loss(LOGITS, LABELS), expected)
    with pytest.raises(tw.ThalwegError, match=r"label_smoothing is a fraction, from 0 to 1; got 1\.5"):
        tw.classification(label_smoothing=1.5)


def test_integer_one_hot_targets_are_probabilities():
    expected = F.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(tw.classification().loss(LOGITS, F.one_hot(LABELS, 4)), expected)


@pytest.mark.parametrize(
    "loss",
    [
        partial(F.cross_entropy, reduction="none", label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
    ],
)
def test_task_of_a_torch_loss_alone(loss):
    """Trained, scanned and ensembled as classification with the same label smoothing, with error and probabilities."""
    torch.manual_seed(0)
    module, batches = nn.Linear(4, 4), [(LOGITS, LABELS), (LOGITS[:3], LABELS[:3])]
    start, known = tw.Weights.of(module), tw.classification(label_smoothing=0.1)
    ends = [tw.fit(module, task, batches, epochs=2, lr=0.1).vector for task in (tw.Task(loss), known)]
    assert torch.equal(*ends)
    one, two = (tw.scan(module, [start], task, {"x": batches}) for task in (tw.Task(loss), known))
    assert {name: values.tolist() for name, values in one.values["x"].items()} == (
        {name: values.tolist() for name, values in two.values["x"].items()}
    )
    assert one.units == {"error": "%"}
    scores = [tw.Ensemble(module, [start]).score(task, batches) for task in (tw.Task(loss), known)]
    assert scores[0] == scores[1]
    assert set(scores[0]) >= {"error", "nll", "brier", "ece", "disagreement"}  # and calibrated where it can be


OLD = r"loss takes \(outputs, targets\) now: move the call of the network into predict="


@pytest.mark.parametrize(
    "loss",
    [
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], reduction="none"),
        lambda net, batch: net["first"](batch[0]).square().mean(1),
        lambda net, batch: net.training_step(batch, 0),
        lambda model, data: F.cross_entropy(model(data["x"]), data["y"], reduction="none"),
        lambda f, xy: F.cross_entropy(f(xy[0]), xy[1], reduction="none"),
        lambda net, batch: 3.0,
    ],
)
@pytest.mark.parametrize(
    "predict", [{}, {"predict": lambda net, batch: (SimpleNamespace(logits=net(batch[0])), batch[1])}]
)
def test_task_refuses_a_loss_of_a_network_and_a_batch(loss, predict):
    module, task, batches = nn.Linear(4, 4), tw.Task(loss, **predict), [(LOGITS, LABELS)]
    for call in (
        lambda: tw.fit(module, task, batches, epochs=1, lr=0.1),
        lambda: tw.scan(module, [tw.Weights.of(module)], task, {"x": batches}),
    ):
        with pytest.raises(tw.ThalwegError, match=OLD):
            call()


def test_task_leaves_an_error_of_the_loss_as_it_is():
    with pytest.raises(KeyError, match="missing"):
        tw.fit(nn.Linear(4, 4), tw.Task(lambda outputs, targets: {}["missing"]), [(LOGITS, LABELS)], epochs=1, lr=0.1)


def test_predict_may_return_more_targets_for_the_loss():
    """A penalty on weights, in the loss and its gradient; error and ensembles read the first part of the outputs."""

    def predict(net, batch):
        return (net(batch[0]), 0.1 * net.weight.square().sum()), batch[1]

    def loss(outputs, targets):
        logits, penalty = outputs
        return F.cross_entropy(logits, targets, reduction="none") + penalty

    module, batches, task = nn.Linear(4, 4).double(), [(LOGITS.double(), LABELS)], tw.Task(loss, predict)
    logits = F.linear(LOGITS.double(), module.weight, module.bias)
    expected = F.cross_entropy(logits, LABELS) + 0.1 * module.weight.square().sum()
    [slope] = torch.autograd.grad(expected, module.weight)
    stepped = tw.fit(module, task, batches, epochs=1, schedule=lambda i: 0.5, momentum=0.0)
    assert torch.allclose(stepped.tensors()["weight"], module.weight - 0.5 * slope)
    found = tw.scan(module, [tw.Weights.of(module)], task, {"x": batches}).values["x"]
    assert found["loss"][0] == pytest.approx(expected.item(), rel=1e-12)
    assert found["error"][0] == pytest.approx((logits.argmax(1) != LABELS).double().mean().item())
    probabilities, _ = tw.Ensemble(module, [tw.Weights.of(module)]).predict(task, batches)
    assert torch.allclose(probabilities, logits.softmax(1))


def test_outputs_without_a_tensor_are_for_metrics_and_probabilities_of_ones_own():
    task = tw.Task(
        lambda outputs, targets: (outputs["a"] - targets["a"]).abs().sum(1),
        lambda net, batch: ({"a": net(batch[0])}, {"a": batch[0]}),
    )
    module, batches = nn.Linear(4, 4), [(LOGITS, LABELS)]
    assert set(tw.scan(module, [tw.Weights.of(module)], task, {"x": batches}).values["x"]) == {"loss", "data_loss"}
    own = tw.Task(
        task.loss,
        lambda net, batch: ({"a": net(batch[0])}, LABELS),
        metrics={"low": lambda outputs, targets: (outputs["a"] < 0).float().mean(1)},
        probabilities=lambda outputs: outputs["a"].softmax(1),
    )
    with torch.no_grad():
        expected = module(LOGITS)
    probabilities, _ = tw.Ensemble(module, [tw.Weights.of(module)]).predict(own, batches)
    assert torch.allclose(probabilities, expected.softmax(1))
    assert torch.equal(Metrics(own)({"a": expected}, LABELS)["low"], (expected < 0).float().mean(1))


def test_compiled_loss_has_no_graph_break():
    task, module = tw.Task(partial(F.cross_entropy, reduction="none")), nn.Linear(4, 4)
    whole = torch.compile(mean_loss, backend="eager", fullgraph=True, dynamic=False)
    found, number = whole(task, module, lambda batch: batch, (LOGITS, LABELS))
    torch.testing.assert_close(found, F.cross_entropy(module(LOGITS), LABELS))
    assert number == 6


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (LABELS[:, None], r"got torch.int64 \(\d+, 1\): reshape or convert"),
        (LABELS.double(), r"got torch.float64 \(\d+,\): reshape or convert"),
        (LABELS.numpy(), "got ndarray: reshape or convert"),
        (LABELS.tolist(), "got list: reshape or convert"),
        (None, "those of this batch are None: give data with labels"),
    ],
    ids=["a column", "fractions", "an array", "a list", "none"],
)
def test_classification_refuses_labels_of_another_shape_or_kind(labels, said):
    with pytest.raises(tw.ThalwegError, match=rf"labels are a tensor of whole numbers, .* logits \(\d+, 4\), .*{said}"):
        tw.classification().loss(LOGITS, labels)


def test_boolean_one_hot_targets_are_taken_like_others():
    torch.manual_seed(0)
    module, hot = nn.Linear(4, 4), F.one_hot(LABELS, 4)
    one, two = (
        tw.scan(module, [tw.Weights.of(module)], tw.classification(), [(LOGITS, targets)]).values["data"]
        for targets in (hot.bool(), hot.float())
    )
    assert {name: float(values[0]) for name, values in one.items()} == (
        {name: float(values[0]) for name, values in two.items()}
    )
    assert "error" in one


def test_labels_of_logits_with_the_classes_last_are_told_from_others():
    logits, labels = torch.zeros(4, 7, 11), torch.zeros(4, 7, dtype=torch.long)
    with pytest.raises(tw.ThalwegError, match="use language_modelling\\(\\) where classes come last"):
        tw.classification().loss(logits, labels)
    assert tw.language_modelling().predict(nn.Identity(), (logits, labels))[0].shape == (28, 11)
    with pytest.raises(tw.ThalwegError, match="reshape or convert them in the data"):
        tw.classification().loss(logits, labels[:, :3])
