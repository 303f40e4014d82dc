"""Several processes do what one does; where they cannot, they end, and say why."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner
from zoo import ZOO

import thalweg as tw
from thalweg.cli import app
from thalweg.runtime.distributed import Ranks, _own_gpu
from thalweg.training.fingerprint import _refuse_distributed_sampler

HERE = Path(__file__).parent.parent
SOURCE = Path(tw.__file__).parents[1]  # so that the processes run this copy
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{SOURCE}"}


def torchrun(number, *arguments):
    alone = [sys.executable, *arguments]
    several = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(number),
        *arguments,
    ]
    return alone if number == 1 else several


def found(what, number, folder):
    """What the processes wrote, in the order of their ranks."""
    command = torchrun(number, str(HERE / "rank_worker.py"), what, str(folder))
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{what}-{number}-{rank}.pt") for rank in range(number)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return found("together", 1, tmp_path_factory.mktemp("alone"))[0]


@pytest.mark.parametrize("number", [2, 4])
def test_ranks_give_the_result_of_one_process(number, alone, tmp_path):
    for each in found("together", number, tmp_path):
        assert each.keys() == alone.keys()
        for name, values in alone.items():
            assert torch.allclose(each[name], values, rtol=0, atol=0 if "scan" in name else 1e-10), name
            assert (values != 0).any()


def test_ranks_draw_their_own_t_and_masks_and_keep_the_same_weights(tmp_path):
    first, second = found("apart", 2, tmp_path)
    for name in ("statistics", "dropout", "bend", "masks", "arclength", "padding"):
        assert torch.equal(first[name], second[name]), name
    t = [float(each["t"]) for each in (first, second)]
    assert t[0] != t[1]
    case = ZOO["mlp"]
    a, b = case.ends()
    [batch] = case.batches()[:1]
    half, gradient = len(batch[1]) // 2, 0
    curve = tw.Bezier(a, b)
    for rank, here in enumerate(t):
        part = tuple(tensor[:half] if rank == 0 else tensor[half:] for tensor in batch)
        module = case.module(1)
        curve.point(here).load_into(module)
        case.losses(module, part).mean().backward()
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
        gradient = gradient + len(part[1]) / len(batch[1]) * 2 * here * (1 - here) * flat
    assert torch.allclose(first["bend"], curve.bends[0].vector - 0.1 * gradient, rtol=0, atol=1e-14)


def test_ranks_with_different_arguments_are_refused_at_once(tmp_path):
    first, second = found("disagreements", 2, tmp_path)
    assert {**first, "single": ""} == {**second, "single": ""}
    expected = {
        "settings": "weight_decay is 0.01 in process 0 and 0.02 in process 1",
        "data": "the training data in process 0 and in process 1 differ",
        "start": "the starting network in process 0 and in process 1 differ",
        "version": "thalweg is '0.2.0' in process 0 and '0.0.0' in process 1",
        "scan": "the data 'x' in process 0 and in process 1 differ",
    }
    others = {
        "first": "division by zero",
        "folder": "already exists and is never overwritten",
        "single": "single example",
    }
    assert set(first) == {*expected, *others}
    for name, message in expected.items():
        assert f"the processes of a run must agree, but {message}" in first[name]
    for name, message in others.items():
        assert message in first[name]


TASK = """
import os, pathlib, time
import torch, thalweg as tw

pathlib.Path(f"pid-{os.environ.get('RANK', 0)}").write_text(str(os.getpid()))
torch.manual_seed(0)
x = torch.rand(64, 2, dtype=torch.float64)
train = list(zip(x.split(16), (x.sum(1) > 1).long().split(16)))


def slow(outputs, targets):
    time.sleep(float(os.environ.get("SLOW", "0")))
    return tw.classification().loss(outputs, targets)


