"""Soups against closed forms and a plain greedy loop."""

import copy
import pickle
import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import ZOO, bits, same_bits

import thalweg as tw

X = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(-1, 1)
MEAN = float(X.square().mean())


def one_weight():
    return nn.Linear(1, 1, bias=False).double()


def slopes(*values):
    """Networks of one weight, whose squared error against 2 x is (slope - 2)^2 times the mean of x^2."""
    found = {}
    for value in values:
        module = one_weight()
        nn.init.constant_(module.weight, value)
        found[str(value)] = tw.Weights.of(module)
    return found


def soup(networks, task=None, **settings):
    return tw.soup(one_weight(), networks, task or tw.regression(), [(X, 2 * X)], **settings)


def test_greedy_soup_takes_what_helps_from_the_best_on():
    found = soup(slopes(9.0, 1.0, 2.5))
    assert found.members == ("2.5", "1.0")
    assert list(found.alone) == ["2.5", "1.0", "9.0"]
    assert found.metric == "loss"
    assert float(found.vector) == 1.75
    assert found.score == pytest.approx(0.25**2 * MEAN)
    averages = {"2.5": 2.5, "1.0": 1.75, "9.0": 12.5 / 3}
    assert found.tried == pytest.approx({name: (slope - 2) ** 2 * MEAN for name, slope in averages.items()})


def test_uniform_soup_is_the_mean_of_all():
    found = soup(slopes(9.0, 1.0, 2.5), how="uniform")
    assert sorted(found.members) == ["1.0", "2.5", "9.0"]
    assert float(found.vector) == pytest.approx(12.5 / 3)
    assert found.score == pytest.approx((12.5 / 3 - 2) ** 2 * MEAN)


def test_greedy_soup_takes_ties_in_the_order_given():
    task = tw.Task(lambda outputs, targets: torch.zeros_like(outputs).flatten(), metrics={})
    assert soup(slopes(3.0, 1.0, 2.0), task).members == ("3.0", "1.0", "2.0")


def plain_greedy(points, batches):
    """The algorithm of the paper in plain torch: errors of every network, then of every average."""

    def error(members):
        net = ZOO["mlp"].module(9)
        net.load_state_dict({k: torch.stack([w.state_dict()[k] for w in members]).mean(0) for k in net.state_dict()})
        with torch.no_grad():
            return float(torch.cat([(net(x).argmax(1) != y).double() for x, y in batches]).mean())

    order = sorted(range(len(points)), key=lambda k: error([points[k]]))
    members, best = order[:1], error([points[order[0]]])
    for k in order[1:]:
        if (new := error([points[m] for m in (*members, k)])) <= best:
            members, best = [*members, k], new
    return members, best


@pytest.mark.parametrize("seed", range(4))
def test_greedy_soup_is_the_plain_loop(seed):
    case = ZOO["mlp"]
    batches, base = case.batches(), tw.Weights.of(case.module(seed))
    torch.manual_seed(seed)
    points = [base] * 5
    for k in range(5):
        module = case.module(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        points[k] = tw.Weights.of(module)
    members, best = plain_greedy(points, batches)
    with warnings.catch_warnings(action="ignore"):
        found = tw.soup(case.module(9), points, case.task, batches)
    assert found.members == tuple(str(k + 1) for k in members)
    assert found.metric == "error"
    assert found.score == pytest.approx(best)


def test_soup_statistics_are_those_of_the_average():
    case = ZOO["conv_bn"]
    [batch, *_] = case.batches()
    points = [tw.Weights.of(case.module(seed)) for seed in (1, 2)]
    with warnings.catch_warnings(action="ignore"):
        found = tw.soup(case.module(9), points, case.task, [batch], how="uniform", bn_batches=[batch])
    net = case.module(9)
    net.load_state_dict({k: v for k, v in found.state_dict().items() if "running" not in k}, strict=False)
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)):
        layer.momentum = 1.0
    with torch.no_grad():
        net.train()(batch[0])
        losses = cross_entropy(net.eval()(batch[0]), batch[1])
    for name, value in ((name, value) for name, value in net.state_dict().items() if "num_batches" not in name):
        assert torch.allclose(found.state_dict()[name].double(), value.double(), atol=1e-12), name
    scored = tw.soup(case.module(9), [found, found], case.task, [batch], metric="loss", bn_batches=[batch])
    assert scored.score == pytest.approx(float(losses))


