"""Run folders that a stranger may have crafted, through the command line: nothing outside of them is read, written or
deleted.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from run_folders import edit_json, tree
from torch import nn
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.store import files

MEMBER = "member-0123456789abcdef.safetensors"


def task(seed):
    """With a frozen layer, which members share as their base."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    torch.manual_seed(seed)
    nn.init.normal_(net[1].weight)
    x = torch.linspace(-1, 1, 24).reshape(8, 3)
    return {"model": net, "task": tw.classification(), "train": [(x, torch.arange(8) % 2)] * 2}


COMMANDS = {
    "walk": ["walk", "--epochs", "2", "--cycle", "1"],
    "ensemble": ["ensemble", "theirs"],
    "compare": ["compare", "--methods", "fge", "--budget", "8", "--seeds", "1", "--cycle", "1"],
}
MEMBERS = {"walk": "members", "ensemble": "members", "compare": "seed-0/method-1/members"}
ENDED = {
    "walk": ["trace-1.json"],
    "ensemble": ["report.json"],
    "compare": ["comparison.json", "seed-0/method-1/trace-2.json"],
}


def invoke(command, *more):
    given = [*COMMANDS[command], "--task", f"{__file__}:task", "--out", "out", "--quiet", *more]
    return CliRunner().invoke(app, given)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def here(tmp_path, monkeypatch, kept):
    """Runs that were killed after they wrote their members, before they said that they had finished; and beside them a
    victim's files, of a kind that this library writes and may delete.
    """
    if not any(kept.iterdir()):
        monkeypatch.chdir(kept)
        make(kept)
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(folder):
    weights = [tw.Weights.of(task(seed)["model"]) for seed in range(3)]
    tw.Ensemble(task(0)["model"], weights[:2]).save(folder / "theirs")
    tw.Ensemble(task(0)["model"], weights[1:]).save(folder / "victims")
    weights[2].save(folder / "victim.safetensors")
    weights[2].save(folder / MEMBER)
    (folder / "notes.txt").write_text("mine")
    for command in COMMANDS:
        result = invoke(command)
        assert result.exit_code == 0, (result.output, result.exception)
        for name in ENDED[command]:
            (folder / "out" / name).unlink()
        (folder / "out").rename(folder / command)


def begun(command, here):
    (here / command).rename(here / "out")
    return here / "out" / MEMBERS[command]


def outside(here):
    return {path: content for path, content in tree(here).items() if not path.is_relative_to(here / "out")}


