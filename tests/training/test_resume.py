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


def loader(animal, own=False):
    """Shuffled, with noise added from torch, numpy and random; perhaps with a generator of its own."""
    import numpy as np

    examples = [(x, y) for batch in animal.batches() for x, y in zip(*batch, strict=True)]

    def collate(items):
        x, y = (torch.stack(part) for part in zip(*items, strict=True))
        noise = 0.01 * torch.randn(1) + 0.01 * random.random() + 0.01 * np.random.rand()
        return x + noise if x.is_floating_point() else x, y

    generator = torch.Generator() if own else None
    return DataLoader(examples, batch_size=4, shuffle=True, generator=generator, collate_fn=collate)


def calls(animal, task, batches):
    a, b = animal.ends()
    start = tw.fit(animal.module(1), animal.task, animal.batches(), epochs=1, lr=0.1, keep=[1]).kept[1]
    common = {"weight_decay": 0.01, "seed": 3}
    module = animal.module(1)
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
            module, task, batches, FGE, epochs=4, start=[a, start], watch={"x": animal.batches()}, run=run, **common
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
def test_stopping_at_any_step_changes_nothing(call, name, own, tmp_path):
    animal = ZOO[name]
    whole = bits_of(calls(animal, animal.task, loader(animal, own))[call](None))
    for stop in (1, 5, 9, 14):
        seen = []

        def predict(net, batch, stop=stop, seen=seen):
            seen += [1] * in_a_step(net)
            if len(seen) == stop and in_a_step(net):
                os.kill(os.getpid(), signal.SIGTERM)
            return animal.task.predict(net, batch)

        folder = tmp_path / str(stop)
        task = tw.Task(animal.task.loss, predict)
        if call not in ("walk", "adamw"):  # whose steps are not those of one run, or not those of one batch
            with pytest.raises(
                Stopped, match=rf"stopped by SIGTERM after step {stop}, in epoch .*: make the same call again to resume"
            ):
                calls(animal, task, loader(animal, own))[call](Run(folder, every=3))
        else:
            with pytest.raises(Stopped):
                calls(animal, task, loader(animal, own))[call](Run(folder, every=3))
        assert same(bits_of(calls(animal, animal.task, loader(animal, own))[call](folder)), whole)
        assert same(bits_of(calls(animal, animal.task, loader(animal, own))[call](folder)), whole)
        assert not list(folder.rglob("state.safetensors"))


def test_the_log_has_one_line_per_epoch_however_often_it_stopped(tmp_path):
    animal, seen = ZOO["mlp"], []

    def predict(net, batch):
        seen.extend([1] * in_a_step(net))
        if len(seen) in (4, 7, 8) and in_a_step(net):
            os.kill(os.getpid(), signal.SIGTERM)
        return animal.task.predict(net, batch)

    for _ in range(4):
        try:
            tw.fit(
                animal.module(1),
                tw.Task(animal.task.loss, predict),
                animal.batches(),
                epochs=5,
                lr=0.1,
                run=tmp_path / "r",
            )
        except Stopped:
            continue
    entries = Run(tmp_path / "r").lines("log.jsonl")
    assert [entry["epoch"] for entry in entries] == [1, 2, 3, 4, 5]
    tw.fit(animal.module(1), animal.task, animal.batches(), epochs=5, lr=0.1, run=tmp_path / "whole")
    whole = Run(tmp_path / "whole").lines("log.jsonl")
    assert [entry["loss"] for entry in entries] == pytest.approx([entry["loss"] for entry in whole], rel=1e-12)


def test_other_settings_data_or_weights_are_named(tmp_path):
    animal = ZOO["mlp"]

    def go(module=None, batches=None, **settings):
        settings = {"epochs": 2, "lr": 0.1, "run": tmp_path / "r", **settings}
        tw.fit(module or animal.module(1), animal.task, batches or animal.batches(), **settings)

    go()
    for change, message in (
        ({"lr": 0.2, "epochs": 3}, "epochs was 2 and is 3; lr was 0.1 and is 0.2"),
        ({"module": animal.module(2)}, "the starting network has changed"),
        ({"batches": animal.batches()[:2]}, "the number of batches in the training data was 3 and is 2"),
    ):
        with pytest.raises(tw.ThalwegError, match=message):
            go(**change)
    with pytest.raises(tw.ThalwegError, match="holds a run of fit, not of connect"):
        tw.connect(
            animal.module(1),
            tw.Bezier(*animal.ends()),
            animal.task,
            animal.batches(),
            epochs=2,
            lr=0.1,
            run=tmp_path / "r",
        )


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    animal = ZOO["mlp"]
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="nothing is written over"):
        tw.fit(animal.module(1), animal.task, animal.batches(), epochs=1, lr=0.1, run=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_hidden_file_does_not_occupy_a_folder(tmp_path):
    (tmp_path / ".DS_Store").write_text("left by a system")
    start_run(tmp_path, "demo", {})
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="nothing is written over"):
        start_run(tmp_path, "demo", {})


