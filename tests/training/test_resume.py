"""A run that was stopped goes on as if nothing had happened, bit for bit."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.store.runs import Run, start_run

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def loader(case, own=False):
    """Shuffled, with noise added from torch, numpy and random; perhaps with a generator of its own."""
    import numpy as np

    examples = [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)]

    def collate(items):
        x, y = (torch.stack(part) for part in zip(*items, strict=True))
        noise = 0.01 * torch.randn(1) + 0.01 * random.random() + 0.01 * np.random.rand()
        return x + noise if x.is_floating_point() else x, y

    generator = torch.Generator() if own else None
    return DataLoader(examples, batch_size=4, shuffle=True, generator=generator, collate_fn=collate)


def calls(case, task, batches):
    a, b = case.ends()
    start = tw.fit(case.module(1), case.task, case.batches(), epochs=1, lr=0.1, keep=[1]).kept[1]
    common = {"weight_decay": 0.01, "seed": 3}
    module = case.module(1)
    return {
        "fit": lambda run: tw.fit(module, task, batches, epochs=4, lr=0.1, keep=[2], run=run, **common),
        "connect": lambda run: tw.connect(
            module, tw.Bezier(a, b, 2), task, batches, epochs=4, lr=0.1, run=run, **common
        ),
        "adamw": lambda run: tw.connect(
            module,
            tw.Bezier(a, b, 2),
            task,
            batches,
            epochs=4,
            lr=0.01,
            optimizer=in_groups,
            accumulate=2,
            decay_at="phi",
            run=run,
        ),
        "arclength": lambda run: tw.connect(
            module, tw.PolyChain(a, b), task, batches, epochs=4, lr=0.1, loss="arclength", run=run, **common
        ),
        "walk": lambda run: tw.walk(
            module, task, batches, FGE, epochs=4, start=[a, start], watch={"x": case.batches()}, run=run, **common
        ),
    }


def in_groups(named):
    """AdamW with decay of matrices alone, and another rate for the rest."""
    matrices, rest = ([p for _, p in named if (p.ndim > 1) == wanted] for wanted in (True, False))
    return torch.optim.AdamW([{"params": matrices}, {"params": rest, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-3)


def bits_of(result):
    if isinstance(result, tw.Curve):
        return [bend.vector for bend in result.bends]
    if isinstance(result, tw.Walk):
        numbers = [torch.tensor(trace.loss) for trace in result.traces] + [
            torch.tensor(t.distance) for t in result.traces
        ]
        watched = [torch.tensor(trace.watched["x"]["data_loss"]) for trace in result.traces]
        return [t for member in result.members for t in in_order(member)] + numbers + watched
    kept = [result.kept[epoch].optimizer[key] for epoch in result.kept for key in sorted(result.kept[epoch].optimizer)]
    return [*in_order(result), *kept]


def in_a_step(net):
    """Not when a walk watches, nor when the fingerprint is taken: then a signal would end the process."""
    return net.training and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def in_order(weights):
    return [weights.vector, *(weights.buffers[name] for name in sorted(weights.buffers))]


def same(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["conv_bn", "dropout", "channels_last"])
@pytest.mark.parametrize("call", ["fit", "adamw", "connect", "arclength", "walk"])
def test_resume_after_a_stop_at_any_step_changes_nothing(call, name, own, tmp_path):
    case = ZOO[name]
    whole = bits_of(calls(case, case.task, loader(case, own))[call](None))
    for stop in (1, 5, 9, 14):
        seen = []

        def predict(net, batch, stop=stop, seen=seen):
            seen += [1] * in_a_step(net)
            if len(seen) == stop and in_a_step(net):
                os.kill(os.getpid(), signal.SIGTERM)
            return case.task.predict(net, batch)

        folder = tmp_path / str(stop)
        task = tw.Task(case.task.loss, predict)
        if call not in ("walk", "adamw"):  # whose steps are not those of one run, or not those of one batch
            with pytest.raises(
                Stopped, match=rf"stopped by SIGTERM after step {stop}, in epoch .*: make the same call again to resume"
            ):
                calls(case, task, loader(case, own))[call](Run(folder, every=3))
        else:
            with pytest.raises(Stopped):
                calls(case, task, loader(case, own))[call](Run(folder, every=3))
        assert same(bits_of(calls(case, case.task, loader(case, own))[call](folder)), whole)
        assert same(bits_of(calls(case, case.task, loader(case, own))[call](folder)), whole)
        assert not list(folder.rglob("state.safetensors"))


def test_resumed_log_has_one_line_per_epoch(tmp_path):
    case, seen = ZOO["mlp"], []

    def predict(net, batch):
        seen.extend([1] * in_a_step(net))
        if len(seen) in (4, 7, 8) and in_a_step(net):
            os.kill(os.getpid(), signal.SIGTERM)
        return case.task.predict(net, batch)

    for _ in range(4):
        try:
            tw.fit(
                case.module(1),
                tw.Task(case.task.loss, predict),
                case.batches(),
                epochs=5,
                lr=0.1,
                run=tmp_path / "r",
            )
        except Stopped:
            continue
    entries = Run(tmp_path / "r").lines("log.jsonl")
    assert [entry["epoch"] for entry in entries] == [1, 2, 3, 4, 5]
    tw.fit(case.module(1), case.task, case.batches(), epochs=5, lr=0.1, run=tmp_path / "whole")
    whole = Run(tmp_path / "whole").lines("log.jsonl")
    assert [entry["loss"] for entry in entries] == pytest.approx([entry["loss"] for entry in whole], rel=1e-12)


def test_resume_refuses_changed_settings_data_or_weights(tmp_path):
    case = ZOO["mlp"]

    def go(module=None, batches=None, **settings):
        settings = {"epochs": 2, "lr": 0.1, "run": tmp_path / "r", **settings}
        tw.fit(module or case.module(1), case.task, batches or case.batches(), **settings)

    go()
    for change, message in (
        ({"lr": 0.2, "epochs": 3}, "epochs was 2 and is 3; lr was 0.1 and is 0.2"),
        ({"module": case.module(2)}, "the starting network has changed"),
        ({"batches": case.batches()[:2]}, "the number of batches in the training data was 3 and is 2"),
    ):
        with pytest.raises(tw.ThalwegError, match=message):
            go(**change)
    with pytest.raises(tw.ThalwegError, match="holds a run of fit, not of connect"):
        tw.connect(
            case.module(1),
            tw.Bezier(*case.ends()),
            case.task,
            case.batches(),
            epochs=2,
            lr=0.1,
            run=tmp_path / "r",
        )


def test_demo_removes_half_written_files(tmp_path):
    start_run(tmp_path, "demo", {})
    (tmp_path / ".page.html.abc.thalweg-part").mkdir()
    (tmp_path / ".page.html.abc.thalweg-part" / "page.html").write_text("half")
    (tmp_path / ".notes").write_text("mine")
    start_run(tmp_path, "demo", {}, again=True)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", ".notes"}


def test_resume_killed_commands_bit_for_bit():
    """Every command, killed at random moments and in the middle of writing; `make soak` does it a thousand times."""
    script, alone = Path(__file__).parents[1] / "kills.py", {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), "52"], env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"52 kills, 26 at random and 26 while writing, in \d+ s: all resumed, none differs", done.stdout)


def test_full_disk_leaves_the_previous_run_state(tmp_path, monkeypatch):
    """The third time the state is saved, the disk is full in the middle of the file."""
    import errno

    case, original, saves = ZOO["conv_bn"], safetensors.torch.save_file, []

    def full(tensors, path, metadata=None):
        saves.append(1)
        if len(saves) == 3:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(tensors, path, metadata=metadata)

    def go(run):
        return tw.fit(case.module(1), case.task, case.batches(), epochs=3, lr=0.1, run=run)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(
        tw.ThalwegError, match=r"state\.safetensors could not be written \(No space left .*: make room or"
    ):
        go(Run(tmp_path / "r", every="0m"))
    monkeypatch.undo()
    assert Run(tmp_path / "r").load()[1]["done"] == 2
    assert not [path for path in (tmp_path / "r").iterdir() if path.name.endswith("part")]
    assert same(bits_of(go(tmp_path / "r")), bits_of(go(None)))


@pytest.mark.parametrize("call", ["fit", "connect", "walk", "scan", "compare"])
def test_ctrl_c_in_python_says_to_make_the_same_call_again(call, tmp_path):
    """And not to give an option of the command line; the same call then resumes."""
    case, stopping, usual = ZOO["mlp"], [True], signal.getsignal(signal.SIGINT)
    (a, b), batches = case.ends(), case.batches()

    def loss(outputs, targets):
        if stopping and signal.getsignal(signal.SIGINT) is not usual:  # in a step or at a point
            stopping.clear()
            signal.raise_signal(signal.SIGINT)
        return case.task.loss(outputs, targets)

    common = {"task": tw.Task(loss), "run": tmp_path / "r"}
    pair = {"budget": 2, "seeds": [0], "multiples": [1]}
    calls = {
        "fit": lambda: tw.fit(case.module(1), batches=batches, epochs=2, lr=0.1, **common),
        "connect": lambda: tw.connect(case.module(1), tw.Bezier(a, b), batches=batches, epochs=2, lr=0.1, **common),
        "walk": lambda: tw.walk(case.module(1), batches=batches, method=FGE, epochs=2, **common),
        "scan": lambda: tw.scan(case.module(1), tw.Segment(a, b), data={"x": batches}, points=3, **common),
        "compare": lambda: tw.compare(
            case.module, train=batches, test=batches, methods=[tw.Independent], **common, **pair
        ),
    }
    with pytest.raises(Stopped, match=r"^stopped by SIGINT after .*: make the same call again to resume$") as caught:
        calls[call]()
    assert "--resume" not in str(caught.value)
    calls[call]()
