"""Targets of every kind, alike in fit, scan, ensembles and curve ensembles; against naive loops in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.tasks import identity

CLASSES = 3
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64]


class Pixels(nn.Module):
    """Logits (N, classes, H, W)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def network(seed=0, pixels=False):
    torch.manual_seed(seed)
    return (Pixels() if pixels else nn.Linear(4, CLASSES)).double()


def batches_of(targets=lambda labels: labels, pixels=False, sizes=(6, 5)):
    random = torch.Generator().manual_seed(3)
    found = []
    for size in sizes:
        x = torch.randn(size, *((2, 3, 2) if pixels else (4,)), generator=random, dtype=torch.float64)
        labels = torch.randint(CLASSES, (size, 3, 2) if pixels else (size,), generator=random)
        found.append((x, targets(labels)))
    return found


def with_ignored(labels):
    labels = labels.clone()
    labels.view(-1)[::3] = -100
    return labels


def mixed(labels):
    hot = F.one_hot(labels, CLASSES).double()
    return 0.7 * hot + 0.3 * hot.roll(1, 0)


def flat(batches, members):
    """Logits of every member (members, count, classes) and labels (count,), one row per labelled example or pixel."""
    with torch.no_grad():
        logits = [torch.cat([m(x).movedim(1, -1).reshape(-1, CLASSES) for x, _ in batches]) for m in members]
    labels = torch.cat([y.reshape(-1) for _, y in batches]).long()
    return torch.stack(logits)[:, labels != -100], labels[labels != -100]


def naive_scores(probabilities, labels):
    truth = torch.eye(CLASSES, dtype=torch.float64)[labels]
    return {
        "error": (probabilities.argmax(1) != labels).double().mean().item(),
        "nll": -(truth * probabilities.log()).sum(1).mean().item(),
        "brier": (probabilities - truth).square().sum(1).mean().item(),
    }