def test_two_runs_exclude_each_other_and_a_dead_one_does_not(tmp_path):
    first, second = (Run(tmp_path / "r").opened("fit", {}) for _ in range(2))
    with first, pytest.raises(tw.ThalwegError, match=rf"is in use by process {os.getpid()} on .* \(fit\)"), second:
        pass
    code = f"""import os
from thalweg.store.runs import Run
held = Run({str(tmp_path / "k")!r}).opened("fit", {{}})
held.__enter__()
os._exit(9)"""
    subprocess.run([sys.executable, "-c", code], check=False)
    with Run(tmp_path / "k").opened("fit", {}):
        pass


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_line_cut_anywhere_does_not_spoil_the_next(cut, tmp_path):
    """Cut by one, only the line's end is missing, and its content is whole."""
    run = Run(tmp_path)
    for epoch in (1, 2):
        run.append("log.jsonl", {"epoch": epoch})
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    whole = [1, 2] if cut == 1 else [1]
    assert [entry["epoch"] for entry in run.lines("log.jsonl")] == whole
    run.append("log.jsonl", {"epoch": 3})
    assert [entry["epoch"] for entry in run.lines("log.jsonl")] == [*whole, 3]


def test_more_than_a_line_cut_short_is_not_thrown_away(tmp_path):
    run = Run(tmp_path)
    for epoch in (1, 2, 3):
        run.append("log.jsonl", {"epoch": epoch})
    path = tmp_path / "log.jsonl"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 7').replace('"epoch": 3', '"epoch": 8'))
    before = path.read_bytes()
    with pytest.raises(tw.ThalwegError, match=r"log\.jsonl is damaged in line 2"):
        run.lines("log.jsonl")
    assert path.read_bytes() == before


def test_half_written_files_of_a_killed_process_are_swept(tmp_path):
    left = tmp_path / ".state.safetensors.abc.thalweg-part"
    left.mkdir()
    (left / ".tmp123").write_bytes(b"half")
    (tmp_path / ".mine.part").write_bytes(b"somebody else's")
    (tmp_path / ".link.thalweg-part").symlink_to(tmp_path)
    with Run(tmp_path).opened("fit", {}):
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".link.thalweg-part",
            ".lock",
            ".mine.part",
            "run.json",
        ]


def test_a_folder_inside_what_is_swept_is_left_alone(tmp_path):
    """We write none there, so somebody else did."""
    notes = tmp_path / ".state.safetensors.abc.thalweg-part" / "mine" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with Run(tmp_path).opened("fit", {}):
        assert notes.read_text() == "mine"


def test_half_written_files_of_a_killed_demo_are_swept(tmp_path):
    start_run(tmp_path, "demo", {})
    (tmp_path / ".page.html.abc.thalweg-part").mkdir()
    (tmp_path / ".page.html.abc.thalweg-part" / "page.html").write_text("half")
    (tmp_path / ".notes").write_text("mine")
    start_run(tmp_path, "demo", {}, again=True)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", ".notes"}


def test_a_finished_folder_loses_what_a_killed_run_left(tmp_path):
    """Killed after the result was written, before the state was removed; also where nothing can be written."""
    animal = ZOO["mlp"]

    def go():
        return tw.fit(animal.module(1), animal.task, animal.batches(), epochs=1, lr=0.1, run=tmp_path)

    whole = go()
    before = (tmp_path / "run.json").read_bytes()
    Run(tmp_path).save({"half": torch.zeros(1)}, {})
    (tmp_path / ".run.json.abc.thalweg-part").mkdir()
    assert torch.equal(go().vector, whole.vector)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.jsonl", "run.json", "weights.safetensors"]
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_finished_folder_is_read_from_a_read_only_disk(tmp_path, monkeypatch):
    import builtins
    import errno

    animal, real = ZOO["mlp"], open

    def read_only(path, mode="r", *rest, **settings):
        if set(mode) & set("wa+x"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, mode, *rest, **settings)

    def go():
        return tw.fit(animal.module(1), animal.task, animal.batches(), epochs=1, lr=0.1, run=tmp_path).vector

    whole = go()
    (tmp_path / ".lock").unlink()
    monkeypatch.setattr(builtins, "open", read_only)
    assert torch.equal(go(), whole)
    assert not (tmp_path / ".lock").exists()