def test_soup_metric_is_chosen_by_name_and_direction():
    task = tw.Task(
        lambda outputs, targets: (outputs - targets).square().flatten(),
        metrics={"steepness": lambda outputs, targets: outputs.abs().flatten()},
    )
    assert soup(slopes(9.0, 1.0, 2.5), task).metric == "loss"
    assert soup(slopes(9.0, 1.0, 2.5), task, metric="steepness").members == ("1.0",)
    steepest = soup(slopes(9.0, 1.0, 2.5), task, metric="steepness", maximise=True)
    assert list(steepest.alone) == ["9.0", "2.5", "1.0"]
    assert steepest.members == ("9.0",)


@pytest.mark.parametrize("how", ["greedy", "uniform"])
def test_soup_warns_of_a_barrier_with_its_height(how):
    """A loss with minima at slopes of 1 and of -1: (slope^2 - 1)^2."""
    networks = slopes(0.9, -0.8)
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: ((outputs / x).square() - 1).square().flatten(), metrics={})
    own = [(slope**2 - 1) ** 2 for slope in (0.9, -0.8)]
    middle = (0.05**2 - 1) ** 2
    with pytest.warns(UserWarning, match="averaging cannot work across a barrier") as seen:
        found = tw.soup(one_weight(), networks, task, [(x, x)], how=how)
    said = str(seen[0].message)
    assert float(re.search(r"there is one of ([\d.]+)", said)[1]) == pytest.approx(middle - sum(own) / 2, rel=1e-2)
    assert f"the loss of the average is {middle:.3g}, of its parts {min(own):.3g} to {max(own):.3g}" in said
    assert len(found.members) == (1 if how == "greedy" else 2)
    assert ("with '-0.8': the loss" in said) == (how == "greedy")


def test_soup_calls_networks_without_names_by_their_places():
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: ((outputs / x).square() - 1).square().flatten(), metrics={})
    with pytest.warns(UserWarning, match="with part 1: the loss of the average is"):
        found = tw.soup(one_weight(), list(slopes(-0.8, 0.9).values()), task, [(x, x)])
    assert found.members == ("2",)
    with pytest.warns(UserWarning, match="the score of part 1 on the held-out data is NaN or infinite: left out"):
        soup(list(slopes(1e200, 1.0, 2.0).values()))


def test_soup_barrier_is_that_of_the_average_so_far():
    """The third network lies across a barrier from the average of two, a third of the way."""
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: ((outputs / x).square() - 1).square().flatten(), metrics={})
    with pytest.warns(UserWarning, match="averaging cannot work across a barrier") as seen:
        found = tw.soup(one_weight(), slopes(0.92, 1.1, -0.8), task, [(x, x)])
    assert found.members == ("0.92", "1.1")
    between, both, third = (((slope**2 - 1) ** 2) for slope in ((0.92 + 1.1 - 0.8) / 3, (0.92 + 1.1) / 2, -0.8))
    said = float(re.search(r"there is one of ([\d.]+)", str(seen[0].message))[1])
    assert said == pytest.approx(between - 2 / 3 * both - 1 / 3 * third, rel=1e-2)


@pytest.mark.parametrize("how", ["greedy", "uniform"])
def test_soup_warns_of_a_barrier_between_networks_without_any_loss(how):
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: (1 - (outputs / x).abs()).flatten(), metrics={})
    with pytest.warns(UserWarning, match=r"one of 1 with .*: the loss of the average is 1, of its parts 0 to 0"):
        tw.soup(one_weight(), slopes(1.0, -1.0), task, [(x, x)], how=how)


def test_soup_warns_of_a_clearly_higher_error():
    """As of language models, whose losses are never near zero."""
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(
        lambda outputs, targets: 3 + 0.1 * (1 - (outputs / x).square()).flatten(),
        metrics={"error": lambda outputs, targets: 0.6 + 0.3 * (1 - (outputs / x).abs()).flatten()},
    )
    with pytest.warns(
        UserWarning, match=r"one of 0.3 with all networks: the error of the average is 0.9, of its parts 0.6 to 0.6"
    ):
        tw.soup(one_weight(), slopes(1.0, -1.0), task, [(x, x)], how="uniform")
    lower = replace(task, loss=lambda outputs, targets: 3 + 0.1 * (outputs / x).square().flatten())
    assert tw.soup(one_weight(), slopes(1.0, -1.0), lower, [(x, x)], how="uniform").barrier == ""


