"""The same through the command line: --resume refuses a different call, and `fit --runs` asks the factory for each
seed.
"""

import pytest
import torch
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app

TASK = """
import os
import torch, thalweg as tw
from torch.nn import functional as F

def factory(seed):
    change = os.environ.get("CHANGE", "")
    data = torch.Generator().manual_seed(seed if change == "seeded" else 0)
    train = [(torch.randn(8, 4, generator=data), torch.randint(3, (8,), generator=data)) for _ in range(4)]
    if change == "labels":
        train[1:] = [(x, (y + 1) % 3) for x, y in train[1:]]
    smoothing = 0.1 if change == "loss" else 0.0
    loss = lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh() if change == "forward" else torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return dict(model=model, task=tw.Task(loss), train=train, data={"train": train})
"""  # noqa: E501
NAMED = {
    "loss": "the loss of the first batch",
    "labels": "the last batch of the",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"question_task_{tmp_path.name}.py").write_text(TASK)
    return f"question_task_{tmp_path.name}:factory"


def invoke(task, *arguments):
    return CliRunner().invoke(app, [*map(str, arguments), "--task", task, "--quiet"])


def ok(task, *arguments):
    result = invoke(task, *arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("change", NAMED)
def test_resume_option_refuses_changed_arguments(here, change, monkeypatch):
    fit = ["fit", "--epochs", "2", "--runs", "2", "--out", "ends"]
    ok(here, *fit)
    connect = ["connect", "ends/seed-0", "ends/seed-1", "--epochs", "2", "--out", "curve"]
    ok(here, *connect)
    scan = ["scan", "ends/seed-0", "ends/seed-1", "--points", "3", "--out", "scan"]
    walk = ["walk", "--epochs", "2", "--cycle", "1", "--out", "walk"]
    compare = ["compare", "--methods", "ind", "--budget", "2", "--seeds", "2", "--out", "compare"]
    for arguments in (scan, walk, compare):
        ok(here, *arguments)
    monkeypatch.setenv("CHANGE", change)
    for arguments in (fit, connect, scan, walk, compare):
        refused = invoke(here, *arguments, "--resume")
        assert refused.exit_code == 2, refused.output
        assert "was made by a different call" in " ".join(refused.output.split())
        assert NAMED[change] in " ".join(refused.output.split())
    monkeypatch.setenv("CHANGE", "")
    for arguments in (fit, connect, scan, walk, compare):
        ok(here, *arguments, "--resume")


def test_resume_option_accepts_the_same_files_under_other_names(here, tmp_path):
    ok(here, "fit", "--epochs", "1", "--runs", "2", "--out", "ends")
    connect, scan = ["--epochs", "1", "--out", "curve"], ["--points", "3", "--no-line", "--out", "scan"]
    ok(here, "connect", "ends/seed-0", "ends/seed-1", *connect)
    ok(here, "scan", "curve", *scan)
    file, _, factory = here.partition(":")
    task = f"{tmp_path / file}.py:{factory}"
    ok(task, "connect", tmp_path / "ends/seed-0", "ends/seed-1/weights.safetensors", *connect, "--resume")
    ok(task, "scan", tmp_path / "curve", *scan, "--resume")
    swapped = invoke(task, "connect", "ends/seed-1", "ends/seed-0", *connect, "--resume")
    assert "the start of the curve has changed" in " ".join(swapped.output.split())


def test_connect_command_with_one_network_says_what_a_folder_holds(here):
    ok(here, "fit", "--epochs", "1", "--runs", "2", "--out", "ends")
    for given, message in (
        ("ends", "give ends/seed-0 ends/seed-1, or one of them"),
        ("ends/seed-0", "a curve joins two networks; got ends/seed-0"),
    ):
        refused = invoke(here, "connect", given, "--out", "curve")
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--seed", "9" * 30], "a seed must fit into 64 bits"),
        (
            ["--device", "meta"],
            "the network cannot be moved to device 'meta' (tensors on it have no values): give",
        ),
        (["--device", "gpu"], "the network cannot be moved to device 'gpu': give another, such as cpu"),
        (["--device", "cpu:x"], "the network cannot be moved to device 'cpu:x': give another, such as cpu"),
        (["--out", "n" * 300], "cannot be a path (File name too long): give the name of a file or a folder"),
    ],
)
def test_options_out_of_range_are_named(here, wrong, message):
    refused = invoke(here, "fit", "--epochs", "1", "--out", "net", *wrong)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.split())


def test_fit_runs_trains_each_network_on_the_data_of_its_seed(here, monkeypatch):
    monkeypatch.setenv("CHANGE", "seeded")
    ok(here, "fit", "--epochs", "2", "--runs", "2", "--out", "both")
    ok(here, "fit", "--epochs", "2", "--seed", "1", "--out", "one")
    both, alone = (tw.Weights.load(path).vector for path in ("both/seed-1", "one"))
    assert torch.equal(both, alone)
