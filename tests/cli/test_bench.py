"""`thalweg bench`, on something small."""

import json
import sys

import pytest
from typer.testing import CliRunner

from thalweg.bench import Timing
from thalweg.cli import app

FACTORY = """
import torch, thalweg as tw

def small(seed):
    images, labels = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8), torch.randint(4, (40,))
    batches = tw.data.DeviceBatches(images, labels, 8, shuffle=True, crop=1, flip=True)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 4)
    )
    clean = batches.clean()
    return dict(model=model, task=tw.classification(), train=batches, bn_batches=clean, data={"x": clean})
"""


def test_bench_command_times_every_part_and_keeps_it(tmp_path, monkeypatch):
    (tmp_path / "mine_to_time.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    result = CliRunner().invoke(
        app, ["bench", "--task", "mine_to_time:small", "--out", "b", "--rounds", "3", "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "b" / "bench.json").read_text())
    assert found["thalweg"] == "bench"
    timings = found["content"]["timings"]
    parts = ("plain step", "curve step", "walk step", "data pipeline", "scan point", "its forward passes", "checkpoint")
    assert set(timings) == set(parts)
    assert all(entry["median"] > 0 for entry in timings.values())
    for name in parts:
        assert name in result.output
    assert "curve step / plain step" in result.output


def test_bench_medians_quartiles_and_rates():
    timing = Timing([1.0, 2.0, 3.0, 4.0, 100.0], images=6)
    assert timing.median == 3.0
    assert timing.to_dict()["images_per_second"] == 2.0
    assert timing.quartiles == pytest.approx((1.5, 52.0))
    assert Timing([2.0]).quartiles == (2.0, 2.0)