LOW = {
    "one basin": lambda slope: (slope - 2).square(),
    "a rise of a twentieth": lambda slope: 1 + 0.05 * (slope.square() - 1).square(),
    "not above the worse end": lambda slope: (slope + 1).abs().sqrt(),
}


@pytest.mark.parametrize("how", ["greedy", "uniform"])
@pytest.mark.parametrize("shape", LOW)
def test_soup_without_a_barrier_does_not_warn(shape, how):
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: LOW[shape](outputs / x).flatten(), metrics={})
    tw.soup(one_weight(), slopes(1.0, -1.0), task, [(x, x)], how=how)


def overflowing():
    """Not a number for steep networks."""
    return tw.Task(
        lambda outputs, targets: (outputs - targets).square().flatten(),
        metrics={
            "odd": lambda outputs, targets: torch.where(outputs.abs().max() > 3, torch.nan, outputs.abs()).flatten()
        },
    )


def test_soup_leaves_out_a_network_without_a_score():
    with pytest.warns(UserWarning, match="the score of '9.0' on the held-out data is NaN or infinite: left out"):
        found = soup(slopes(9.0, 1.0, 2.5), overflowing(), metric="odd")
    assert list(found.alone) == ["1.0", "2.5"]


BAD = {
    "NaN in a uniform soup": (
        {"weights": slopes(9.0, 1.0), "task": overflowing(), "metric": "odd", "how": "uniform"},
        "the score of '9.0' on the held-out data is NaN or infinite: leave out what has diverged",
    ),
    "all are NaN": (
        {"weights": slopes(9.0, 8.0), "task": overflowing(), "metric": "odd"},
        "the score of '9.0', '8.0' on the held-out data is NaN or infinite",
    ),
    "no networks": ({"weights": []}, "a soup needs at least 2 networks"),
    "one network": ({"weights": slopes(1.0)}, "a soup needs at least 2 networks"),
    "another network": (
        {"weights": {**slopes(1.0), "b": tw.Weights.of(nn.Linear(2, 1).double())}},
        "'1.0' and 'b' do not describe the same network",
    ),
    "no labels": (
        {"held_out": [(X, None)]},
        "those of this batch are None: give data with labels",
    ),
    "no such metric": ({"metric": "accuracy"}, "that the task measures, loss, data_loss; got 'accuracy'"),
    "no such way": ({"how": "best"}, "how must be 'greedy' or 'uniform'; got 'best'"),
    "several data sets": (
        {"held_out": {"a": [(X, X)], "b": []}},
        "of one data set; got a dict of 'a', 'b': give",
    ),
    "an iterator": ({"held_out": iter([(X, X)])}, "the batches of 'held-out' must have a length"),
}


@pytest.mark.parametrize("case", BAD)
def test_soup_refuses_bad_input(case):
    change, message = BAD[case]
    given = {"weights": slopes(1.0, 2.5), "task": tw.regression(), "held_out": [(X, 2 * X)], **change}
    with pytest.raises(tw.ThalwegError) as error:
        tw.soup(one_weight(), **given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [("loss", torch.nan, "NaN"), ("flat", torch.nan, "NaN"), ("loss", torch.inf, "infinity")],
)
def test_soup_names_data_that_are_not_finite(metric, value, name):
    task = tw.Task(
        lambda outputs, targets: (outputs - targets).square().flatten(),
        metrics={"flat": lambda outputs, targets: torch.zeros_like(targets).flatten()},
    )
    said = pytest.raises(tw.ThalwegError, match=f"item 0 of batch 1 holds {name}, so clean the data")
    with pytest.warns(UserWarning, match=f"holds {name}"), said:
        tw.soup(one_weight(), slopes(1.0, 2.0), task, [(X + value, X)], metric=metric)


def test_soup_with_batch_norm_needs_bn_batches():
    case = ZOO["conv_bn"]
    with pytest.raises(tw.ThalwegError, match="has no statistics of its own: set bn_batches="):
        tw.soup(case.module(9), list(case.ends()), case.task, case.batches())


