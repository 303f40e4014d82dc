"""Optimizers and schedules on the command line, or from the factory."""

from functools import partial

import pytest
import torch
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app

TASK = """
import torch, thalweg as tw
from functools import partial
from torch import nn

def plain(seed):
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    batches = [(x[i:i + 20], (x[i:i + 20].norm(dim=1) > 1.1).long()) for i in range(0, 60, 20)]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    return dict(model=model, task=tw.classification(), train=batches, data={"train": batches})

def own(seed):
    return plain(seed) | dict(optimizer=partial(torch.optim.AdamW, lr=0.02, weight_decay=0.3))

def scheduled(seed):
    return own(seed) | dict(schedule=tw.WarmupCosine(0.1, warmup=1))

def scaled(seed):
    return own(seed) | dict(schedule=tw.WarmupCosine(warmup=1))

def odd(seed):
    return plain(seed) | dict(optimizer=3)
"""
SHORT = ["--epochs", "4", "--device", "cpu", "--quiet"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_optimizer.py").write_text(TASK)

    def go(*words):
        return CliRunner().invoke(app, [*words, *SHORT], catch_exceptions=True)

    return go


def inputs():
    names: dict = {}
    exec(TASK, names)
    return names["plain"](0)


def decaying_matrices(named):
    matrices, rest = ([p for _, p in named if (p.ndim > 1) == wide] for wide in (True, False))
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}])


CASES = {
    "adamw, which decays matrices alone": (
        ["plain", "--optimizer", "adamw", "--weight-decay", "0.2"],
        {"optimizer": decaying_matrices, "lr": 0.001},
    ),
    "adam with the penalty of the call": (
        ["plain", "--optimizer", "adam", "--weight-decay", "0.2", "--lr", "0.01"],
        {"optimizer": torch.optim.Adam, "lr": 0.01, "weight_decay": 0.2},
    ),
    "a warm-up, a cosine and accumulated batches": (
        ["plain", "--schedule", "cosine", "--warmup", "1", "--accumulate", "2"],
        {"schedule": tw.WarmupCosine(0.05, warmup=1), "accumulate": 2},
    ),
    "a constant rate": (["plain", "--schedule", "constant"], {"schedule": lambda i: 0.05}),
    "the default": (["plain"], {"lr": 0.05}),
    "the factory's optimizer and its own rate": (
        ["own"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3, lr=0.02)},
    ),
    "the factory's optimizer, decayed": (
        ["own", "--schedule", "decay"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3), "lr": 0.02},
    ),
    "the factory's optimizer at another rate": (
        ["own", "--lr", "0.03"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3), "lr": 0.03},
    ),
    "the factory's optimizer with a cosine": (
        ["own", "--schedule", "cosine", "--warmup", "1"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3), "schedule": tw.WarmupCosine(0.02, warmup=1)},
    ),
    "the factory's warm-up, which scales its optimizer's rate": (
        ["scaled"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3), "schedule": tw.WarmupCosine(0.02, warmup=1)},
    ),
    "the factory's schedule": (
        ["scheduled"],
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.3), "schedule": tw.WarmupCosine(0.1, warmup=1)},
    ),
    "another than the factory's": (
        ["scheduled", "--optimizer", "sgd", "--schedule", "decay", "--lr", "0.1"],
        {"lr": 0.1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_command_with_optimizer_trains_as_in_python(case, run, tmp_path):
    (task, *words), settings = CASES[case]
    done = run("fit", "--task", f"own_optimizer:{task}", "--out", "run", *words)
    assert done.exit_code == 0, done.output
    made = inputs()
    expected = tw.fit(made["model"], made["task"], made["train"], epochs=4, progress=False, **settings)
    assert torch.equal(tw.Weights.load(tmp_path / "run").vector, expected.vector)


def test_connect_and_walk_commands_keep_the_optimizer_options(run):
    words = ["--optimizer", "adamw", "--weight-decay", "0.2", "--accumulate", "2"]
    done = run("fit", "--task", "own_optimizer:plain", "--out", "ends", "--runs", "2", *words)
    assert "--optimizer adamw --weight-decay 0.2 --accumulate 2" in done.output
    done = run("connect", "ends/seed-0", "ends/seed-1", "--task", "own_optimizer:plain", "--out", "curve", *words)
    assert done.exit_code == 0, done.output
    assert "weight-decay" not in done.output.partition("next: ")[2]  # which in a scan would be the penalty of a loss
    done = run("walk", "--task", "own_optimizer:scheduled", "--start", "ends/seed-0", "--cycle", "2", "--out", "walk")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plain", "--warmup", "1"], "--warmup 1 without --schedule cosine"),
        (["scheduled", "--lr", "0.1"], "--lr would be ignored"),
        (["own", "--weight-decay", "0.1"], "not both; got --weight-decay 0.1, and 0.3 in AdamW"),
        (["odd", "--lr", "0.1"], "optimizer must be a function"),
    ],
)
def test_optimizer_options_that_contradict_are_refused(words, message, run):
    done = run("fit", "--task", f"own_optimizer:{words[0]}", "--out", "run", *words[1:])
    assert done.exit_code == 2
    assert message in " ".join(f"{done.output} {done.exception}".split())
