"""`load` of every result takes the folder of a run; any other folder is an error that names it and what to do."""

import re
import shutil

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.evaluation.curve_ensemble import CurveEnsemble
from thalweg.evaluation.ensemble import Report
from thalweg.reporting.result import Result
from thalweg.store.runs import Run

BATCHES = [(torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 2)] * 2
FGE = tw.FGE(cycle=1, lr_max=0.1, lr_min=0.01)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def task(seed):
    return {"model": network(seed), "task": tw.classification(), "train": BATCHES}


def calls(net, known):
    a, b = (tw.Weights.of(network(seed)) for seed in (1, 2))
    pair = {"budget": 8, "seeds": [0], "multiples": [1]}
    return {
        "fit": lambda run: tw.fit(net, known, BATCHES, epochs=9, lr=0.1, run=run),
        "connect": lambda run: tw.connect(net, tw.Bezier(a, b), known, BATCHES, epochs=9, lr=0.1, run=run),
        "scan": lambda run: tw.scan(net, tw.Segment(a, b), known, {"test": BATCHES}, points=9, run=run),
        "walk": lambda run: tw.walk(net, known, BATCHES, FGE, epochs=9, run=run),
        "compare": lambda run: tw.compare(network, known, BATCHES, BATCHES, [tw.Independent], run=run, **pair),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each kind one that has finished and, but for the ensemble, one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    for name, call in calls(network(), tw.classification()).items():
        call(folder / name)
    given = [
        "ensemble",
        folder / "fit",
        folder / "walk",
        "--task",
        f"{__file__}:task",
        "--out",
        folder / "ensemble",
        "--quiet",
    ]
    result = CliRunner().invoke(app, [str(word) for word in given])
    assert result.exit_code == 0, (result.output, result.exception)
    for name in calls(network(), tw.classification()):
        seen = []

        def stopping(outputs, targets, seen=seen):
            seen.append(1)
            if len(seen) == 12:
                raise KeyboardInterrupt
            return tw.classification().loss(outputs, targets)

        with pytest.raises(KeyboardInterrupt):
            calls(network(), tw.Task(stopping, tw.classification().predict))[name](
                Run(folder / f"half-{name}", every=1)
            )
    (folder / "empty").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.txt").write_text("mine")
    return folder


LOADS = {  # what is loaded -> how, from which folders of runs, and from which file in each
    "Weights": (tw.Weights.load, {"fit": "weights.safetensors"}),
    "Curve": (tw.Curve.load, {"connect": "curve.safetensors"}),
    "Bezier": (tw.Bezier.load, {"connect": "curve.safetensors"}),
    "Scan": (tw.Scan.load, {"scan": "scan.json"}),
    "Trace": (tw.Trace.load, {"walk": "trace-1.json"}),
    "Comparison": (tw.Comparison.load, {"compare": "comparison.json"}),
    "Report": (Report.load, {"ensemble": "report.json"}),
    "Ensemble": (lambda path: tw.Ensemble.load(path, network()), {"walk": "members", "ensemble": "members"}),
    "CurveEnsemble": (CurveEnsemble.load, {}),
    "Result": (Result.load, {}),
}
FINISHED = ["fit", "connect", "scan", "walk", "compare", "ensemble"]
STOPPED = ["half-fit", "half-connect", "half-scan", "half-walk", "half-compare"]


def bits(found):
    if isinstance(found, tw.Weights):
        return found.vector.tolist()
    if isinstance(found, tw.Curve):
        return [point.vector.tolist() for point in found.points]
    return [member.vector.tolist() for member in found.members] if isinstance(found, tw.Ensemble) else found.to_dict()


@pytest.mark.parametrize(("name", "folder"), [(name, folder) for name, (_, known) in LOADS.items() for folder in known])
def test_load_reads_the_folder_of_a_finished_run(name, folder, runs):
    load, known = LOADS[name]
    assert bits(load(runs / folder)) == bits(load(str(runs / folder / known[folder])))


def test_load_reads_the_folder_of_an_entry_of_the_paper(tmp_path):
    result = Result("trivial", "FC on MNIST", [{"loss": 1.0}], [], {"scale": "smoke"})
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path) == result


def refusal(load, path):
    with pytest.raises(tw.ThalwegError) as caught:
        load(path)
    said = str(caught.value)
    assert "\n" not in said
    assert str(path) in said
    return said


@pytest.mark.parametrize("name", LOADS)
def test_load_refuses_every_other_folder_by_a_sentence(name, runs):
    load, known = LOADS[name]
    for folder in {*FINISHED} - {*known}:
        assert re.search(
            rf" holds no .*, but a run of {folder}, which has finished: give ", refusal(load, runs / folder)
        )
    for folder in STOPPED:
        said = refusal(load, runs / folder)
        assert re.search(rf" holds no .*, but a run of {folder[5:]}, which has not finished: resume it", said), said
    for folder in ("empty", "notes"):
        assert refusal(load, runs / folder).endswith(": give a file, or the folder of a run that has finished")
    assert "check the path" in refusal(load, runs / "nowhere")


@pytest.mark.parametrize(("name", "folder"), [(name, folder) for name, (_, known) in LOADS.items() for folder in known])
def test_load_refuses_a_result_that_is_cut_short(name, folder, runs, tmp_path):
    load, known = LOADS[name]
    shutil.copytree(runs / folder, tmp_path / folder)
    path = tmp_path / folder / known[folder]
    path = path / "ensemble.json" if path.is_dir() else path
    path.write_bytes(path.read_bytes()[:-20])
    assert re.search("is not a whole|may be truncated", refusal(lambda _: load(tmp_path / folder), path))


@pytest.mark.parametrize("name", LOADS)
def test_load_refuses_a_file_of_another_kind(name, runs):
    load, known = LOADS[name]
    for path in (runs / "scan" / "run.json", runs / "fit" / "run.json"):
        refusal(load, path)
    for folder in {
        "scan": "scan.json",
        "fit": "weights.safetensors",
        "connect": "curve.safetensors",
    }.items() - known.items():
        refusal(load, runs.joinpath(*folder))


def test_load_refuses_a_mistyped_folder_next_to_a_manifest(runs):
    members = runs / "walk" / "members"
    assert "check the path" in refusal(LOADS["Ensemble"][0], members / "mistyped")
    assert "must be an ensemble file, but it is a run file" in refusal(LOADS["Ensemble"][0], runs / "walk" / "run.json")
