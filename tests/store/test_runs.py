"""Run folders: who may write there, and what a killed process leaves."""

import errno
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.store.runs import Run, start_run


def test_run_leaves_a_foreign_folder_alone(tmp_path):
    case = ZOO["mlp"]
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="is never overwritten"):
        tw.fit(case.module(1), case.task, case.batches(), epochs=1, lr=0.1, run=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_run_accepts_a_folder_with_a_hidden_file(tmp_path):
    (tmp_path / ".DS_Store").write_text("left by a system")
    start_run(tmp_path, "demo", {})
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="is never overwritten"):
        start_run(tmp_path, "demo", {})


def test_run_lock_excludes_a_second_run_but_not_after_a_kill(tmp_path):
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
def test_run_append_after_a_line_cut_short(cut, tmp_path):
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


def test_run_lines_refuses_more_than_a_last_line_cut_short(tmp_path):
    run = Run(tmp_path)
    for epoch in (1, 2, 3):
        run.append("log.jsonl", {"epoch": epoch})
    path = tmp_path / "log.jsonl"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 7').replace('"epoch": 3', '"epoch": 8'))
    before = path.read_bytes()
    with pytest.raises(tw.ThalwegError, match=r"log\.jsonl is damaged in line 2"):
        run.lines("log.jsonl")
    assert path.read_bytes() == before


def test_resume_removes_half_written_files(tmp_path):
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


def test_resume_leaves_a_folder_named_like_a_half_written_file(tmp_path):
    """We write none there, so somebody else did."""
    notes = tmp_path / ".state.safetensors.abc.thalweg-part" / "mine" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with Run(tmp_path).opened("fit", {}):
        assert notes.read_text() == "mine"


def test_finished_run_folder_loses_half_written_files(tmp_path):
    """Killed after the result was written, before the state was removed; also where nothing can be written."""
    case = ZOO["mlp"]

    def go():
        return tw.fit(case.module(1), case.task, case.batches(), epochs=1, lr=0.1, run=tmp_path)

    whole = go()
    before = (tmp_path / "run.json").read_bytes()
    Run(tmp_path).save({"half": torch.zeros(1)}, {})
    (tmp_path / ".run.json.abc.thalweg-part").mkdir()
    assert torch.equal(go().vector, whole.vector)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.jsonl", "run.json", "weights.safetensors"]
    assert (tmp_path / "run.json").read_bytes() == before


def test_finished_run_folder_is_read_from_a_read_only_disk(tmp_path, monkeypatch):
    import builtins
    import errno

    case, real = ZOO["mlp"], open

    def read_only(path, mode="r", *rest, **settings):
        if set(mode) & set("wa+x"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, mode, *rest, **settings)

    def go():
        return tw.fit(case.module(1), case.task, case.batches(), epochs=1, lr=0.1, run=tmp_path).vector

    whole = go()
    (tmp_path / ".lock").unlink()
    monkeypatch.setattr(builtins, "open", read_only)
    assert torch.equal(go(), whole)
    assert not (tmp_path / ".lock").exists()


def test_run_lock_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """As on a full disk, or on one without locks."""
    from thalweg.store import runs

    full = OSError(errno.ENOSPC, "No space left on device")
    for function, error in (("getpid", full), ("flock", OSError(errno.ENOLCK, "No locks available"))):
        with monkeypatch.context() as patched:
            patched.setattr({"getpid": runs.os, "flock": runs.fcntl}[function], function, Mock(side_effect=error))
            said = rf"\.lock could not be written \({error.strerror}\), and"
            with pytest.raises(tw.ThalwegError, match=said), Run(tmp_path).opened("fit", {}):
                pass


def test_run_lock_of_another_program_may_be_binary(tmp_path):
    (tmp_path / ".lock").write_bytes(b"\xff\xfe\0")
    with pytest.raises(tw.ThalwegError, match="belongs to another program"), Run(tmp_path).opened("fit", {}):
        pass
    assert (tmp_path / ".lock").read_bytes() == b"\xff\xfe\0"


def test_run_lock_cut_short_by_a_full_disk_is_ours(tmp_path):
    (tmp_path / ".lock").write_bytes(b"proc")
    with Run(tmp_path).opened("fit", {}):
        assert f"process {os.getpid()} on " in (tmp_path / ".lock").read_text()


def test_run_record_of_a_repository_with_names_in_another_encoding(tmp_path, monkeypatch):
    from thalweg.store import runs

    monkeypatch.chdir(tmp_path)
    settings = ["-c", "user.name=a", "-c", "user.email=b", "-c", "core.quotepath=false"]
    for words in (["init", "-q"], ["config", "core.quotepath", "false"], ["commit", "-qm", "c", "--allow-empty"]):
        subprocess.run(["git", *settings, *words], check=True)
    assert runs._code()["changed"] is False
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    assert runs._code()["changed"] is True


def test_run_lock_is_not_held_by_forked_workers(tmp_path):
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


def test_resume_refuses_a_line_of_a_newer_format(tmp_path, monkeypatch):
    from thalweg.store import files

    monkeypatch.setattr(files, "FORMAT", 2)
    Run(tmp_path).append("log.jsonl", {"epoch": 1})
    monkeypatch.undo()
    with pytest.raises(tw.ThalwegError, match=r"log\.jsonl has format 2"):
        Run(tmp_path).lines("log.jsonl")


@pytest.mark.parametrize("every", [0, "0", "x", "-1m", 1.5])
def test_run_refuses_bad_checkpoint_intervals(every, tmp_path):
    with pytest.raises(tw.ThalwegError, match="every= is a number of epochs"):
        Run(tmp_path, every=every)


def test_run_refuses_a_folder_that_cannot_be_written_to(tmp_path):
    from typer.testing import CliRunner

    from thalweg.cli import app

    (tmp_path / "file").write_text("in the way")
    flags = ["--task", "thalweg.demo:digits", "--epochs", "1", "--out", str(tmp_path / "file" / "run")]
    result = CliRunner().invoke(app, ["fit", *flags])
    assert result.exit_code == 2
    assert "Not a directory" in result.output
