"""Scans in pandas, and the examples of the docs that log to TensorBoard and Weights & Biases."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import thalweg as tw

PAGE = Path(__file__).parents[2] / "docs" / "planes.md"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
X = torch.linspace(-1, 1, 8).reshape(-1, 1)


def scans():
    torch.manual_seed(0)
    a, b, c = points = [tw.Weights.of(nn.Linear(1, 1)) for _ in range(3)]
    targets = {"curve": tw.Segment(a, b), "plane": tw.Plane(a, b, c), "points": points}
    how = {"curve": {"points": 5}, "plane": {"grid": (3, 2)}, "points": {}}
    return {
        name: tw.scan(nn.Linear(1, 1), target, tw.regression(), {"train": [(X, 2 * X)]}, **how[name])
        for name, target in targets.items()
    }


@pytest.mark.parametrize("kind", ["curve", "plane", "points"])
def test_scan_to_frame_in_pandas(kind):
    pandas, scan = pytest.importorskip("pandas"), scans()[kind]
    frame = scan.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (frame.dtypes == np.float64).all()
    np.testing.assert_array_equal(frame["train_loss"].to_numpy(), scan.values["train"]["loss"].ravel())
    pandas.testing.assert_frame_equal(frame, pandas.read_csv(io.StringIO(scan.to_csv())))
    if kind == "plane":
        square = frame.pivot(index="y", columns="x", values="train_loss").to_numpy()
        np.testing.assert_array_equal(square, scan.values["train"]["loss"])


def of_docs(word):
    """The names of the page's first block, and its example with this word in it."""
    text = PAGE.read_text()
    first = re.search(r"^```python\n(.*?)^model = ", text, re.DOTALL | re.MULTILINE)[1]
    [example] = [block for block in re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if word in block]
    names, losses = {}, []
    exec(first, names)
    names["model"] = names["make"](1)
    tw.fit(names["model"], names["task"], names["train"], epochs=20, lr=0.1, on_epoch=losses.append)
    return example, names, [entry["loss"] for entry in losses]


def test_docs_tensorboard_example(tmp_path, monkeypatch):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    example, names, losses = of_docs("SummaryWriter")
    exec(example, names)
    names["writer"].close()
    events = reading.EventAccumulator("logs").Reload().Scalars("loss")
    assert [event.step for event in events] == list(range(1, 21))
    assert [event.value for event in events] == pytest.approx(losses, rel=1e-6)


def test_docs_wandb_example(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    example, names, losses = of_docs("wandb")
    exec(example, names)
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert {"epoch", "iteration", "loss", "rate", "seconds"} <= summary.keys()
    assert (summary["epoch"], summary["loss"]) == (20, pytest.approx(losses[-1]))
