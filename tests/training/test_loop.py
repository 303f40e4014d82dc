"""The training loop: which rate each iteration has, and what a loss that is not finite leaves."""

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw

ONES = [(torch.ones(2, 1), torch.ones(2, 1))]


@pytest.mark.parametrize("scalar", [np.float32, torch.tensor])
def test_fit_schedule_may_give_any_kind_of_number(scalar, tmp_path):
    def trained(kind, run):
        torch.manual_seed(1)
        return tw.fit(nn.Linear(1, 1), tw.regression(), ONES, epochs=2, schedule=lambda i: kind(0.5), run=run).vector

    assert torch.equal(trained(scalar, tmp_path / "a"), trained(float, None))


def test_fit_asks_the_schedule_for_each_iteration_from_one():
    asked = []
    case = ZOO["mlp"]
    tw.fit(case.module(1), case.task, case.batches(), epochs=2, schedule=lambda i: asked.append(i) or 0.1)
    assert asked == [1, 2, 3, 4, 5, 6]


def test_diverged_fit_stops_and_keeps_the_last_good_weights():
    case, seen = ZOO["mlp"], []

    def loss(outputs, targets):
        seen.append(1)
        values = case.task.loss(outputs, targets)
        return values * float("nan") if len(seen) == 5 else values

    with pytest.raises(tw.Diverged, match=r"became nan in step 5 with learning rate 0\.1") as caught:
        tw.fit(case.module(1), tw.Task(loss), case.batches(), epochs=9, schedule=lambda i: 0.1)
    one_epoch = tw.fit(case.module(1), case.task, case.batches(), epochs=1, schedule=lambda i: 0.1)
    assert torch.equal(caught.value.last_good.vector, one_epoch.vector)
    assert (caught.value.step, caught.value.lr, caught.value.t) == (5, 0.1, None)


def test_diverged_fit_does_not_return_weights_that_overflow():
    """The last update of an epoch may break what every loss before it found in order."""
    case = ZOO["mlp"]
    with pytest.raises(tw.Diverged, match="are no longer finite after step 3"):
        tw.fit(
            case.module(1),
            case.task,
            case.batches(),
            epochs=1,
            schedule=lambda i: float("inf") if i == 3 else 0.1,
        )


def test_diverged_fit_names_bad_inputs():
    case = ZOO["mlp"]
    batches = case.batches()
    batches[1][0][0, 0] = torch.nan
    with pytest.raises(
        tw.Diverged, match=r"in step 2 with learning rate 0\.\d+: item 0 of the batch of that step holds NaN"
    ):
        tw.fit(case.module(1), case.task, batches, epochs=2, lr=0.1)


@pytest.mark.parametrize(
    ("call", "tensor"),
    [
        *((call, "0.weight") for call in ("fit", "start", "end", "bend", "walk")),
        *((call, "1.running_var") for call in ("fit", "start", "walk")),  # a curve is trained with those of its start
    ],
)
def test_training_refuses_a_start_that_is_not_finite(call, tensor, tmp_path):
    """Which is no fault of the data or of the rate; and there is nothing to resume."""
    net, batches = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), ONES
    fine = tw.Weights.of(net)
    net.state_dict()[tensor].view(-1)[0] = torch.nan
    bad, task, common = tw.Weights.of(net), tw.regression(), {"epochs": 1, "lr": 0.1, "run": tmp_path / "run"}
    calls = {
        "fit": lambda: tw.fit(net, task, batches, **common),
        "start": lambda: tw.connect(net, tw.Bezier(bad, fine), task, batches, **common),
        "end": lambda: tw.connect(net, tw.Bezier(fine, bad), task, batches, **common),
        "bend": lambda: tw.connect(net, tw.Bezier(fine, fine).with_bends([bad.vector]), task, batches, **common),
        "walk": lambda: tw.walk(
            net, task, batches, tw.SWA(lr=0.1), start=bad, **{k: v for k, v in common.items() if k != "lr"}
        ),
    }
    with pytest.raises(tw.ThalwegError, match="training starts from weights or batch-norm statistics that hold NaN"):
        calls[call]()
    assert not (tmp_path / "run" / "state.safetensors").exists()
