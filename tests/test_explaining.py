"""An error in the user's own code, or of the system, is one sentence on the command line; in Python it stays what it is."""

import os
import re
import resource
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.store import files
from thalweg.store.runs import Run

TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import thalweg as tw

class Data(Dataset):
    def __init__(self, error=None):
        self.error = error
    def __len__(self):
        return 8
    def __getitem__(self, i):
        if self.error is not None and i == 5:
            raise self.error
        return torch.ones(3) * i, i % 2

def collate(items):
    raise RuntimeError("no two items alike")

def made(seed, **other):
    torch.manual_seed(seed)
    given = dict(model=nn.Linear(3, 2), task=tw.classification(), train=DataLoader(Data(), 4))
    return {**given, **other}

def plain(seed):
    return made(seed)

def dataset(seed):
    return made(seed, train=DataLoader(Data(ValueError("a bad item")), 4))

def missing(seed):
    return made(seed, train=DataLoader(Data(FileNotFoundError(2, "No such file or directory", "cat.png")), 4))

def workers(seed):
    return made(seed, train=DataLoader(Data(KeyError("the fifth")), 4, num_workers=1))

def collated(seed):
    return made(seed, train=DataLoader(Data(), 4, collate_fn=collate))

def metric(seed):
    return made(seed, task=tw.Task(tw.classification().loss, tw.classification().predict, metrics=dict(mine=own_metric)))

def own_metric(*given):
    raise ZeroDivisionError("in the metric")
"""
FAILING = {
    "dataset": r"ValueError: a bad item \(.*theirs\.py, line 14\)",
    "missing": r"FileNotFoundError: .*cat\.png.* \(.*theirs\.py, line 14\)",
    "workers": r"KeyError: 'the fifth' \(.*theirs\.py, line 14\)",
    "collated": r"RuntimeError: no two items alike \(.*theirs\.py, line 18\)",
    "metric": r"ZeroDivisionError: in the metric \(.*theirs\.py, line 44\)",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def fit(factory, out="out", *before):
    return invoke(*before, "fit", "--task", f"theirs:{factory}", "--epochs", 1, "--out", out, "--quiet")


@pytest.mark.parametrize("factory", FAILING)
def test_error_in_user_code_is_a_sentence_with_the_users_line(factory, here):
    result = fit(factory)
    assert result.exit_code == 2, (result.output, result.exception)
    assert re.fullmatch(rf"thalweg: {FAILING[factory]}.*--debug \.\.\.\n", result.output), result.output


def test_debug_shows_the_traceback_and_the_sentence(here):
    result = fit("dataset", "out", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.output
    assert "raise self.error" in result.output
    assert result.output.splitlines()[-1].startswith("thalweg: ValueError: a bad item")
    assert "Traceback" not in fit("dataset").output


def test_error_in_user_code_stays_what_it_is_in_python():
    def batches():
        yield torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
        raise LookupError("theirs")

    class Own:
        def __len__(self):
            return 2

        def __iter__(self):
            return batches()

    with pytest.raises(LookupError, match=r"^theirs$"):
        tw.fit(nn.Linear(3, 2), tw.classification(), Own(), epochs=1, lr=0.1)


@contextmanager
def full_disk(size=64):
    """No file may become longer than this, which the system reports as it does a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_a_sentence_with_the_path(here):
    """Of safetensors' own writer, which reports it as an error of its own, and of the system's."""
    run = Run(here / "run")
    (here / "run").mkdir()
    for name, save in (
        ("w", lambda: tw.Weights.of(nn.Linear(300, 20)).save(here / "w.safetensors")),
        ("j", lambda: files.save_json(here / "j.json", "scan", {"values": list(range(1000))})),
        ("log", lambda: run.append("log.jsonl", {"values": list(range(1000))})),
    ):
        with full_disk(), pytest.raises(tw.ThalwegError, match=rf"{name}\.\w+ could not be written \(.*File too large"):
            save()
    with full_disk():
        result = fit("plain")
    assert result.exit_code == 2
    assert re.fullmatch(r"thalweg: out/run\.json could not be written .*\n", result.output), result.output
    assert [path.name for path in (here / "out").iterdir()] in ([], [".lock"])


def test_unusable_folders_are_a_sentence_with_the_path(here):
    (here / "file").write_text("mine")
    for out, named in (("file", "file"), ("file/inside", "file/inside"), ("x" * 300, "x" * 300)):
        result = fit("plain", out)
        assert result.exit_code == 2, (result.output, result.exception)
        assert named in result.output
        assert "Traceback" not in result.output
    assert (here / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write and read everything")
def test_no_permission_is_a_sentence_with_the_path(here):
    (here / "closed").mkdir(mode=0o500)
    tw.Weights.of(nn.Linear(3, 2)).save(here / "w.safetensors")
    os.chmod(here / "w.safetensors", 0)
    assert "closed/out" in fit("plain", "closed/out").output
    with pytest.raises(tw.ThalwegError, match=r"w\.safetensors cannot be read \(Permission denied\)"):
        tw.Weights.load(here / "w.safetensors")


@pytest.mark.parametrize("command", ["connect", "scan", "plane", "walk", "ensemble"])
def test_key_chooses_weights_inside_checkpoints(command, here):
    torch.manual_seed(0)
    nets = [nn.Linear(3, 2) for _ in range(6)]
    for i, name in enumerate("abc"):
        torch.save({"model": nets[i].state_dict(), "ema": {"module": nets[i + 3].state_dict()}}, here / f"{name}.ckpt")
    given = {"connect": ["a.ckpt", "b.ckpt"], "scan": ["a.ckpt", "b.ckpt"], "plane": ["a.ckpt", "b.ckpt", "c.ckpt"]}
    given |= {"ensemble": ["a.ckpt"], "walk": ["--start", "a.ckpt", "--epochs", 2, "--method", "swa"]}
    rest = {"connect": ["--epochs", 1], "scan": ["--points", 2], "plane": ["--grid", 2]}.get(command, [])
    common = [command, *given[command], *rest, "--task", "theirs:plain", "--quiet"]
    refused = invoke(*common, "--out", "none")
    assert refused.exit_code == 2
    assert "under 'model', 'ema.module': choose with --key" in refused.output
    result = invoke(*common, "--out", "out", "--key", "ema")
    assert result.exit_code == 0, (result.output, result.exception)
    if command == "connect":
        assert torch.equal(tw.Curve.load("out/curve.safetensors").start.state_dict()["weight"], nets[3].weight)


def test_folder_of_networks_lists_what_is_inside(here):
    for seed in range(2):
        tw.Weights.of(nn.Linear(3, 2)).save(here / "ends" / f"seed-{seed}" / "weights.safetensors")
    result = invoke("connect", "ends", "ends", "--task", "theirs:plain", "--out", "out")
    assert result.exit_code == 2
    assert "ends holds no weights.safetensors: it holds seed-0, seed-1: give ends/seed-0 or another" in result.output