def test_forked_workers_do_not_hold_the_lock(tmp_path):
    """A process that holds the folder is killed while a child of it lives on."""
    code = f"""import os, time
from thalweg.store.runs import Run
held = Run({str(tmp_path / "r")!r}).opened("fit", {{}})
held.__enter__()
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
os._exit(0)"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    with pytest.raises(tw.ThalwegError, match="is in use"), Run(tmp_path / "r").opened("fit", {}):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(child, 0)
    with Run(tmp_path / "r").opened("fit", {}):
        pass
    os.kill(child, signal.SIGKILL)


def test_a_line_of_a_newer_format_is_refused(tmp_path, monkeypatch):
    from thalweg.store import files

    monkeypatch.setattr(files, "FORMAT", 2)
    Run(tmp_path).append("log.jsonl", {"epoch": 1})
    monkeypatch.undo()
    with pytest.raises(tw.ThalwegError, match=r"log\.jsonl has format 2"):
        Run(tmp_path).lines("log.jsonl")


@pytest.mark.parametrize("every", [0, "0", "x", "-1m", 1.5])
def test_unusual_intervals(every, tmp_path):
    with pytest.raises(tw.ThalwegError, match="every is a number of epochs"):
        Run(tmp_path, every=every)


def test_killed_commands_resume_bit_for_bit():
    """Every command, killed at random moments and in the middle of writing; `make soak` does it a thousand times."""
    script, alone = Path(__file__).parents[1] / "kills.py", {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), "52"], env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"52 kills, 26 at random and 26 while writing, in \d+ s: all resumed, none differs", done.stdout)


def test_a_full_disk_leaves_the_previous_state(tmp_path, monkeypatch):
    """The third time the state is saved, the disk is full in the middle of the file."""
    import errno

    animal, original, saves = ZOO["conv_bn"], safetensors.torch.save_file, []

    def full(tensors, path, metadata=None):
        saves.append(1)
        if len(saves) == 3:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(tensors, path, metadata=metadata)

    def go(run):
        return tw.fit(animal.module(1), animal.task, animal.batches(), epochs=3, lr=0.1, run=run)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(tw.ThalwegError, match=r"state\.safetensors could not be written \(No space left"):
        go(Run(tmp_path / "r", every="0m"))
    monkeypatch.undo()
    assert Run(tmp_path / "r").load()[1]["done"] == 2
    assert not [path for path in (tmp_path / "r").iterdir() if path.name.endswith("part")]
    assert same(bits_of(go(tmp_path / "r")), bits_of(go(None)))


def test_a_folder_that_cannot_be_written_to(tmp_path):
    from typer.testing import CliRunner

    from thalweg.cli import app

    (tmp_path / "file").write_text("in the way")
    flags = ["--task", "thalweg.demo:digits", "--epochs", "1", "--out", str(tmp_path / "file" / "run")]
    result = CliRunner().invoke(app, ["fit", *flags])
    assert result.exit_code == 2
    assert "Not a directory" in result.output


def test_a_second_sigterm_within_a_second_is_the_first_again(monkeypatch):
    """As timeout(1) sends it, to the process and to its group."""
    from thalweg.store import interrupts

    monkeypatch.setattr(interrupts, "SAME_SIGNAL", 3600.0)
    with interrupts.Interrupts() as found:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert found.asked == signal.SIGTERM
        monkeypatch.setattr(interrupts, "SAME_SIGNAL", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("call", ["fit", "connect", "walk", "scan", "compare"])
def test_ctrl_c_in_python_says_to_make_the_same_call_again(call, tmp_path):
    """And not to give an option of the command line; the same call then resumes."""
    animal, stopping, usual = ZOO["mlp"], [True], signal.getsignal(signal.SIGINT)
    (a, b), batches = animal.ends(), animal.batches()

    def loss(outputs, targets):
        if stopping and signal.getsignal(signal.SIGINT) is not usual:  # in a step or at a point
            stopping.clear()
            signal.raise_signal(signal.SIGINT)
        return animal.task.loss(outputs, targets)

    common = {"task": tw.Task(loss), "run": tmp_path / "r"}
    pair = {"budget": 2, "seeds": [0], "multiples": [1]}
    calls = {
        "fit": lambda: tw.fit(animal.module(1), batches=batches, epochs=2, lr=0.1, **common),
        "connect": lambda: tw.connect(animal.module(1), tw.Bezier(a, b), batches=batches, epochs=2, lr=0.1, **common),
        "walk": lambda: tw.walk(animal.module(1), batches=batches, method=FGE, epochs=2, **common),
        "scan": lambda: tw.scan(animal.module(1), tw.Segment(a, b), data={"x": batches}, points=3, **common),
        "compare": lambda: tw.compare(
            animal.module, train=batches, test=batches, methods=[tw.Independent], **common, **pair
        ),
    }
    with pytest.raises(Stopped, match=r"^stopped by SIGINT after .*: make the same call again to resume$") as caught:
        calls[call]()
    assert "--resume" not in str(caught.value)
    calls[call]()


def test_a_second_ctrl_c_stops_at_once():
    from thalweg.store.interrupts import Interrupts

    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