KINDS = {str(kind): (lambda labels, kind=kind: labels.to(kind), False) for kind in INTEGERS}
KINDS |= {"ignored": (with_ignored, False), "ignored int32": (lambda labels: with_ignored(labels).int(), False)}
KINDS |= {"maps": (lambda labels: labels, True), "ignored maps": (with_ignored, True)}
KINDS |= {"uint8 maps": (lambda labels: labels.to(torch.uint8), True)}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_scored_alike_by_ensemble_scan_and_others(kind):
    targets, pixels = KINDS[kind]
    batches, members = batches_of(targets, pixels), [network(seed, pixels) for seed in range(3)]
    points, task = [tw.Weights.of(member) for member in members], tw.classification()
    logits, labels = flat(batches, members)
    report = tw.Ensemble(members[0], points).report(task, batches)
    expected = naive_scores(logits.softmax(2).mean(0), labels)
    assert {name: report.scores[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    chosen = logits.argmax(2)
    differ = [(chosen[i] != chosen[j]).double().mean().item() for i in range(3) for j in range(i)]
    assert report.scores["disagreement"] == pytest.approx(sum(differ) / 3, rel=1e-12)
    scan = tw.scan(members[0], points, task, {"x": batches})
    for k in range(3):
        alone = naive_scores(logits[k].softmax(1), labels)
        assert scan.values["x"]["loss"][k] == pytest.approx(alone["nll"], rel=1e-12)
        assert scan.values["x"]["error"][k] == pytest.approx(alone["error"], rel=1e-6)
        assert report.members[k]["nll"] == pytest.approx(alone["nll"], rel=1e-12)
    curve = tw.Segment(points[0], points[1])
    found = tw.curve_ensemble(members[0], curve, task, batches, bn_batches=batches, points=2)
    assert found.nll["none"] == pytest.approx(
        [naive_scores(logits[k].softmax(1), labels)["nll"] for k in (0, 1)], rel=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_fit_loss_is_the_mean_over_counted_labels(kind):
    targets, pixels = KINDS[kind]
    [batch] = batches_of(targets, pixels, sizes=(6,))
    plain = network(pixels=pixels)
    F.cross_entropy(plain(batch[0]), batch[1].long()).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * parameter.grad
    ours = tw.fit(network(pixels=pixels), tw.classification(), [batch], epochs=1, lr=0.1, momentum=0.0)
    assert torch.allclose(ours.vector, tw.Weights.of(plain).vector, rtol=1e-12)


def test_label_maps_of_several_sizes_are_scored_pixel_by_pixel():
    first, second = batches_of(with_ignored, pixels=True)
    batches, members = [first, (second[0][:, :, :2], second[1][:, :2])], [network(seed, True) for seed in range(2)]
    logits, labels = flat(batches, members)
    found = tw.Ensemble(members[0], [tw.Weights.of(m) for m in members]).score(tw.classification(), batches)
    expected = naive_scores(logits.softmax(2).mean(0), labels)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_sequences_of_several_lengths_are_refused_where_targets_are_no_labels():
    batches = [(torch.randn(2, steps, 4).double(), torch.randn(2, steps, 3).double()) for steps in (5, 7)]
    ensemble = tw.Ensemble(network(0), [tw.Weights.of(network(seed)) for seed in range(2)])
    with pytest.raises(tw.ThalwegError, match=r"are \(5, 3\) and \(5, 3\) in one batch, \(7, 3\) and \(7, 3\) in an"):
        ensemble.score(tw.regression(), batches)


def test_soft_labels_are_scored_against_averaged_probabilities():
    batches, members = batches_of(mixed), [network(seed) for seed in range(3)]
    points, task = [tw.Weights.of(member) for member in members], tw.classification()
    with torch.no_grad():
        each = torch.stack([torch.cat([m(x).softmax(1) for x, _ in batches]) for m in members])
    truth = torch.cat([y for _, y in batches])
    report = tw.Ensemble(members[0], points).report(task, batches)
    mean = each.mean(0)
    assert torch.allclose(tw.Ensemble(members[0], points).predict(task, batches)[0], mean, rtol=1e-12)
    assert set(report.scores) == {"nll", "brier", "disagreement"}
    assert report.scores["nll"] == pytest.approx(-(truth * mean.log()).sum(1).mean().item(), rel=1e-12)
    assert report.scores["brier"] == pytest.approx((mean - truth).square().sum(1).mean().item(), rel=1e-12)
    assert "nll" in report.table()
    scan = tw.scan(members[0], points, task, {"x": batches})
    assert "error" not in scan.values["x"]  # which is not defined for them
    assert scan.values["x"]["loss"][0] == pytest.approx(-(truth * each[0].log()).sum(1).mean().item(), rel=1e-12)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.int64, torch.bool, torch.uint16, torch.uint64])
def test_one_hot_targets_score_as_their_labels(kind):
    members = [network(seed) for seed in range(2)]
    points, task = [tw.Weights.of(member) for member in members], tw.classification()
    labels, hot = batches_of(), batches_of(lambda labels: F.one_hot(labels, CLASSES).to(kind))
    ensemble = tw.Ensemble(members[0], points)
    assert ensemble.score(task, hot) == pytest.approx(ensemble.score(task, labels), rel=1e-12)
    one, two = (tw.scan(members[0], points, task, {"x": batches}).values["x"] for batches in (hot, labels))
    assert one["error"].tolist() == two["error"].tolist()
    assert one["loss"].tolist() == pytest.approx(two["loss"].tolist(), rel=1e-12)
    curve = tw.Segment(*points)
    for batches in (labels, hot):
        found = tw.curve_ensemble(members[0], curve, task, batches, bn_batches=batches, points=2)
        assert found.scores["none"]["error"] == ensemble.score(task, labels)["error"]


def test_batches_without_counted_labels():
    nothing = (torch.ones(2, 4).double(), torch.tensor([-100, -100]))
    first, second = batches_of()
    module, task = network(), tw.classification()
    whole = tw.scan(module, [tw.Weights.of(module)], task, {"x": [first, second]}).values["x"]
    padded = tw.scan(module, [tw.Weights.of(module)], task, {"x": [first, nothing, second]}).values["x"]
    assert {name: v.tolist() for name, v in whole.items()} == {name: v.tolist() for name, v in padded.items()}
    for call in (
        lambda: tw.scan(module, [tw.Weights.of(module)], task, {"x": [nothing]}),
        lambda: tw.Ensemble(module, [tw.Weights.of(module)]).score(task, [nothing]),
        lambda: tw.fit(module, task, [nothing], epochs=1, lr=0.1),
    ):
        with pytest.raises(tw.ThalwegError, match="count"):
            call()


def test_labels_out_of_range_are_refused_by_ensembles_too():
    [(x, labels)] = batches_of(sizes=(4,))
    labels[1] = 7
    with pytest.raises(tw.ThalwegError, match=r"labels must lie between 0 and 2.*this batch holds 7"):
        tw.Ensemble(network(), [tw.Weights.of(network())]).score(tw.classification(), [(x, labels)])


def test_scores_against_labels_need_probabilities():
    task = tw.Task(
        tw.classification().loss, tw.classification().predict, probabilities=lambda logits: logits.log_softmax(1)
    )
    with pytest.raises(tw.ThalwegError, match="probabilities that add up to one over dimension 1"):
        tw.Ensemble(network(), [tw.Weights.of(network())]).score(task, batches_of())


@pytest.mark.parametrize("targets", [mixed, lambda labels: F.one_hot(labels, CLASSES)], ids=["mixed", "one-hot"])
def test_logits_are_not_scored_against_probabilities(targets):
    """Of a loss of torch alone nobody knows whether its outputs are logits."""
    batches, members = batches_of(targets), [network(seed) for seed in range(2)]
    ensemble = tw.Ensemble(members[0], [tw.Weights.of(member) for member in members])
    loss = nn.CrossEntropyLoss(reduction="none")
    own = tw.Task(lambda outputs, wanted: loss(outputs, wanted.double()))
    for call in (ensemble.score, ensemble.report):
        with pytest.raises(tw.ThalwegError, match=r"the targets are probabilities .*: give the task probabilities= a"):
            call(own, batches)
    softly = replace(own, probabilities=lambda outputs: outputs.softmax(1))
    assert ensemble.score(softly, batches) == pytest.approx(ensemble.score(tw.classification(), batches), rel=1e-12)
    assert set(ensemble.score(replace(own, probabilities=identity), batches)) == {"squared_error"}


def test_column_of_ones_is_no_soft_label():
    module = nn.Linear(4, 1).double()
    batches = [(x, torch.ones(len(x), 1).double()) for x, _ in batches_of()]
    with torch.no_grad():
        expected = torch.cat([(module(x) - y).square() for x, y in batches]).mean().item()
    task = tw.Task(lambda outputs, targets: (outputs - targets).square().sum(1))
    found = tw.Ensemble(module, [tw.Weights.of(module)]).score(task, batches)
    assert found == pytest.approx({"squared_error": expected}, rel=1e-12)


def test_regression_onto_one_hot_targets_stays_regression():
    batches = batches_of(lambda labels: F.one_hot(labels, CLASSES))
    module = nn.Sequential(network(), nn.Softmax(dim=1))
    with torch.no_grad():
        expected = torch.cat([(module(x) - y).square().flatten() for x, y in batches]).mean().item()
    found = tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), batches)
    assert found == pytest.approx({"squared_error": expected}, rel=1e-12)