def task(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    return dict(model=model, task=tw.Task(slow, tw.classification().predict), train=train, data={"train": train})
"""


def with_task(folder):
    """A folder with a task and two networks, as the current one."""
    (folder / "mine.py").write_text(TASK)
    for seed in (0, 1):
        tw.Weights.of(_model(seed)).save(folder / f"{seed}.safetensors")
    return folder


def alone_in(folder, *words):
    """A command in this process."""
    with chdir(folder):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


CONNECT = [
    *("connect", "0.safetensors", "1.safetensors", "--task", "mine.py:task", "--epochs", "40"),
    *("--checkpoint-every", "1", "--same-t", "--quiet", "--out"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = with_task(tmp_path_factory.mktemp("undisturbed"))
    alone_in(folder, *CONNECT, "curve")
    return tw.Curve.load(folder / "curve")


@pytest.mark.parametrize("victim", [0, 1, None])
def test_run_with_a_killed_rank_ends_and_resumes(victim, undisturbed, tmp_path):
    with_task(tmp_path)
    slowly = {**ENVIRONMENT, "SLOW": "0.2"}  # so that it cannot end before it is ended
    running = subprocess.Popen(
        torchrun(2, "-m", "thalweg", *CONNECT, "curve"),
        env=slowly,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _wait_for(tmp_path / "curve" / "state.safetensors")
    if victim is None:
        running.terminate()  # torchrun tells all
    else:
        os.kill(int((tmp_path / f"pid-{victim}").read_text()), signal.SIGKILL)
    _, errors = running.communicate(timeout=120)
    assert running.returncode != 0
    said = "stopped by SIGTERM after step " if victim is None else "another process of this run has"
    reported = re.findall(f"^thalweg: ({said}|.*)", errors, re.M)
    # torchrun may end the others before they can speak
    assert reported == [said] or (victim is not None and not reported)
    assert not (tmp_path / "curve" / "curve.safetensors").exists()
    if victim:
        alone_in(tmp_path, *CONNECT, "curve", "--resume")
    else:
        line = torchrun(2, "-m", "thalweg", *CONNECT, "curve", "--resume")
        again = subprocess.run(line, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again.stderr
    assert tw.Curve.load(tmp_path / "curve").bends[0].distance(undisturbed.bends[0]) < 1e-12


def _model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()


def _wait_for(path):
    for _ in range(600):
        if path.is_file():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} was never written")


def test_failure_on_all_ranks_is_reported_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        TASK + '\n\ndef single(seed):\n    return {**task(seed), "model": task(seed)["model"].float()}\n'
    )
    line = torchrun(2, "-m", "thalweg", "fit", "--task", "mine:single", "--out", "out", "--quiet")
    done = subprocess.run(
        line,
        env={**ENVIRONMENT, "PYTHONPATH": f".:{SOURCE}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    [said] = re.findall(r"^thalweg: (.*)", done.stderr, re.M)
    assert re.search(r"RuntimeError: .*; .* weights are float32 on cpu, a batch of \(float64 8 x 2, int64 8\)", said)


@pytest.mark.parametrize("command", ["walk", "compare"])
def test_walks_and_comparisons_of_several_ranks_are_those_of_one(command, tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    small = {
        "walk": ["--epochs", "4", "--lr-max", "0.1", "--lr-min", "0.01"],
        "compare": ["--budget", "20", "--seeds", "2"],
    }[command]
    words = [command, "--task", "mine.py:task", *small, "--quiet", "--out"]
    alone_in(tmp_path, *words, "ranks-1")
    line = torchrun(2, "-m", "thalweg", *words, "ranks-2")
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for folder in (tmp_path / "ranks-1", tmp_path / "ranks-2"):
        if command == "walk":
            files = sorted((folder / "start-1").glob("collected-*.safetensors"))
            found.append(torch.stack([tw.Weights.load(file).vector for file in files]))
        else:
            entries = tw.Comparison.load(folder).entries.values()
            found.append(torch.tensor([run["nll"] for entry in entries for run in entry["runs"]]))
    assert found[0].numel()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)


def test_ranks_divide_batches_along_their_first_dimension():
    batch = {"x": torch.arange(10).reshape(5, 2), "y": torch.arange(5), "scale": torch.tensor(3.0), "name": "a"}
    parts = [Ranks(rank, 3).share(batch) for rank in range(3)]
    assert [part["y"].tolist() for part, _ in parts] == [[0], [1, 2], [3, 4]]
    assert torch.equal(torch.cat([part["x"] for part, _ in parts]), batch["x"])
    assert all(counts and part["name"] == "a" and part["scale"] == 3 for part, counts in parts)


def test_ranks_with_too_few_examples_leave_some_without():
    parts = [Ranks(rank, 4).share((torch.arange(2),)) for rank in range(4)]
    assert [counts for _, counts in parts] == [False, True, False, True]
    assert [part[0].tolist() for part, counts in parts if counts] == [[0], [1]]
    assert all(len(part[0]) == 1 for part, _ in parts)


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": ["a"]},
        (torch.tensor(1.0),),
        (torch.arange(4), [1, 2, 3, 4]),
        (torch.arange(4), np.arange(4)),
        ([torch.zeros(3, 5, 5)] * 4, torch.arange(4)),
    ],
)
def test_ranks_refuse_a_batch_that_cannot_be_divided(batch):
    with pytest.raises(tw.ThalwegError, match="divided along the first dimension"):
        Ranks(0, 2).share(batch)


def test_ranks_refuse_a_distributed_sampler():
    data = torch.utils.data.TensorDataset(torch.rand(8, 2))
    sampler = torch.utils.data.distributed.DistributedSampler(data, 2, 0)
    loader = torch.utils.data.DataLoader(data, sampler=sampler)
    with pytest.raises(tw.ThalwegError, match="leave the sampler out"):
        _refuse_distributed_sampler(loader)


def test_every_rank_has_a_gpu_of_its_own():
    assert _own_gpu({}, 0) == {}
    assert _own_gpu({"LOCAL_RANK": "1"}, 2) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert _own_gpu({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,GPU-7"}, 2) == {"CUDA_VISIBLE_DEVICES": "GPU-7"}
    with pytest.raises(tw.ThalwegError, match="needs its own GPU; there are 2"):
        _own_gpu({"LOCAL_RANK": "2"}, 2)


def test_every_rank_draws_its_own_numbers_in_a_step_and_all_resume_as_one():
    drawn, after = [], []
    for rank in (0, 1, 1):
        torch.manual_seed(0)
        with Ranks(rank, 2).own_randomness(7, 3):
            drawn.append(float(torch.rand(())))
        after.append(float(torch.rand(())))
    assert drawn[0] != drawn[1] == drawn[2]
    assert len(set(after)) == 1
