"""Numbers from numpy are taken wherever a number is, and only plain ones reach files and messages."""

import json

import numpy as np
import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.errors import number_list, real_number, whole_number

CASE = ZOO["mlp"]
WHOLE = [np.int64, np.int32, np.uint8, np.array, torch.tensor]


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_number_takes_every_kind(kind):
    assert type(whole_number(kind(3), "epochs")) is int
    assert whole_number(kind(3), "epochs", least=3) == 3
    assert type(real_number(kind(3), "lr")) is int


@pytest.mark.parametrize("bad", [True, 1.5, np.float64(2.0), "3", None, np.array([1, 2])])
def test_whole_number_refuses_others(bad):
    with pytest.raises(tw.ThalwegError, match="epochs must be a whole number"):
        whole_number(bad, "epochs")


@pytest.mark.parametrize("bad", [True, "0.1", None, np.array([0.1]), [0.1]])
def test_real_number_refuses_others(bad):
    with pytest.raises(tw.ThalwegError, match="lr must be a number"):
        real_number(bad, "lr")


@pytest.mark.parametrize("bad", ["12", 3, np.array(3)])
def test_number_list_refuses_others(bad):
    with pytest.raises(tw.ThalwegError, match="keep must be a sequence"):
        number_list(bad, "keep", whole_number)


def plain(f):
    """The results of a function of a maker of whole numbers and one of floats, with numpy's and with Python's."""
    return f(np.int64, np.float64), f(int, float)


def test_fit_and_walk_take_numpy_numbers(tmp_path):
    def trained(i, f):
        settings = {"momentum": f(0.5), "weight_decay": f(0.01), "clip": f(1.0), "seed": i(3)}
        run = {"run": tmp_path / i.__name__}
        fitted = tw.fit(
            CASE.module(1),
            CASE.task,
            CASE.batches(),
            epochs=i(2),
            lr=f(0.1),
            keep=np.array([1, 2]),
            **settings,
            **run,
        )
        fge = tw.FGE(cycle=i(2), lr_max=f(0.1), lr_min=f(0.01), starts=np.array([0.5, 0.75]))
        walked = tw.walk(CASE.module(1), CASE.task, CASE.batches(), fge, epochs=i(2), **settings)
        tw.walk(CASE.module(1), CASE.task, CASE.batches(), tw.Snapshot(i(1), f(0.1)), epochs=i(1))
        tw.walk(CASE.module(1), CASE.task, CASE.batches(), tw.SWA(f(0.1), cycle=tw.Iterations(i(2))), epochs=i(1))
        assert "np." not in str(fge)
        assert "np." not in json.dumps(fitted.made | dict(walked.members[0].made))
        assert set(fitted.kept) == {1, 2}
        return [fitted.vector, *(member.vector for member in walked.members)]

    ours, expected = plain(trained)
    assert all(map(torch.equal, ours, expected))


def test_curves_and_scans_take_numpy_numbers(tmp_path):
    a, b = CASE.ends()

    def measured(i, f):
        curve = tw.connect(
            CASE.module(1),
            tw.Bezier(a, b, bends=i(2)),
            CASE.task,
            CASE.batches(),
            epochs=i(1),
            lr=f(0.1),
            seed=i(2),
        )
        data = {"x": CASE.batches()}
        run = {"run": tmp_path / i.__name__, "weight_decay": f(0.1)}
        scans = [
            tw.scan(CASE.module(1), curve, CASE.task, data, points=i(3), **run),
            tw.scan(CASE.module(1), curve, CASE.task, data, points=np.linspace(0, 1, 3).astype(np.float32)),
        ]
        plane = tw.Plane(curve.start, curve.end, curve.bends[0])
        scans.append(tw.scan(CASE.module(1), plane, CASE.task, data, grid=np.array([2, 3]), margin=f(0.1)))
        together = tw.curve_ensemble(CASE.module(1), curve, CASE.task, data["x"], bn_batches=data["x"], points=i(2))
        points = [curve.point(f(0.25)), plane.point(f(1.0), f(2.0)), tw.average([a, b], np.array([0.25, 0.75]))]
        lengths = curve.length(f(0.25), f(0.5)), curve.spaced(i(3), by="length")
        return json.dumps([*(scan.to_dict() for scan in scans), together.to_dict(), lengths]), [
            p.vector for p in points
        ]

    (ours, points), (expected, wanted) = plain(measured)
    assert ours == expected
    assert all(map(torch.equal, points, wanted))


def test_curve_point_takes_a_float32_t():
    curve = tw.Bezier(*CASE.ends())
    assert torch.equal(curve.point(np.float32(0.3)).vector, curve.point(float(np.float32(0.3))).vector)


def test_walk_scheduler_takes_numpy_numbers():
    def rates(i, f):
        optimizer = torch.optim.SGD(CASE.module(1).parameters(), lr=0.1)
        fge = tw.FGE(cycle=tw.Iterations(i(2)), lr_max=f(0.1), lr_min=f(0.01))
        scheduler, found = tw.WalkScheduler(optimizer, fge, steps=i(3), epochs=i(2)), []
        for _ in range(6):
            found += scheduler.get_last_lr()
            optimizer.step()
            scheduler.step()
        return found, json.dumps(scheduler.state_dict())

    ours, expected = plain(rates)
    assert ours == expected


def test_compare_takes_numpy_numbers(tmp_path):
    def compared(i, f):
        settings = {
            "budget": i(4),
            "multiples": np.array([1, 2]),
            "seeds": np.array([0, 1]),
            "lr": f(0.1),
            "weight_decay": f(0.01),
        }
        fge = tw.FGE(cycle=tw.Iterations(i(2)), lr_max=f(0.1), lr_min=f(0.01), starts=[f(0.5)])
        batches = CASE.batches()
        found = tw.compare(CASE.module, CASE.task, batches, batches, [tw.Independent, fge], **settings, clip=f(1.0))
        found.save(tmp_path / "comparison.json")
        return found.to_dict()

    ours, expected = plain(compared)
    assert ours == expected