@pytest.mark.parametrize("columns", [1, 2])
def test_whole_number_targets_of_regression_are_no_labels(columns):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0], [0, 1]])[:, :columns]
    torch.manual_seed(0)
    module = nn.Linear(4, columns).double()
    with torch.no_grad():
        expected = (module(x) - targets).square().mean().item()
    found = tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), [(x, targets)])
    assert found == pytest.approx({"squared_error": expected}, rel=1e-12)
    assert tw.scan(module, [tw.Weights.of(module)], tw.regression(), {"x": [(x, targets)]}).values["x"]["loss"][0] == (
        pytest.approx(expected, rel=1e-12)
    )


@pytest.mark.parametrize("wanted", [[0, 3, 1, 7, 2, 0], [0, 1, 1, 0, 1, 0], [0] * 6], ids=["counts", "binary", "zeros"])
def test_whole_numbers_for_a_single_output_are_no_labels(wanted):
    """As in a regression onto counts, or in binary cross-entropy: softmax of one logit is one, and no error at all."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.manual_seed(0)
    module, batches = nn.Linear(4, 1).double(), [(x, torch.tensor(wanted))]
    point, task = tw.Weights.of(module), tw.Task(lambda outputs, targets: (outputs[:, 0] - targets).square())
    with torch.no_grad():
        expected = (module(x)[:, 0] - batches[0][1]).square().mean().item()
    tw.fit(module, task, batches, epochs=1, lr=0.01)
    values = tw.scan(module, [point], task, {"x": batches}).values["x"]
    assert set(values) == {"loss", "data_loss"}
    assert values["loss"][0] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(
        tw.ThalwegError, match=r"whole numbers of two classes or more, .* \(6, 1\) and torch.* \(6,\): convert"
    ):
        tw.Ensemble(module, [point]).score(task, batches)
    flat = tw.Task(lambda outputs, targets: (outputs - targets).square(), lambda net, b: (net(b[0])[:, 0], b[1]))
    assert tw.Ensemble(module, [point]).score(flat, batches) == pytest.approx({"squared_error": expected}, rel=1e-12)


def test_reports_and_comparisons_of_soft_labels_have_tables_and_figures():
    batches, task = batches_of(mixed), tw.classification()
    points = [tw.Weights.of(network(seed)) for seed in range(2)]
    report = tw.Ensemble(network(), points).report(task, batches)
    assert tw.figures.growth(report).get_ylabel() == "nll"
    compared = tw.compare(network, task, batches, batches, [tw.Independent], budget=1, multiples=[1], seeds=[0], lr=0.1)
    assert compared.table().startswith("nll")
    assert tw.figures.budget(compared).get_ylabel() == "nll"


@pytest.mark.parametrize("places", [[0], [1], [2], [0, 2]], ids=str)
@pytest.mark.parametrize("none", ["ignored", "empty"])
def test_batches_without_counted_labels_are_skipped(places, none):
    """Wherever they are, as a prompt without an answer is in instruction tuning."""
    whole = batches_of(sizes=(6, 5, 4))
    batches = [
        (x, torch.full_like(y, -100))
        if k in places and none == "ignored"
        else (x[:0], y[:0])
        if k in places
        else (x, y)
        for k, (x, y) in enumerate(whole)
    ]
    points, task = [tw.Weights.of(network(seed)) for seed in range(2)], tw.classification()
    values = tw.scan(network(), points, task, {"x": batches}).values["x"]
    counted = [batch for k, batch in enumerate(whole) if k not in places]
    for k, point in enumerate(points):
        net = network()
        point.load_into(net)
        with torch.no_grad():
            losses = torch.cat([nn.functional.cross_entropy(net(x), y, reduction="none") for x, y in counted])
            wrong = torch.cat([net(x).argmax(1) != y for x, y in counted])
        assert values["loss"][k] == pytest.approx(float(losses.mean()), rel=1e-9)
        assert values["error"][k] == pytest.approx(float(wrong.double().mean()))
    assert tw.soup(network(), points, task, batches).alone
    assert tw.barriers(network(), points, task, batches, points=3).matrix.shape == (2, 2)
