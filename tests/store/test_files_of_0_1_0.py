"""Files that version 0.1.0 wrote, kept in tests/data-0.1.0: each loads with its values, or is refused with what to do.

They are of the network below: `A` and `B` are fits of two epochs from seeds 1 and 2.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.weightspace.checkpoint import Checkpoint

OLD = Path(__file__).parents[1] / "data-0.1.0"
A = "502a4740f51e7cad4b985aa4479c55e4e4ee3cb91522e82f4adb743bf2847a1c"  # digests, as 0.1.0 computed them
B = "b8588bc4817d72e32331d6c3c156166d8e47d2cb76df9d60aa9d6ad8f86ad153"
BEND = "4fbda8764fc93527e5b589f3050d70c6497e20ebe83e5fbbf46e7f6f74ace0cb"
X = torch.linspace(-1, 1, 16).reshape(8, 2)
BATCHES = [(X[:4], torch.tensor([0, 1, 0, 1])), (X[4:], torch.tensor([1, 0, 1, 0]))]


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


@pytest.mark.parametrize("path", ["weights.safetensors", "finished-fit"])
def test_weights_of_0_1_0_load(path):
    weights = tw.Weights.load(OLD / path)
    assert weights.digest() == A
    assert weights.made["by"] == "fit"
    assert weights.vector[:2].tolist() == [0.3666360080242157, -0.3098115622997284]
    net = Net()
    weights.load_into(net)
    assert net.norm.num_batches_tracked == 4


def test_curve_of_0_1_0_loads():
    for path in ("curve.safetensors", "finished-connect"):
        curve = tw.Bezier.load(OLD / path)
        assert [point.digest() for point in (curve.start, curve.bends[0], curve.end)] == [A, BEND, B]


def test_ensemble_of_0_1_0_loads():
    assert [member.digest() for member in tw.Ensemble.load(OLD / "ensemble", Net()).members] == [A, B]


def test_kept_epoch_of_0_1_0_loads_and_is_walked_from():
    kept = Checkpoint.load(OLD / "finished-fit" / "kept-1.safetensors")
    assert (kept.epoch, kept.kind) == (1, "SGD")
    walk = tw.walk(Net(), tw.classification(), BATCHES, tw.SWA(lr=0.1), epochs=1, start=kept)
    assert len(walk.members) == 1


def test_results_of_0_1_0_load():
    scan = tw.Scan.load(OLD / "scan.json")
    assert (scan.name, scan.weight_decay) == ("Bezier", 0.1)
    assert np.allclose(scan.values["train"]["data_loss"], [0.6856177896261215, 0.7112646624445915, 0.7490895614027977])
    assert tw.Scan.load(OLD / "plane.json").values["train"]["loss"].shape == (2, 2)
    trace = tw.Trace.load(OLD / "trace.json")
    assert (trace.lr.tolist(), trace.collected) == ([0.1] * 4, [2, 4])
    assert tw.Report.load(OLD / "report.json").members[0]["error"] == 0.5
    assert tw.Comparison.load(OLD / "comparison.json").score("Ind", 1)[0] == 0.625
    assert tw.CurveEnsemble.load(OLD / "curve-ensemble.json").t == [0.0, 0.5, 1.0]


def test_page_is_made_of_what_0_1_0_wrote(tmp_path):
    assert tw.page.write(tmp_path / "page.html", [OLD]).is_file()


@pytest.mark.parametrize("folder", ["finished-fit", "unfinished-fit", "finished-scan", "unfinished-scan"])
def test_run_folders_of_0_1_0_are_not_resumed_and_left_as_they_are(folder, tmp_path):
    here = shutil.copytree(OLD / folder, tmp_path / folder)
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    task, curve = tw.classification(), tw.Curve.load(OLD / "curve.safetensors")
    same_call = {
        "finished-fit": lambda: tw.fit(Net(1), task, BATCHES, epochs=2, lr=0.1, keep=[1], run=here),
        "unfinished-fit": lambda: tw.fit(Net(1), task, BATCHES, epochs=4, lr=0.1, run=here),
        "finished-scan": lambda: tw.scan(
            Net(), curve, task, {"train": BATCHES}, points=3, bn_batches=BATCHES, run=here
        ),
        "unfinished-scan": lambda: tw.scan(
            Net(), curve, task, {"train": BATCHES}, points=9, bn_batches=BATCHES, run=here
        ),
    }
    with pytest.raises(tw.ThalwegError, match=r"was written by an older thalweg, .*: choose another folder"):
        same_call[folder]()
    assert {path.name: path.read_bytes() for path in here.iterdir() if path.name != ".lock"} == before


@pytest.mark.parametrize(
    ("load", "folder"),
    [(tw.Weights.load, "unfinished-fit"), (tw.Scan.load, "unfinished-scan"), (tw.Scan.load, "finished-scan")],
)
def test_folders_of_0_1_0_without_a_result_say_what_to_do(load, folder):
    """A scan from Python left its points alone, so that nobody can tell whether it had finished."""
    command = folder.partition("-")[2]
    said = rf"holds no .*, but a run of {command}, which is of an older thalweg and cannot be resumed: make it again,"
    with pytest.raises(tw.ThalwegError, match=said):
        load(OLD / folder)