def test_soup_names_bn_batches_with_nan():
    case = ZOO["conv_bn"]
    (x, y), *_ = case.batches()
    said = pytest.raises(tw.ThalwegError, match="in bn_batches, item 0 of batch 1 holds NaN, so clean the data")
    with pytest.warns(UserWarning, match="in bn_batches"), said:
        tw.soup(case.module(9), list(case.ends()), case.task, [(x, y)], bn_batches=[(x * torch.nan, y)])
    members = [tw.fit(case.module(s), case.task, [(x, y)], epochs=1, lr=0.1) for s in (1, 2)]
    report = tw.Ensemble(case.module(9), members).report(case.task, [(x, y)], bn_batches=[(x * torch.nan, y)])
    assert report.averaged == {}
    assert "not scored: batch-norm statistics are not finite: item 0 of batch 1 holds NaN, so clean" in report.notes[-1]


def test_soup_can_be_copied_and_pickled():
    found = tw.soup(one_weight(), slopes(9.0, 1.0, 2.5), tw.regression(), [(X, 2 * X)])
    for twin in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert str(twin) == str(found)
        assert torch.equal(twin.vector, found.vector)


def test_soup_file_says_what_went_in_and_the_module_is_left_alone(tmp_path):
    module = one_weight()
    before = bits(module)
    found = tw.soup(module, slopes(9.0, 1.0, 2.5), tw.regression(), [(X, 2 * X)])
    assert same_bits(before, bits(module))
    found.save(tmp_path / "soup.safetensors")
    made = tw.Weights.load(tmp_path / "soup.safetensors").made["soup"]
    assert made["how"] == "greedy"
    assert made["members"] == ["2.5", "1.0"]
    assert made["alone"]["9.0"] == pytest.approx(49 * MEAN)
    assert str(found).splitlines()[-1] == f"average of 2: {0.0625 * MEAN:.3f}"


def stopping(after):
    """A squared error that fails at its n-th value, and counts them."""
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == after:
            raise KeyboardInterrupt
        return (outputs - targets).square().flatten()

    return tw.Task(loss, metrics={}), calls


def test_soup_in_a_run_folder_resumes_and_is_read_again(tmp_path):
    networks = slopes(9.0, 1.0, 2.5, 2.2)
    whole, calls = stopping(0)
    expected = soup(networks, whole, run=tmp_path / "whole")
    every = len(calls)
    for after in range(5, every, 4):
        folder = tmp_path / f"stopped-{after}"
        task, _ = stopping(after)
        with pytest.raises(KeyboardInterrupt):
            soup(networks, task, run=folder)
        task, calls = stopping(0)
        found = soup(networks, task, run=folder)
        assert (found.members, dict(found.tried)) == (expected.members, dict(expected.tried))
        assert torch.equal(found.vector, expected.vector)
    again = soup(networks, stopping(0)[0], run=tmp_path / "whole")
    assert str(again) == str(expected)
    assert isinstance(again.members, tuple)
    with pytest.raises(tw.ThalwegError, match="how was 'greedy' and is 'uniform'"):
        soup(networks, stopping(0)[0], run=tmp_path / "whole", how="uniform")
    with pytest.raises(tw.ThalwegError, match="point 2 of the list has changed"):
        soup({**networks, "1.0": slopes(1.1)["1.1"]}, stopping(0)[0], run=tmp_path / "whole")
    with pytest.raises(tw.ThalwegError, match="networks was"):
        soup(list(networks.values()), stopping(0)[0], run=tmp_path / "whole")


def test_resume_refuses_soup_with_other_weights(tmp_path):
    networks = slopes(1.0, 2.5)
    soup(networks, run=tmp_path / "run")
    networks["1.0"].save(tmp_path / "run" / "weights.safetensors")
    with pytest.raises(tw.ThalwegError, match="restore it from a copy, or make it again"):
        soup(networks, run=tmp_path / "run")


def test_soup_read_from_a_finished_folder_warns_of_its_barrier_again(tmp_path):
    x = X[X.abs() > 0.1][:, None]
    task = tw.Task(lambda outputs, targets: ((outputs / x).square() - 1).square().flatten(), metrics={})
    for _ in range(2):
        with pytest.warns(UserWarning, match="averaging cannot work across a barrier") as seen:
            found = tw.soup(one_weight(), slopes(0.9, -0.8), task, [(x, x)], run=tmp_path / "run")
        assert found.barrier == str(seen[0].message)