def refused(command, here, said, *more):
    before = outside(here)
    result = invoke(command, "--resume", *more)
    assert result.exit_code == 2, (result.output, result.exception)
    assert said in result.output
    assert result.output.count("\n") == 1
    assert outside(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_command_killed_after_its_members(command, here):
    """Or the tests below would refuse for another reason."""
    begun(command, here)
    before = outside(here)
    result = invoke(command, "--resume")
    assert result.exit_code == 0, (result.output, result.exception)
    assert outside(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_command_killed_while_it_writes_its_members(command, here):
    """With one of them written, and another begun."""
    members = begun(command, here)
    whole = {path.name: path.read_bytes() for path in members.iterdir()}
    (members / "ensemble.json").unlink()
    for path in sorted(members.glob("member-*"))[1:]:
        path.unlink()
    (members / f".{MEMBER}.abc.thalweg-part").mkdir()
    (members / f".{MEMBER}.abc.thalweg-part" / MEMBER).write_bytes(b"half")
    result = invoke(command, "--resume")
    assert result.exit_code == 0, (result.output, result.exception)
    assert {path.name: path.read_bytes() for path in members.iterdir()} == whole


@pytest.mark.parametrize("key", ["file", "base"])
@pytest.mark.parametrize("way", ["above", "absolute"])
@pytest.mark.parametrize("command", COMMANDS)
def test_resume_refuses_manifest_that_names_files_elsewhere(command, way, key, here):
    members = begun(command, here)
    name = os.path.relpath(here / MEMBER, members) if way == "above" else str(here / MEMBER)
    edit_json(members / "ensemble.json", "ensemble", lambda manifest: manifest["members"][0].update({key: name}))
    refused(command, here, "ensemble.json may name only files next to it")


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_refuses_member_that_is_a_link(command, here):
    members = begun(command, here)
    (members / MEMBER).symlink_to(here / "victim.safetensors")
    edit_json(members / "ensemble.json", "ensemble", lambda manifest: manifest["members"][0].update(file=MEMBER))
    refused(command, here, f"{MEMBER} is a link")


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_leaves_a_directory_in_place_of_a_stale_member(command, here):
    members = begun(command, here)
    (members / MEMBER).mkdir()
    (members / MEMBER / "notes.txt").write_text("mine")
    edit_json(
        members / "ensemble.json",
        "ensemble",
        lambda manifest: manifest["members"].append({"file": MEMBER, "sha256": ""}),
    )
    before = outside(here)
    result = invoke(command, "--resume")
    assert result.exit_code == 0, (result.output, result.exception)
    assert (members / MEMBER / "notes.txt").read_text() == "mine"
    assert outside(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_refuses_members_folder_that_is_a_link(command, here):
    members = begun(command, here)
    members.rename(here / "out" / "moved")
    members.symlink_to(here / "victims")
    refused(command, here, "members is a link")


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_does_not_write_through_a_lock_that_is_a_link(command, here):
    begun(command, here)
    (here / "out" / ".lock").unlink()
    (here / "out" / ".lock").symlink_to(here / "notes.txt")
    refused(command, here, ".lock is a link")


@pytest.mark.parametrize(("command", "part"), [("walk", "start-1"), ("compare", "seed-0")])
def test_resume_refuses_part_of_a_run_that_is_a_link(command, part, here):
    begun(command, here)
    (here / "out" / part).rename(here / "other")
    (here / "out" / part).symlink_to(here / "other")
    refused(command, here, f"{part} is a link")


def test_resume_refuses_collected_network_that_is_a_link(here):
    begun("walk", here)
    first = sorted((here / "out" / "start-1").glob("collected-*"))[0]
    first.unlink()
    first.symlink_to(here / "victim.safetensors")
    refused("walk", here, f"{first.name} is a link")


def test_resume_refuses_trace_that_names_networks_elsewhere(here):
    members = begun("walk", here)
    trace = members.parent / "start-1" / "trace.json"
    edit_json(trace, "trace", lambda content: content.update(collected=["1/../../../victim"]))
    refused("walk", here, "trace.json is not a file that thalweg wrote whole")


def test_scan_does_not_append_to_a_link(here):
    given = ["scan", "victim.safetensors", f"{here}/{MEMBER}", "--points", "3", "--task", f"{__file__}:task", "--quiet"]
    given += ["--out", "out"]
    assert CliRunner().invoke(app, given).exit_code == 0
    (here / "out" / "scan.json").unlink()
    (here / "out" / "points.jsonl").unlink()
    (here / "notes.txt").write_text("")
    (here / "out" / "points.jsonl").symlink_to(here / "notes.txt")
    result = CliRunner().invoke(app, [*given, "--resume"])
    assert result.exit_code == 2, (result.output, result.exception)
    assert "points.jsonl is a link" in result.output
    assert (here / "notes.txt").read_text() == ""


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("../victim.safetensors", "may name only files next to it"),
        ("absolute", "may name only files next to it"),
        ("link", f"{MEMBER} is a link"),
    ],
)
def test_ensemble_reads_no_member_from_elsewhere(way, said, here):
    manifest = here / "theirs" / "ensemble.json"
    if way == "link":
        (here / "theirs" / MEMBER).symlink_to(here / "victim.safetensors")
    name = {"absolute": str(here / MEMBER), "link": MEMBER}.get(way, way)
    sha = tw.Weights.load(here / "victim.safetensors").digest()
    edit_json(manifest, "ensemble", lambda content: content["members"][0].update(file=name, sha256=sha))
    before = tree(here)
    result = invoke("ensemble")
    assert result.exit_code == 2
    assert said in result.output
    assert tree(here) == before


def test_ensemble_reads_no_base_from_elsewhere(here):
    for path in Path("theirs").glob("member-*"):
        tensors, about = files.load_tensors(path, "weights")
        files.save_tensors(path, "weights", tensors, {**about, "base": "../victims/" + about["base"]})
    before = tree(here)
    result = invoke("ensemble")
    assert result.exit_code == 2
    assert "may name only files next to it" in result.output
    assert tree(here) == before


def test_ensemble_reads_no_members_through_a_linked_folder(here):
    (here / "run").mkdir()
    (here / "run" / "members").symlink_to(here / "victims")
    given = ["ensemble", "run", "--task", f"{__file__}:task", "--out", "out", "--quiet"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2, (result.output, result.exception)
    assert "run/members is a link" in result.output
