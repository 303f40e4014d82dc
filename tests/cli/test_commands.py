"""The command line as a user meets it, with a task of the user's own in the current folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from run_folders import RECORD
from torch import nn
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app, options, scan
from thalweg.loading import load_inputs
from thalweg.store.files import save_json

TASK = """
import torch
from torch import nn
import thalweg as tw

def points(count, seed, norm=True):
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    y = (x.norm(dim=1) > 1.1).long()
    batches = [(x[i:i + 40], y[i:i + 40]) for i in range(0, 120, 40)]
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(count)] if norm else []
    model = nn.Sequential(nn.Linear(2, count), *middle, nn.ReLU(), nn.Linear(count, 2))
    return dict(model=model, task=tw.classification(), train=batches, bn_batches=batches, data={"train": batches})

def circle(seed):
    return points(16, seed)

def wider(seed):
    return points(17, seed)

class Branching(nn.Sequential):
    def forward(self, x):
        return super().forward(x if bool(x.sum() > -1e9) else -x)

def branching(seed):
    return {**circle(seed), "model": Branching(*circle(seed)["model"])}

def by_hand(seed):
    hidden = {"0.weight": 0, "0.bias": 0, **dict.fromkeys(["1.weight", "1.bias", "1.running_mean", "1.running_var"], 0)}
    return {**branching(seed), "groups": {"hidden": {**hidden, "3.weight": 1}}}

def wrong_groups(seed):
    return {**branching(seed), "groups": {"hidden": {"0.weight": 0, "0.bias": 0}}}

def no_refresh(seed):
    return {key: value for key, value in circle(seed).items() if key != "bn_batches"}

def empty(seed):
    return {**circle(seed), "train": []}

def not_a_dict(seed):
    return circle(seed)["model"]

def no_model(seed):
    return {**circle(seed), "model": 3}

def model_class(seed):
    return {**circle(seed), "model": nn.Linear}

def untrained(seed):
    return {key: circle(seed)[key] for key in ("model", "task")}

def extra(seed):
    return {**circle(seed), "surprise": 3}

def misspelt(seed):
    return {**no_refresh(seed), "bn_batch": circle(seed)["bn_batches"]}

def trian(seed):
    return {**untrained(seed), "trian": circle(seed)["train"]}

def seedless():
    return circle(0)

def raises(seed):
    return {}["missing"]

def argument(seed):
    raise ValueError("leave out lr=0.1")

def bad_json(seed):
    import json
    return json.loads("")

def scalar_loss(seed):
    return {**circle(seed), "task": tw.Task(lambda outputs, targets: outputs.mean())}

def bad_labels(seed):
    return {**circle(seed), "train": [(torch.randn(4, 2), torch.tensor([0, 1, 2, 7]))]}

def other_names(seed):
    return {**circle(seed), "train": [dict(image=torch.randn(4, 2), labels=torch.tensor([0, 1, 0, 1]))]}

def doubled(seed):
    return {**circle(seed), "model": circle(seed)["model"].double()}

def float_labels(seed):
    return {**circle(seed), "task": tw.Task(own_loss)}

def own_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets.short(), reduction="none")

def explodes(seed):
    return {**circle(seed), "task": tw.Task(lambda outputs, targets: outputs.sum(1) * float("nan"))}

def halves(seed):
    made = circle(seed)
    batches = made["data"]["train"]
    return {**made, "data": {"test": batches[::2], "validation": batches[1::2]}}

def dead(seed):
    made = points(16, seed, norm=False)
    nn.init.constant_(made["model"][0].bias, -1e3)
    return made

def stopping(seed):
    import os, signal
    def loss(outputs, targets):
        if "STOP" in os.environ:
            with open("steps", "a") as file:
                file.write(".")
            if os.path.getsize("steps") == int(os.environ["STOP"]):
                os.kill(os.getpid(), signal.SIGTERM)
        return tw.classification().loss(outputs, targets)
    return {**circle(seed), "task": tw.Task(loss, tw.classification().predict)}

def slow(seed):
    import time
    def loss(outputs, targets):
        open("training", "w").close()
        time.sleep(0.05)
        return tw.classification().loss(outputs, targets)
    return {**circle(seed), "task": tw.Task(loss)}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a task and what the commands make of it: two ends, another network, and a curve."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "mine.py").write_text(TASK)
    before = os.getcwd()
    os.chdir(folder)
    try:
        for seed, name in enumerate(("a", "b", "c")):
            ok("fit", "--task", "mine:circle", "--out", name, "--seed", str(seed), "--epochs", "20", "--lr", "0.1")
        ok("fit", "--task", "mine:wider", "--out", "wide", "--epochs", "2")
        ok("connect", "a", "b", "--task", "mine:circle", "--out", "curve", "--epochs", "20", "--lr", "0.1")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def invoke(*args):
    return CliRunner().invoke(app, list(args))


def ok(*args):
    result = invoke(*args)
    assert result.exit_code == 0, (args, result.output, result.exception)
    return result.output


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_fit_and_connect_commands_write_what_python_reads(here):
    curve = tw.Curve.load("curve/curve.safetensors")
    assert isinstance(curve, tw.Bezier)
    assert torch.equal(curve.start.vector, tw.Weights.load("a/weights.safetensors").vector)
    assert tw.store.files.load_json(here / "a" / "run.json", "run")["settings"]["epochs"] == 20


def test_connect_command_with_stream_finds_the_same_curve(here):
    ok("connect", "a", "b", "--task", "mine:circle", "--out", "streamed", "--epochs", "20", "--lr", "0.1", "--stream")
    usual, streamed = (tw.Curve.load(f"{name}/curve.safetensors").bends[0].vector for name in ("curve", "streamed"))
    assert torch.allclose(usual, streamed, rtol=1e-3, atol=1e-4)


def test_fit_command_with_runs_trains_the_networks_of_single_runs(here):
    output = ok("fit", "--task", "mine:circle", "--out", "both", "--runs", "2", "--epochs", "20", "--lr", "0.1")
    assert "next: thalweg connect both/seed-0 both/seed-1 --task mine:circle" in output
    for number, name in enumerate(("a", "b")):
        alone, found = (tw.Weights.load(f"{path}/weights.safetensors").vector for path in (name, f"both/seed-{number}"))
        assert torch.equal(alone, found)


def test_scan_command_prints_the_summary_and_says_what_is_next(here):
    output = ok("scan", "curve", "--task", "mine:circle", "--out", "scan", "--points", "5", "--weight-decay", "0.01")
    assert "Bezier, length ratio" in output
    assert "Segment, length ratio 1.00" in output
    assert output.count("train loss: ") == 1  # what the ends are with the statistics they came with
    assert "next: thalweg plane curve --task mine:circle" in output
    for name in ("scan.json", "scan.csv", "profile.png", "profile.pdf"):
        assert (here / "scan" / name).stat().st_size > 0
        assert f"scan/{name}" in output
    scan, line = tw.Scan.load("scan/scan.json"), tw.Scan.load("scan/line/scan.json")
    assert (scan.name, line.name) == ("Bezier", "Segment")
    ends = tw.Segment(*(tw.Weights.load(f"{name}/weights.safetensors") for name in "ab"))
    inputs = tw.loading.load_inputs("mine:circle", 0, None)
    alone = tw.scan(
        inputs.model, ends, inputs.task, inputs.data, points=5, weight_decay=0.01, bn_batches=inputs.bn_batches
    )
    assert (alone.values["train"]["loss"] == line.values["train"]["loss"]).all()
    assert len((here / "scan" / "scan.csv").read_text().splitlines()) == 6
    assert scan.weight_decay == 0.01


def test_scan_command_without_the_line_and_the_line_later(here):
    scan = ("scan", "curve", "--task", "mine:circle", "--out", "lineless", "--points", "3")
    assert "Segment" not in ok(*scan, "--no-line")
    assert not (here / "lineless" / "line").exists()
    assert "Segment" in ok(*scan, "--resume")
    assert tw.Scan.load("lineless/line/scan.json").length_ratio == 1.0


def test_scan_command_killed_in_the_line_resumes_both(here):
    scan = ("scan", "curve", "--task", "mine:circle", "--points", "5", "--out")
    ok(*scan, "undisturbed")
    ok(*scan, "killed")
    lines = (here / "killed" / "line" / "points.jsonl").read_text().splitlines(keepends=True)
    (here / "killed" / "line" / "points.jsonl").write_text("".join(lines[:2]))
    for name in ("scan.json", "line/scan.json", "scan.csv", "line/scan.csv"):
        (here / "killed" / name).unlink()
    assert invoke(*scan, "killed").exit_code == 2
    ok(*scan, "killed", "--resume")
    for name in ("scan.json", "line/scan.json", "scan.csv", "line/scan.csv", "line/points.jsonl"):
        assert (here / "killed" / name).read_bytes() == (here / "undisturbed" / name).read_bytes()


def test_scan_command_curve_and_line_are_one_group_on_the_page(here):
    ok("scan", "curve", "--task", "mine:circle", "--out", "pair/scan", "--points", "3")
    ok("plane", "curve", "--task", "mine:circle", "--out", "pair/plane", "--grid", "3")
    for number, folders in enumerate((["pair"], ["pair/scan"], ["pair/scan", "pair/plane"])):
        ok("page", *folders, "-o", f"pair-{number}.html")
        text = (here / f"pair-{number}.html").read_text()
        shown = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
        assert [(curve["group"], curve["label"]) for curve in shown["curves"]] == [("", "Segment"), ("", "Bezier")]
        assert len(shown["runs"]) == len(folders) + (number == 0)
        assert shown["notes"] == []


def test_align_command_writes_the_same_function_and_its_order(here):
    output = ok("align", "a", "b", "--task", "mine:circle", "--out", "aligned")
    assert "0.weight[0]     16  0.weight[0], 0.bias[0], 1.weight[0] and 4 more" in output
    assert re.search(r"distance [\d.]+ before, [\d.]+ after; groups: 1, passes: \d+, ", output)
    assert "next: thalweg connect a aligned --task mine:circle --lr 0.1 --out curve" in output
    a, b, aligned = (tw.Weights.load(name) for name in ("a", "b", "aligned"))
    assert a.distance(aligned) < a.distance(b)
    assert tw.Permutation.load("aligned").inverse().apply(aligned).digest() == b.digest()
    nets = [tw.loading.load_inputs("mine:circle", 0, None).model.eval() for _ in range(2)]
    for net, weights in zip(nets, (b, aligned), strict=True):
        weights.load_into(net)
    torch.testing.assert_close(*(net(torch.ones(3, 2)) for net in nets))
    assert invoke("align", "a", "b", "--task", "mine:circle", "--out", "aligned").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        "fit", "fit --runs 2", "align a b", "connect a b --align", "scan curve", "plane a", "barriers a b --align",
        "soup a b", "walk", "ensemble a b", "compare", "bench",
    ],
)  # fmt: skip
def test_commands_refuse_an_existing_folder_before_any_work(words, here):
    """The factory would fail if it were called."""
    (here / "there" / "seed-1").mkdir(parents=True, exist_ok=True)
    for folder in (here / "there", here / "there" / "seed-1"):
        (folder / "thesis.tex").write_text("mine")
    refused = invoke(*words.split(), "--task", "mine:raises", "--out", "there")
    assert refused.exit_code == 2
    assert re.search(r"there(/seed-1)? already exists and is never overwritten: .* \(?--out", refused.output)


@pytest.mark.parametrize("resume", [(), ("--resume",)])
@pytest.mark.parametrize(
    "words",
    [
        "fit", "fit --runs 2", "connect a b", "scan curve", "plane a", "barriers a b", "soup a b", "walk",
        "ensemble a b", "compare",
    ],
)  # fmt: skip
def test_commands_do_not_advise_to_resume_the_run_of_another_command(words, resume, here):
    """Nor of another that makes the same call, as scan and plane; the factory would fail if it were called."""
    if not (here / "of-scan").exists():
        ok("scan", "curve", "--no-line", "--points", "3", "--task", "mine:circle", "--out", "of-scan")
    folder = "a" if words == "scan curve" else "of-scan"
    refused = invoke(*words.split(), "--task", "mine:raises", "--out", folder, *resume)
    assert refused.exit_code == 2
    assert re.search(rf"{folder} holds a run.*: choose another folder \(--out\)$", refused.output)
    assert ("another command or call" in refused.output) == (words == "plane a")


def test_command_line_does_not_resume_the_run_of_a_script(here):
    made = tw.loading.load_inputs("mine:circle", 0, None)
    shutil.rmtree("script", ignore_errors=True)
    tw.fit(made.model, made.task, made.train, epochs=1, lr=0.1, run="script")
    refused = invoke("fit", "--task", "mine:circle", "--out", "script")
    assert "script holds a run of fit by another command or call: choose another folder (--out)" in refused.output


def test_script_does_not_resume_the_run_of_a_command(here):
    made = tw.loading.load_inputs("mine:circle", 0, None)
    ok("fit", "--task", "mine:circle", "--epochs", "1", "--lr", "0.1", "--out", "command")
    with pytest.raises(
        tw.ThalwegError, match=r"^command holds a run of fit by another command or call: choose another folder"
    ):
        tw.fit(made.model, made.task, made.train, epochs=1, lr=0.1, run="command")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--schedule cosine", "--lr 0.2 --schedule cosine"),
        ("--schedule constant", "--lr 0.2 --schedule constant"),
        ("--optimizer adamw", "--lr 0.2 --optimizer adamw --weight-decay 0.01"),
    ],
)
def test_next_command_after_align_trains_as_the_networks_were_trained(words, expected, here):
    shutil.rmtree("both", ignore_errors=True)
    decay = ["--weight-decay", "0.01"] if "adamw" in words else []
    ok("fit", "--runs", "2", "--task", "mine:circle", "--lr", "0.2", *words.split(), *decay, "--out", "both")
    output = ok("align", "both/seed-0", "both/seed-1", "--task", "mine:circle", "--out", "renumbered")
    assert f"next: thalweg connect both/seed-0 renumbered --task mine:circle {expected} --out " in output
    shutil.rmtree("renumbered")


def test_resume_names_the_option_that_changed_and_not_what_follows_from_it(here):
    ok("fit", "--task", "mine:circle", "--lr", "0.2", "--out", "rates")
    refused = invoke("fit", "--task", "mine:circle", "--lr", "0.1", "--out", "rates", "--resume")
    assert "rates was made by a different call: lr was 0.2 and is 0.1; use another" in refused.output


def test_page_command_refuses_an_existing_file_before_it_reads_runs(here):
    (here / "mine.html").write_text("mine")
    refused = invoke("page", "nowhere", "--out", "mine.html")
    assert refused.exit_code == 2
    assert "mine.html already exists: choose another name" in refused.output


def test_align_command_takes_groups_of_the_task(here):
    refused = invoke("align", "a", "b", "--task", "mine:branching", "--out", "refused")
    assert "give the factory's `groups` by hand, such as {'hidden'" in refused.output
    output = ok("align", "a", "b", "--task", "mine:by_hand", "--out", "hand")
    assert "hidden     16  0.weight[0], 0.bias[0], 1.weight[0] and 4 more" in output
    ok("align", "a", "b", "--task", "mine:circle", "--out", "hand-traced")
    traced = tw.Permutation.load("hand-traced").orders["0.weight[0]"]
    assert torch.equal(tw.Permutation.load("hand").orders["hidden"], traced)
    ok("connect", "a", "b", "--align", "--task", "mine:by_hand", "--epochs", "1", "--out", "hand-curve")
    assert torch.equal(tw.Permutation.load("hand-curve").orders["hidden"], traced)
    assert "aligned" in ok(
        "barriers", "a", "b", "--align", "--task", "mine:by_hand", "--points", "3", "--out", "hand-both"
    )


def test_connect_and_barriers_commands_align_by_what_is_asked(here):
    ok("align", "a", "b", "--by", "activations", "--task", "mine:circle", "--out", "matched")
    by = ("--align", "--by", "activations")
    connect = ("connect", "a", "b", "--align", "--task", "mine:circle", "--epochs", "1", "--out", "active")
    ok(*connect, "--by", "activations")
    aligned = tw.Weights.load("matched")
    assert torch.equal(tw.Curve.load("active").end.vector, aligned.vector)
    assert not torch.equal(tw.align(*loaded("a", "b")).vector, aligned.vector)
    changed = invoke(*connect, "--resume")
    assert changed.exit_code == 2
    assert "by was 'activations' and is 'weights'" in changed.output
    ok("barriers", "a", "b", *by, "--task", "mine:circle", "--points", "3", "--out", "by-activations")
    ok("barriers", "a", "matched", "--task", "mine:circle", "--points", "3", "--out", "to-matched")
    found, expected = tw.Barriers.load("by-activations"), tw.Barriers.load("to-matched")
    assert found.between(aligned=True)[0, 1] == pytest.approx(expected.matrix[0, 1], rel=1e-4)
    assert expected.matrix[0, 1] > 1e-3


def loaded(*names):
    """The arguments of `align` for two networks."""
    made = tw.loading.load_inputs("mine:circle", 0, None)
    return made.model, *map(tw.Weights.load, names), made.task, made.train


def test_connect_command_with_points_scans_and_resumes(here, monkeypatch):
    made, make = [], tw.loading.load_inputs
    monkeypatch.setattr(tw.loading, "load_inputs", lambda *given: made.append(given) or make(*given))
    command = ("connect", "a", "b", "--align", "--task", "mine:circle", "--epochs", "2", "--out", "whole")
    output = ok(*command, "--points", "5")
    assert "curve.safetensors" in output
    assert len(made) == 1  # data may take long to read
    assert "whole/scan/profile.png" in output
    assert "next: thalweg plane whole --task mine:circle" in output
    whole = tw.Scan.load("whole/scan")
    ok("connect", *command[1:-1], "alone")
    ok("scan", "alone", "--task", "mine:circle", "--points", "5", "--out", "alone-scan")
    alone = tw.Scan.load("alone-scan")
    assert (whole.name, whole.t.tolist()) == (alone.name, alone.t.tolist())
    assert whole.values["train"]["loss"].tolist() == alone.values["train"]["loss"].tolist()
    assert tw.Scan.load("whole/scan/line").t.tolist() == [0, 0.25, 0.5, 0.75, 1]  # fewer than the curve only above 9
    shutil.rmtree(here / "whole" / "scan")  # as if killed between the two
    ok(*command, "--points", "5", "--resume")
    assert tw.Scan.load("whole/scan").values["train"]["loss"].tolist() == alone.values["train"]["loss"].tolist()


def test_scan_command_of_an_aligned_curve_has_both_lines(here):
    output = ok("connect", "a", "b", "--align", "--task", "mine:circle", "--epochs", "2", "--out", "shorter")
    assert "aligned: distance" in output
    curve, before = tw.Curve.load("shorter"), tw.Weights.load("b")
    assert curve.start.distance(curve.end) < curve.start.distance(before)
    output = ok("scan", "shorter", "--task", "mine:circle", "--points", "3", "--out", "three")
    assert all(f"{name}, length ratio" in output for name in ("Segment", "aligned Segment", "aligned Bezier"))
    scans = [tw.Scan.load(f"three{folder}") for folder in ("", "/line", "/unaligned")]
    assert [scan.name for scan in scans] == ["aligned Bezier", "aligned Segment", "Segment"]
    ok("scan", "a", "b", "--task", "mine:circle", "--points", "3", "--out", "as-it-was")
    assert scans[2].values["train"]["loss"].tolist() == tw.Scan.load("as-it-was").values["train"]["loss"].tolist()
    ok("page", "three", "-o", "three.html")
    assert '"aligned Segment"' in (here / "three.html").read_text()
    ok("scan", "shorter", "--task", "mine:circle", "--points", "3", "--out", "three", "--resume")
    assert tw.Scan.load("three").name == "aligned Bezier"
    ok("connect", "a", "b", "--task", "mine:circle", "--epochs", "2", "--out", "plain")
    for order in (("plain", "shorter"), ("shorter", "plain")):
        ok("scan", *order, "--task", "mine:circle", "--points", "3", "--out", f"four-{order[0]}")
        scans = [tw.Scan.load(f"four-{order[0]}{folder}") for folder in ("", "/line", "/unaligned", "/other")]
        assert [scan.name for scan in scans] == ["aligned Bezier", "aligned Segment", "Segment", "Bezier"]
        assert scans[0].values["train"]["loss"].tolist() == tw.Scan.load("three").values["train"]["loss"].tolist()


def names_in(folder, *names):
    return [tw.Scan.load(f"{folder}{name}").name for name in names]


def test_scan_command_of_two_curves_of_one_name_draws_both(here, monkeypatch):
    drawn = []
    profile = tw.figures.profile
    monkeypatch.setattr(tw.figures, "profile", lambda scans, *more: drawn.append([*scans]) or profile(scans, *more))
    for machine in ("here", "there"):
        ok("connect", "a", "b", "--task", "mine:circle", "--epochs", "1", "--out", f"{machine}/curve")
    paths = "here/curve/curve.safetensors", "there/curve/curve.safetensors"
    expected = [f"Bezier, {path}" for path in paths]
    for run in ((), ("--resume",)):
        output = ok("scan", *paths, "--task", "mine:circle", "--points", "3", "--out", "named", *run)
        assert all(f"{name}, length ratio" in output for name in (*expected, "Segment"))
        assert names_in("named", "", "/other", "/line") == [*expected, "Segment"]
    assert all(sorted(names) == sorted([*expected, "Segment"]) for names in drawn)


def test_scan_command_of_curves_between_other_networks_says_whose_lines_are_measured(here):
    ok("fit", "--task", "mine:circle", "--epochs", "1", "--seed", "5", "--out", "third")
    for end in ("b", "third"):
        ok("connect", "a", end, "--align", "--task", "mine:circle", "--epochs", "1", "--out", f"to-{end}")
    ok("scan", "to-b", "to-third", "--task", "mine:circle", "--points", "3", "--out", "apart")
    assert names_in("apart", "", "/other", "/line", "/unaligned") == [
        "aligned Bezier, to-b",
        "aligned Bezier, to-third",
        "aligned Segment, to-b",
        "Segment, to-b",
    ]
    ok("scan", "to-b", "to-third", "--no-line", "--task", "mine:circle", "--points", "3", "--out", "no-lines")
    assert names_in("no-lines", "", "/other") == ["Bezier, to-b", "Bezier, to-third"]


def test_scan_command_of_the_file_of_an_aligned_curve_has_both_lines(here):
    ok("connect", "a", "b", "--align", "--task", "mine:circle", "--epochs", "1", "--out", "filed")
    output = ok("scan", "filed/curve.safetensors", "--task", "mine:circle", "--points", "3", "--out", "filed-scan")
    assert all(f"{name}, length ratio" in output for name in ("Segment", "aligned Segment", "aligned Bezier"))
    assert tw.Scan.load("filed-scan/unaligned").name == "Segment"
    ok("connect", "a", "b", "--task", "mine:circle", "--epochs", "1", "--out", "unfiled")
    curves = ("unfiled/curve.safetensors", "filed/curve.safetensors")
    ok("scan", *curves, "--task", "mine:circle", "--points", "3", "--out", "both-filed")
    assert [tw.Scan.load(f"both-filed{name}").name for name in ("", "/other")] == ["aligned Bezier", "Bezier"]


@pytest.mark.parametrize("align", [(), ("--align",)])
def test_connect_command_with_points_needs_statistics_before_training(here, align):
    command = ("connect", "a", "b", *align, "--task", "mine:no_refresh", "--epochs", "1", "--out", "unmeasured")
    refused = invoke(*command, "--points", "3")
    assert refused.exit_code == 2
    assert "needs statistics at each point that --points measures" in refused.output
    assert not (here / "unmeasured").exists()


@pytest.mark.parametrize("command", ["connect", "align"])
def test_commands_name_groups_that_failed_the_proof(here, command):
    given = ("a", "b", "--task", "mine:wrong_groups", "--out", f"failed-{command}")
    with pytest.warns(UserWarning, match="renumbering 'hidden' of groups= changes the outputs or gradients"):
        output = ok(command, *given, *(("--align", "--epochs", "1", "--points", "3") if command == "connect" else ()))
    assert "dropped, since renumbering them changed the outputs or gradients: hidden (by " in output
    assert "aligned Bezier" not in output


@pytest.mark.parametrize(
    ("command", "between"),
    [
        (
            ("compare", "--budget", "16", "--seeds", "1", "--methods", "ind,fge", "--cycle", "2"),
            "Comparison.table",
        ),
        (("barriers", "a", "b"), "Barriers.table"),
        (("scan", "curve", "--points", "3"), "Scan.table"),
    ],
)
def test_commands_say_after_ctrl_c_between_their_parts_that_they_can_be_resumed(here, monkeypatch, command, between):
    given, kept = (*command, "--task", "mine:circle", "--out", f"interrupted-{command[0]}"), []

    def interrupt(*_, **__):
        kept.append(None)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"thalweg.{between}", interrupt)
        stopped = invoke(*given)
    assert kept
    assert stopped.exit_code == 130
    again = f"saved in interrupted-{command[0]}: run the same command again with --resume to continue"
    assert again in stopped.output.replace("\n", " ")
    ok(*given, "--resume")


def test_commands_say_after_ctrl_c_before_anything_is_written_that_nothing_has_changed(here, monkeypatch):
    monkeypatch.setattr(tw, "fit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    stopped = invoke("fit", "--task", "mine:circle", "--out", "not-begun")
    assert (stopped.exit_code, "nothing that was on disk before has changed" in stopped.output) == (130, True)
    assert not (here / "not-begun").exists()


def test_scan_command_of_two_networks_is_the_segment(here):
    output = ok("scan", "a", "b", "--task", "mine:circle", "--out", "line", "--points", "3")
    assert "Segment, length ratio 1.00" in output
    assert "next: thalweg connect a b --task mine:circle --lr 0.1 --out curve" in output


def test_scan_command_with_adaptive_points(here):
    ok("scan", "a", "b", "--task", "mine:circle", "--out", "adaptive", "--points", "adaptive")
    scan = tw.Scan.load("adaptive")
    assert scan.knots == [0, 1]
    assert 13 <= len(scan.t) <= 121
    with_words = invoke("scan", "a", "b", "--task", "mine:circle", "--out", "new-scan", "--points", "many")
    assert "--points is a whole number, or adaptive; got many" in with_words.output


def test_plane_command_of_a_curve_and_of_three_networks(here):
    ok("plane", "curve", "--task", "mine:circle", "--out", "plane", "--grid", "4")
    scan = tw.Scan.load("plane/scan.json")
    assert scan.values["train"]["error"].shape == (4, 4)
    assert (list(scan.paths), list(scan.marks)) == (["Bezier"], ["bend of Bezier"])
    assert scan.marks["bend of Bezier"] == [pytest.approx(scan.corners[2], abs=1e-5)]
    ok("plane", "a", "b", "c", "--task", "mine:circle", "--out", "plane3", "--grid", "3", "--margin", "0.5")
    assert (here / "plane3" / "surface.pdf").exists()
    scan = tw.Scan.load("plane3")
    assert [[pytest.approx(point, abs=1e-5) for point in scan.marks[name]] for name in "abc"] == [
        [c] for c in scan.corners
    ]


def test_plane_command_picks_its_directions_by_what_it_is_given(here):
    task = ("--task", "mine:circle", "--grid", "3")
    ok("fit", "--task", "mine:circle", "--epochs", "3", "--keep", "1", "--keep", "2", "--out", "planes/trained")
    cycle = ("--cycle", "2", "--epochs", "4")
    ok("walk", "--task", "mine:circle", "--start", "planes/trained", *cycle, "--out", "planes/walked")
    output = ok("plane", "planes/trained", "planes/walked", "curve", *task, "--out", "planes/main")
    scan = tw.Scan.load("planes/main")
    members = len(tw.Ensemble.load("planes/walked", nn.Sequential(*mine())).members)
    assert (len(scan.marks["planes/trained"]), len(scan.marks["planes/walked"]), list(scan.paths)) == (
        3,
        members,
        ["curve"],
    )
    assert re.search(rf"the plane holds \S+% of the variance of its {6 + members} networks", output)
    ok("plane", "planes/trained", *task, "--out", "planes/whole")
    assert tw.Scan.load("planes/whole").shares
    ok("plane", "a", *task, "--out", "planes/alone")
    assert tw.Scan.load("planes/alone").corners == [(0, 0)]
    ok("plane", "a", "b", "planes/trained", *task, "--out", "planes/three")
    ok("plane", "curve", "a", "b", *task, "--adaptive", "--out", "planes/same")
    for name in ("planes/three", "planes/same"):  # the curve holds both networks
        scan = tw.Scan.load(name)
        assert (scan.shares, len(scan.corners)) == ([], 3)


def mine():
    return nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)


def test_commands_take_checkpoints_of_the_user(here):
    module = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    torch.save(module.state_dict(), "own.pt")
    assert "Segment" in ok(
        "scan", "own.pt", "a/weights.safetensors", "--task", "mine:circle", "--out", "own", "--points", "3"
    )


def test_connect_command_with_bends_polychain_and_arclength(here):
    flags = ("--curve", "polychain", "--bends", "2", "--loss", "arclength", "--epochs", "2", "--clip", "1")
    ok("connect", "a", "b", "--task", "mine:circle", "--out", "chain", *flags)
    chain = tw.Curve.load("chain/curve.safetensors")
    assert isinstance(chain, tw.PolyChain)
    assert len(chain.bends) == 2


CONNECT = ("connect", "a", "b", "--task", "mine:circle", "--out", "new")
FIT = ("fit", "--out", "new", "--epochs", "2", "--task")
BAD = {
    "networks that do not agree": (
        ("connect", "a", "wide", *CONNECT[3:]),
        "is (16, 2) in the network and (17, 2) in wide/weights.safetensors",
    ),
    "another network than the task's": (
        ("scan", "curve", "--task", "mine:wider", "--out", "new"),
        "'0.weight' is (17, 2)",
    ),
    "a missing file": (
        ("connect", "a", "nowhere.safetensors", *CONNECT[3:]),
        "nowhere.safetensors does not exist: check the path",
    ),
    "a folder without weights": (("connect", "a", "curve", *CONNECT[3:]), "curve holds no weights.safetensors"),
    "a truncated file": (
        ("connect", "a", "short.safetensors", *CONNECT[3:]),
        "short.safetensors is not a whole",
    ),
    "a pickle that would run code": (("connect", "a", "evil.pt", *CONNECT[3:]), "evil.pt holds more than tensors"),
    "a state dict of another network": (
        ("connect", "a", "other.pt", *CONNECT[3:]),
        "other.pt holds none of the network's tensors; it holds 'weight', 'bias'",
    ),
    "the same network twice": (("connect", "a", "a", *CONNECT[3:]), "and a and a are the same: give another end"),
    "a scan of one network": (
        ("scan", "one.pt", *CONNECT[3:]),
        "one.pt is not a curve: give a folder of `thalweg connect`, or two",
    ),
    "a curve that is not finished": (
        ("scan", "begun", *CONNECT[3:]),
        "a run of connect, which has not finished: resume it (--resume on the command line), or give another folder",
    ),
    "a factory without a seed": ((*FIT, "mine:seedless"), "takes one argument, the seed; mine:seedless does not"),
    "a task without a colon": ((*FIT, "mine"), "file.py:factory or package.module:factory; got 'mine'"),
    "a task in a folder": ((*FIT, "./mine:circle"), "file.py:factory or package.module:factory; got './mine:circle'"),
    "a task file that is not there": ((*FIT, "./nowhere.py:task"), "there is no file"),
    "a task file without the factory": ((*FIT, "./mine.py:nothing"), "./mine.py has no 'nothing'"),
    "a task file that is broken": ((*FIT, "broken.py:task"), "cannot be imported: SyntaxError"),
    "a task file that fails": ((*FIT, "failing.py:task"), "ZeroDivisionError: division by zero ("),
    "a factory that fails inside a library": ((*FIT, "mine.py:bad_json"), "line 1 column 1 (char 0) ("),
    "a task that is not there": ((*FIT, "mine:nothing"), "mine has no 'nothing'"),
    "a task with a typing error": ((*FIT, "mine:cirlce"), "mine has no 'cirlce'; did you mean circle?"),
    "a module that is not there": (
        (*FIT, "nowhere:task"),
        "and among the installed packages; ModuleNotFoundError: No module named 'nowhere'",
    ),
    "a module that is broken": ((*FIT, "broken:task"), "the task broken:task cannot be imported: SyntaxError"),
    "a factory that raises": ((*FIT, "mine:raises"), "the task factory mine:raises failed with KeyError: 'missing'"),
    "a factory that returns no dict": ((*FIT, "mine:not_a_dict"), "must return a dict with model, task, train"),
    "a factory with an unknown key": (
        (*FIT, "mine:extra"),
        "'surprise', in the dict that mine:extra returned, is not known: a task's dict holds model, task, train",
    ),
    "a factory with a misspelt key": (
        (*FIT, "mine:misspelt"),
        "'bn_batch', in the dict that mine:misspelt returned, is not known: did you mean 'bn_batches'?",
    ),
    "a factory with a misspelt key that is needed": (
        (*FIT, "mine:trian"),
        "'trian', in the dict that mine:trian returned, is not known: did you mean 'train'?",
    ),
    "a factory with a wrong model": ((*FIT, "mine:no_model"), "must return a Module as 'model'; it returned int"),
    "a factory with a class": ((*FIT, "mine:model_class"), "as 'model'; it returned type 'Linear': call it"),
    "a factory without data": (
        (*FIT, "mine:untrained"),
        "'train' is missing in the dict that mine:untrained returned: add it",
    ),
    "no runs to compare": (
        ("compare", "--seeds", "0", "--task", "mine:circle", "--out", "new"),
        "--seeds is at least 1; got '0'",
    ),
    "an empty data set": ((*FIT, "mine:empty"), "the training batches of mine:empty are empty"),
    "bends below one": ((*CONNECT, "--bends", "0"), "at least 1; got 0"),
    "too many bends": ((*CONNECT, "--bends", "2147483648"), "at most 1,000; got 2147483648"),
    "collinear points": (("plane", "a", "b", "middle.safetensors", *CONNECT[3:]), "do not lie on one line"),
    "a plane of two networks": (
        ("plane", "a", "b", *CONNECT[3:]),
        "which lie on a line: give a third, or scan the line",
    ),
    "a scan of three networks": (("scan", "a", "b", "c", *CONNECT[3:]), "give one curve or two networks"),
    "batch norm without refresh": (
        ("scan", "curve", "--task", "mine:no_refresh", "--out", "new"),
        "needs statistics",
    ),
    "a loss of the wrong shape": ((*FIT, "mine:scalar_loss"), "one value per example"),
    "labels out of range": ((*FIT, "mine:bad_labels"), "labels must lie between 0 and 1"),
    "too few points": (
        ("scan", "curve", "--task", "mine:circle", "--out", "new", "--points", "1"),
        "at least 2 points",
    ),
    "a folder that is there": (
        ("fit", "--out", "a", "--task", "mine:circle"),
        "a already holds a finished run of fit, and is never overwritten: choose another folder (--out)",
    ),
    "results of the paper in the folder of a run": (
        ("paper", "run", "trivial", "--scale", "smoke", "--out", "a"),
        "a holds a run, and several networks need a folder that holds none",
    ),
    "groups by hand and activations": (
        ("align", "a", "b", "--by", "activations", "--task", "mine:by_hand", "--out", "new"),
        "leave the factory's `groups` out, or use --by weights",
    ),
    "barriers by activations with groups by hand": (
        ("barriers", "a", "b", "--align", "--by", "activations", "--task", "mine:by_hand", "--out", "new"),
        "leave the factory's `groups` out, or use --align --by weights; or leave out --align",
    ),
    **{
        f"{command} --by without --align": (
            (command, "a", "b", "--by", "weights", "--task", "mine:circle", "--out", "new"),
            "--by says what --align matches; got --by weights alone: add --align, or leave --by out",
        )
        for command in ("connect", "barriers")
    },
    "an odd interval": (
        (*FIT, "mine:circle", "--checkpoint-every", "x"),
        "--checkpoint-every is a number of epochs",
    ),
    "an argument in an error of the user": (
        (*FIT, "mine:argument"),
        "ValueError: leave out lr=0.1 (",
    ),
    "a folder below a file": (
        (*FIT[:1], *FIT[3:], "mine:circle", "--out", "one.pt/new"),
        "one.pt/new could not be written (Not a directory), and what was there before is unchanged: choose another",
    ),
    "a folder named like an argument": (
        ("scan", "lr=0.1", "--task", "mine:circle", "--out", "new"),
        "lr=0.1 does not exist",
    ),
    "no epochs": (
        (*FIT[:3], "--epochs", "0", "--task", "mine:circle"),
        "epochs must be a whole number, at least 1; got 0",
    ),
    "an unknown curve": ((*CONNECT, "--curve", "spline"), "thalweg: --curve is 'bezier' or 'polychain'; got 'spline'"),
    "a word in place of a number": (
        (*FIT, "mine:circle", "--epochs", "one"),
        "thalweg: --epochs is a whole number; got 'one'",
    ),
    "a word in place of a rate": ((*FIT, "mine:circle", "--lr", "high"), "thalweg: --lr is a number; got 'high'"),
    "a scale that is not there": (
        ("paper", "run", "all", "--scale", "it's"),
        "thalweg: --scale is 'full' or 'smoke'; got \"it's\"",
    ),
    "a misspelt command": (("bariers", "a"), "thalweg: there is no command 'bariers': did you mean barriers?"),
    "an unknown command": (("frobnicate",), "there is no command 'frobnicate': commands are demo, fit, align, connect"),
    "an unknown command below another": (("paper", "rnu"), "there is no command 'rnu': did you mean run?"),
    "no task": (("fit", "--out", "new"), "thalweg: missing option '--task'; add -h to see what the command takes"),
    "no networks": (("connect",), "thalweg: missing argument 'START END'; add -h"),
    "a misspelt option": (("fit", "--ou", "new"), "thalweg: no such option: --ou; did you mean --out or --runs?"),
    "an option without its value": (("fit", "--task"), "thalweg: option '--task' requires an argument; add -h"),
    "words too many": (("fit", "a", "--task", "b", "--out", "new"), "thalweg: got unexpected extra argument"),
}


@pytest.fixture(scope="module")
def bad_files(place):
    content = (place / "a" / "weights.safetensors").read_bytes()
    (place / "short.safetensors").write_bytes(content[: len(content) // 2])
    torch.save({"weight": Evil()}, place / "evil.pt")
    torch.save(nn.Linear(2, 2).state_dict(), place / "other.pt")
    torch.save(tw.Weights.load(place / "a" / "weights.safetensors").state_dict(), place / "one.pt")
    (place / "begun").mkdir()
    (place / "begun" / "state.safetensors").write_bytes(content)
    save_json(place / "begun" / "run.json", "run", {**RECORD, "command": "connect", "facts": {}})
    (place / "broken.py").write_text("def task(:\n")
    (place / "failing.py").write_text("import json\n\nvalue = 1 / 0\n")
    ends = [tw.Weights.load(place / name / "weights.safetensors") for name in ("a", "b")]
    tw.average(ends).save(place / "middle.safetensors")


class Evil:
    def __reduce__(self):
        return (os.system, ("touch payload-ran",))


@pytest.mark.parametrize("case", BAD)
def test_commands_refuse_bad_input_by_one_sentence_and_code_2(case, here, bad_files, monkeypatch):
    args, message = BAD[case]
    before = everything(here)
    monkeypatch.setattr(sys, "argv", ["thalweg", *args])
    result = invoke(*args)
    text = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2, (result.output, result.exception)
    assert message in text
    assert "Traceback" not in text
    after = everything(here)
    assert all(after.get(path) == content for path, content in before.items())
    assert not (here / "payload-ran").exists()
    left = here / "new"
    if left.exists():
        assert {path.name for path in left.iterdir()} <= {"run.json", ".lock"}
        shutil.rmtree(left)


@pytest.mark.parametrize(
    ("task", "line"), [("failing.py:task", "failing.py, line 3)"), ("mine.py:bad_json", "mine.py, line ")]
)
def test_errors_in_a_task_file_name_the_users_line(task, line, here, bad_files):
    assert line in invoke(*FIT, task).output.replace("\n", "")


LOADED = """
import torch, thalweg as tw
from torch.utils.data import DataLoader, Dataset
from sibling import SIZE

class Points(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, k):
        return torch.full((SIZE,), k / 8), k % 2

def task(seed):
    own = dict(num_workers=1, multiprocessing_context="{context}", persistent_workers={persistent})
    loader = DataLoader(Points(), batch_size=4, **own)
    return dict(model=torch.nn.Linear(SIZE, 2), task=tw.classification(), train=loader)
"""


@pytest.mark.parametrize(
    ("context", "name", "above"),
    [
        ("fork", "other.py", "."),
        ("fork", "with a space and-dashes.py", "{}"),
        ("spawn", "other.py", "{}"),
        ("spawn", "with a space and-dashes.py", "."),
    ],
)
def test_task_file_anywhere_with_siblings_and_workers(context, name, above, tmp_path):
    """In a process of its own, as a user would, by its relative and by its absolute path."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    # a spawned worker imports torch anew, which takes seconds
    (folder / name).write_text(LOADED.format(context=context, persistent=context == "spawn"))
    (folder / "sibling.py").write_text("SIZE = 3\n")
    fit = ("fit", "--task", f"{above.format(tmp_path)}/a folder/{name}:task", "--epochs", "1", "--out", "out")
    done = subprocess.run([sys.executable, "-m", "thalweg", *fit], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "from argparse import ArgumentParser; ArgumentParser().parse_args(['--lr'])",
            r"cannot be imported: it ends the program: put .*; SystemExit: 2 \(.*script\.py, line 2\)",
        ),
        ("def task(seed): exit()", r"failed with SystemExit: None \(.*script\.py, line 2\)"),
    ],
)
def test_task_file_that_ends_the_program_is_named(line, said, tmp_path):
    (tmp_path / "script.py").write_text(f"import os\n{line}\n")
    words = ["fit", "--task", f"{tmp_path / 'script.py'}:task", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "thalweg", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr


def test_task_that_changes_the_folder_does_not_move_the_run(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    (tmp_path / "moves.py").write_text(
        f"import os, mine\nos.chdir({str(tmp_path)!r})\n"
        f"def task(seed):\n    os.chdir({str(tmp_path)!r})\n    return mine.circle(seed)\n"
    )
    said = ok("fit", "--task", f"{tmp_path / 'moves.py'}:task", "--epochs", "1", "--out", "stays")
    assert "wrote stays/" in said
    assert (place / "stays" / "weights.safetensors").is_file()
    shutil.rmtree("stays")


def test_task_files_of_one_name_are_distinguished(tmp_path):
    from thalweg.loading import load_inputs

    for width in (3, 5):
        (tmp_path / str(width)).mkdir()
        text = (
            f"def task(seed):\n    return dict(model=torch.nn.Linear({width}, 2), task=tw.classification(), "
            "train=[0])\n"
        )
        (tmp_path / str(width) / "json.py").write_text(f"import torch, thalweg as tw\n\n{text}")
    for width in (3, 5, 3):
        assert load_inputs(f"{tmp_path}/{width}/json.py:task", 0, None).model.in_features == width
    assert sys.modules["json"] is json


def test_fit_command_that_diverges_keeps_the_last_good_weights(here):
    result = invoke("fit", "--task", "mine:explodes", "--out", "exploded")
    assert result.exit_code == 1
    assert "the loss became nan in step 1" in result.output
    assert "look for bad values in the data, or try a smaller learning rate or clipping" in result.output
    assert result.output.rstrip().endswith("before that epoch are in exploded/last-good.safetensors")
    assert tw.Weights.load("exploded/last-good.safetensors").layout.size == 16 * 2 + 16 * 3 + 34


@pytest.mark.parametrize("command", ["fit", "walk"])
def test_fit_command_warns_of_a_stalled_network_or_stops(here, command):
    common = (command, "--task", "mine:dead", "--epochs", "340")  # of three steps
    with pytest.warns(tw.Stalled, match="has not begun to learn: after 34 of 340 epochs"):
        assert invoke(*common, "--out", f"{command}-to-the-end").exit_code == 0
    result = invoke(*common, "--stop-if-stalled", "--out", f"{command}-stopped")
    assert result.exit_code == 2
    assert "thalweg: stopped: the network has not begun to learn: after 34 of 340 epochs" in result.output


def test_ctrl_c_in_a_command_is_one_sentence_and_code_130(here):
    command = [sys.executable, "-m", "thalweg", "fit", "--task", "mine:slow", "--out", "stopped", "--epochs", "10000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (here / "stopped" / "log.jsonl").exists():  # an epoch has been trained
        time.sleep(0.05)
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert re.fullmatch(
        r"thalweg: stopped by SIGINT after step \d+, in epoch \d+; its state is saved in stopped: "
        r"run the same command again with --resume to continue",
        errors.strip(),
    )


@pytest.mark.parametrize(
    "command",
    ["demo", "fit", "align", "connect", "scan", "plane", "barriers", "soup", "walk", "ensemble", "compare", "page"],
)
def test_command_options_are_explained(command):
    import typer.main

    group = typer.main.get_command(app)
    assert group.commands[command].help
    for parameter in group.commands[command].params:
        assert getattr(parameter, "help", None), f"{command} {parameter.name} has no help"


SEEDS = {
    **dict.fromkeys(("scan", "barriers", "soup", "ensemble", "bench"), "Passed to the factory."),
    **dict.fromkeys(("fit", "walk"), "Passed to the factory; also the seed of shuffling and dropout."),
    "connect": "Passed to the factory; also the seed of shuffling, dropout, t and --align.",
    "align": "Passed to the factory; also the seed of the order in which units are matched.",
    "plane": "Passed to the factory; also the seed of the random directions around one network.",
}


def test_command_seeds_are_explained_by_what_they_draw():
    import typer.main

    commands = typer.main.get_command(app).commands.items()
    found = {name: parameter.help for name, each in commands for parameter in each.params if parameter.name == "seed"}
    assert found == SEEDS


def test_command_help_names_options_in_full_on_a_narrow_terminal():
    for columns in (80, 120):
        environment = {**os.environ, "COLUMNS": str(columns)}
        words = [sys.executable, "-m", "thalweg", "fit", "-h"]
        said = subprocess.run(words, check=True, capture_output=True, env=environment, text=True).stdout
        assert {"--checkpoint-every", "--stop-if-stalled", "<decay|cosine|constant>"} <= {*said.split()}
        assert max(map(len, said.splitlines())) <= columns


def test_command_help_answers_at_once():
    """Best of five, in CPU time, which other work on the machine does not change much; the bar is half a second."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "thalweg", "--help"], check=True, capture_output=True)
        after = os.times()
        times.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(times) < 0.5


def circle():
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def test_ensemble_command_keeps_a_temperature(here):
    output = ok("ensemble", "a", "b", "--task", "mine:circle", "--held-out", "train", "--out", "calibrated")
    temperature = tw.Ensemble.load("calibrated/members", circle()).temperature
    assert f"temperature of the ensemble: {temperature:.3f}, fitted on the very data that are scored" in output
    assert {"averaged", "forward"} <= {line.split()[0] for line in output.splitlines() if line.strip()}
    assert (here / "calibrated" / "reliability.png").is_file()
    output = ok("ensemble", "a", "b", "--task", "mine:halves", "--held-out", "validation", "--out", "on-test")
    assert "on 'test'" in output
    assert "fitted on held-out data" in output
    refused = invoke("ensemble", "a", "--task", "mine:circle", "--held-out", "x", "--out", "other")
    assert "the task's data are train; got 'x'" in refused.output


@pytest.mark.parametrize("name", ["train", "held-out"])
def test_ensemble_command_refuses_to_replace_its_report_by_one_on_other_data(name, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed = "inputs, labels = made[{!r}][0]; made[{!r}] = [(inputs, 1 - labels)]\n"
    task = """
import mine
def both(seed):
    batches = mine.circle(seed)["train"]
    made = {"train": batches[:1], "held-out": batches[1:2]}
    return {**mine.circle(seed), "data": made}
"""
    (tmp_path / "mine.py").write_text(TASK)
    (tmp_path / "other.py").write_text(task)
    words = ("ensemble", str(place / "a"), "--task", "other.py:both", "--held-out", "held-out", "--out", "pooled")
    run = partial(subprocess.run, [sys.executable, "-m", "thalweg", *words, "--quiet", "--resume"], capture_output=True)
    first = run()
    assert first.returncode == 0, first.stderr
    before = everything(tmp_path / "pooled")
    (tmp_path / "other.py").write_text(task.replace("    return", f"    {changed.format(name, name)}    return"))
    refused = run(text=True)
    assert refused.returncode == 2
    assert f"the first batch of the data '{name}' has changed" in refused.stderr
    assert everything(tmp_path / "pooled") == before


def test_walk_ensemble_and_compare_commands(here):
    flags = ("--task", "mine:circle", "--epochs", "6", "--lr-max", "0.1", "--lr-min", "0.01")
    output = ok("walk", *flags, "--cycle", "2", "--start", "a", "--start", "b", "--out", "walk")
    assert "collected 6 networks" in output
    for name in ("members/ensemble.json", "trace-1.json", "trace-2.png", "trace-2.pdf"):
        assert f"walk/{name}" in output
    assert tw.Trace.load("walk/trace-1.json").collected == [3, 9, 15]
    output = ok("ensemble", "walk", "c", "--task", "mine:circle", "--out", "pool")
    assert "on 'train'" in output
    assert len(output.split("members")[1].splitlines()) >= 8
    module = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    assert len(tw.Ensemble.load("pool/members", module)) == 7
    flags = ("--task", "mine:circle", "--budget", "20", "--seeds", "2", "--cycle", "2")
    output = ok("compare", *flags, "--out", "budget")
    for method in ("Independent", "Snapshot", "FGE", "SWA"):
        assert method in output
    assert (here / "budget" / "comparison.pdf").exists()
    assert tw.Comparison.load("budget/comparison.json").multiples == [1, 2]
    ok("compare", *flags[:-4], "--seeds", "1", "--cycle", "2", "--methods", "fge", "--out", "fge-alone")
    assert not (here / "fge-alone" / "equivalents.pdf").exists(), "nothing is known of independent networks"


def test_barriers_and_soup_commands(here):
    flags = ("--task", "mine:circle", "--epochs", "4", "--lr-max", "0.01", "--lr-min", "0.001")
    ok("walk", *flags, "--cycle", "2", "--start", "a", "--out", "near")
    output = ok("barriers", "a", "b", "near", "--align", "--task", "mine:circle", "--points", "4", "--out", "between")
    for name in ("barriers.json", "barriers.csv", "barriers.png", "barriers.pdf"):
        assert f"between/{name}" in output
    assert "next: thalweg page between" in output
    found = tw.Barriers.load("between")
    assert found.networks == ["a", "b", "near/1", "near/2"]
    assert found.table() in output
    assert found.matrix[0, 1] > 5 * found.matrix[2, 3]
    ok("page", "between", "-o", "between.html")
    shown = json.loads(re.search(r'id="data">(.*?)</script>', (here / "between.html").read_text(), re.DOTALL)[1])
    assert (len(shown["barriers"]), shown["curves"], [run["label"] for run in shown["runs"]]) == (1, [], ["between"])
    with pytest.warns(UserWarning, match="averaging cannot work across .*; `thalweg barriers --align`, in Python"):
        output = ok("soup", "near", "b", "--task", "mine:circle", "--how", "uniform", "--out", "mixed")
    assert "on 'train'" in output
    module = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    soup = tw.Weights.load("mixed", module)
    assert sorted(soup.made["soup"]["members"]) == ["b", "near/1", "near/2"]
    assert soup.has_statistics
    assert "next: thalweg barriers near b --task mine:circle --align --out " in output
    output = ok("soup", "near", "--task", "mine:circle", "--held-out", "train", "--out", "near-soup")
    assert "next: thalweg barriers near --task mine:circle --out " in output
    ok("page", "between", "mixed", "-o", "mixed.html")
    shown = json.loads(re.search(r'id="data">(.*?)</script>', (here / "mixed.html").read_text(), re.DOTALL)[1])
    assert (shown["summary"], [run["label"] for run in shown["runs"]]) == ([], ["between", "mixed"])


@pytest.mark.filterwarnings("ignore:averaging cannot work")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "chosen on 'validation', the last of the data: for others, give --held-out\n"),
        (("--data", "test"), "chosen on 'test'\n"),
        (("--data", "test", "--how", "uniform"), "scored on 'test'\n"),
    ],
)
def test_soup_command_says_on_which_data_it_chose(flags, said, here, tmp_path):
    assert said in ok("soup", "a", "b", "--task", "mine:halves", *flags, "--out", str(tmp_path / "soup"))


def test_barriers_command_counts_a_network_named_like_a_member_of_a_walk(here):
    ok("walk", "--task", "mine:circle", "--epochs", "4", "--cycle", "2", "--start", "a", "--out", "duo")
    shutil.copytree("b", "duo 1")
    ok("barriers", "duo", "duo 1", "--task", "mine:circle", "--points", "3", "--out", "all three")
    assert tw.Barriers.load("all three").networks == ["duo/1", "duo/2", "duo 1"]


def test_walk_command_from_a_kept_epoch_has_its_momentum(here):
    common = ("--task", "mine:circle", "--lr", "0.1")
    ok("fit", *common, "--epochs", "4", "--keep", "2", "--keep", "3", "--out", "keeping")
    kept = here / "keeping" / "kept-2.safetensors"
    ok("walk", "--task", "mine:circle", "--method", "swa", "--lr-max", "0.1", "--cycle", "1", "--epochs", "2",
       "--start", str(kept), "--out", "warm")  # fmt: skip
    module = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    warm = tw.Ensemble.load("warm/members", module).members
    from thalweg.weightspace.checkpoint import Checkpoint

    assert Checkpoint.load(kept).optimizer["momentum_buffer"].abs().sum() > 0
    assert len(warm) == 2


def test_snapshot_and_swa_on_the_command_line(here):
    following = {"snapshot": "ensemble snapshot --task mine:circle", "swa": "soup swa --how uniform --task mine:circle"}
    for method, command in following.items():
        flags = ("--method", method, "--epochs", "4", "--cycles", "2", "--cycle", "2", "--lr-max", "0.1")
        said = ok("walk", "--task", "mine:circle", "--out", method, *flags)
        assert "collected 2 networks" in said
        assert f"next: thalweg {command} --out " in said


def test_next_command_after_swa_makes_its_network(here):
    walk = ("walk", "--method", "swa", "--task", "mine:circle", "--cycle", "1", "--lr-max", "0.1", "--epochs")
    line = ok(*walk, "3", "--out", "swa-3").partition("next: thalweg ")[2]
    ok(*line.partition(" --out ")[0].split(), "--out", "swa-network")
    inputs = load_inputs("mine:circle", 0, "cpu")
    module, batches = inputs.model, inputs.bn_batches
    wanted = tw.update_bn(module, tw.average(tw.Ensemble.load("swa-3/members", module).members), batches)
    found = tw.Weights.load("swa-network", module)
    torch.testing.assert_close(found.vector, wanted.vector)
    torch.testing.assert_close(dict(found.buffers), dict(wanted.buffers))
    assert "next: thalweg ensemble swa-1 " in ok(*walk, "1", "--out", "swa-1")  # a soup needs two networks
    assert "next: thalweg ensemble swa-ab " in ok(*walk, "2", "--out", "swa-ab", "--start", "a", "--start", "b")


BAD_ENSEMBLES = {
    "an odd cycle": (("walk", "--task", "mine:circle", "--out", "new", "--cycle", "1"), "3: give 2 epochs, in Python"),
    "a cycle longer than the run": (
        ("walk", "--task", "mine:circle", "--out", "new", "--cycle", "40"),
        "longer than the run",
    ),
    "rates the wrong way": (("walk", "--task", "mine:circle", "--out", "new", "--lr-min", "1"), "0 < lr_min <= lr_max"),
    "members of other networks": (
        ("ensemble", "a", "wide", "--task", "mine:circle", "--out", "new"),
        "'0.weight' is (16, 2)",
    ),
    "a damaged member": (("ensemble", "short.safetensors", "--task", "mine:circle", "--out", "new"), "not a whole"),
    "data that are not there": (
        ("ensemble", "a", "--task", "mine:circle", "--out", "new", "--data", "x"),
        "data are train; got 'x'",
    ),
    "one network alone": (
        ("barriers", "a", "--task", "mine:circle", "--out", "new"),
        "barriers lie between networks, and a holds a single one: give another RUN with it",
    ),
    "a soup of one network": (
        ("soup", "a", "--task", "mine:circle", "--out", "new"),
        "a soup is an average of networks, and a holds a single one: give another RUN with it",
    ),
    "barriers of what cannot be traced": (
        ("barriers", "a", "b", "--align", "--task", "mine:branching", "--out", "new"),
        "; or leave out --align",
    ),
    "a script in place of a checkpoint": (
        ("align", "a", "mine.py", "--task", "mine:circle", "--out", "new"),
        "mine.py is not a checkpoint: give a file that thalweg, torch.save or safetensors wrote",
    ),
    "one network twice": (
        ("barriers", "a", "a", "--task", "mine:circle", "--out", "new"),
        "each network is given once",
    ),
    "one member twice": (("ensemble", "a", "a", "--task", "mine:circle", "--out", "new"), "each network is given once"),
    "barriers of other networks": (
        ("barriers", "a", "wide", "--task", "mine:circle", "--out", "new"),
        "'0.weight' is (16, 2)",
    ),
    "barriers without statistics": (
        ("barriers", "a", "b", "--task", "mine:no_refresh", "--out", "new"),
        "set the factory's `bn_batches` to the training batches",
    ),
    "a soup by an unknown metric": (
        ("soup", "a", "b", "--task", "mine:circle", "--metric", "x", "--out", "new"),
        "that the task measures, loss, data_loss, error; got 'x'",
    ),
    "unknown methods": (("compare", "--task", "mine:circle", "--out", "new", "--methods", "best"), "methods are ind"),
    "a budget too small": (
        ("compare", "--task", "mine:circle", "--out", "new", "--budget", "4"),
        "5 cycles of 3 iterations",
    ),
}


@pytest.mark.parametrize("case", BAD_ENSEMBLES)
def test_ensemble_command_refuses_bad_input_by_one_sentence(case, here, bad_files, monkeypatch):
    monkeypatch.setitem(BAD, case, BAD_ENSEMBLES[case])
    test_commands_refuse_bad_input_by_one_sentence_and_code_2(case, here, bad_files, monkeypatch)


def content(path):
    """The bytes of a JSON file; of a safetensors file its tensors, since the order of its header is left to chance."""
    if path.suffix == ".json":
        return path.read_bytes()
    return {name: tensor.numpy().tobytes() for name, tensor in tw.store.files.read_safetensors(path)[0].items()}


def terminated(words, elsewhere):
    """What a command says that gets SIGTERM; in a process of its own, or in this one, which does not import torch
    again.
    """
    if elsewhere:
        done = subprocess.run([sys.executable, "-m", "thalweg", *words], stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    def unhandled(*_):
        raise AssertionError("SIGTERM would have ended the process")

    before = signal.signal(signal.SIGTERM, unhandled)
    try:
        done = invoke(*words)
    finally:
        signal.signal(signal.SIGTERM, before)
    return done.exit_code, done.output


@pytest.mark.filterwarnings("ignore:averaging cannot work across a barrier")
@pytest.mark.parametrize("kind", ["fit", "connect", "walk", "scan", "barriers", "soup", "compare"])
def test_resume_terminated_command(kind, here, monkeypatch):
    """SIGTERM in the middle, then --resume; what comes out is what an undisturbed run writes, bit for bit."""
    flags = {
        "fit": ("fit", "--epochs", "30"),
        "connect": ("connect", "a", "b", "--epochs", "30"),
        "walk": ("walk", "--epochs", "30", "--start", "a"),
        "scan": ("scan", "curve", "--points", "31"),
        "barriers": ("barriers", "a", "b", "c", "--points", "9"),
        "soup": ("soup", "a", "b", "c"),
        "compare": ("compare", "--budget", "20", "--seeds", "1", "--cycle", "2"),
    }[kind]
    (here / "steps").unlink(missing_ok=True)
    with monkeypatch.context() as stopping:
        stopping.setenv("STOP", "20" if kind == "soup" else "40")
        code, said = terminated((*flags, "--task", "mine:stopping", "--out", f"{kind}-1"), kind in ("fit", "scan"))
    assert code == 128 + signal.SIGTERM, said
    assert "stopped by SIGTERM after" in said
    refused = invoke(*flags, "--task", "mine:stopping", "--out", f"{kind}-1")
    assert refused.exit_code == 2
    assert "resume it (--resume), or" in refused.output
    ok(*flags, "--task", "mine:stopping", "--out", f"{kind}-1", "--resume")
    ok(*flags, "--task", "mine:stopping", "--out", f"{kind}-2")
    name = {"connect": "curve.safetensors", "fit": "weights.safetensors", "scan": "scan.json", "walk": "trace-1.json"}
    name |= {"compare": "comparison.json", "barriers": "barriers.json", "soup": "weights.safetensors"}
    one, two = (content(here / f"{kind}-{k}" / name[kind]) for k in (1, 2))
    assert one == two
    other, message = ("--weight-decay", "0.5"), "weight_decay was 0.0 and is 0.5"
    if kind == "soup":
        other, message = ("--how", "uniform"), "how was 'greedy' and is 'uniform'"
    changed = invoke(*flags, "--task", "mine:stopping", "--out", f"{kind}-1", "--resume", *other)
    assert changed.exit_code == 2
    assert message in changed.output


def test_page_command_of_what_commands_wrote(here):
    ok("scan", "curve", "--task", "mine:circle", "--out", "shown/scan", "--points", "3")
    ok("plane", "curve", "--task", "mine:circle", "--out", "shown/plane", "--grid", "3")
    output = ok("ensemble", "a", "b", "--task", "mine:circle", "--out", "shown/both")
    assert "next: thalweg page shown/both" in output
    assert "wrote shown.html" in ok("page", "shown", "-o", "shown.html")
    text = (here / "shown.html").read_text()
    shown = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert shown["planes"][0]["paths"]["Bezier"][60] == list(tw.Scan.load("shown/plane/scan.json").paths["Bezier"][60])
    assert shown["reports"][0]["data"] == "train"
    assert [run["label"] for run in shown["runs"]] == ["both", "plane", "scan"]
    assert shown["notes"] == []
    refused = invoke("page", "shown", "-o", "shown.html")
    assert (refused.exit_code, text) == (2, (here / "shown.html").read_text())
    assert "shown.html already exists: choose another name, or ask to replace it (--replace" in refused.output
    (here / "shown" / "scan" / "scan.json").unlink()
    ok("page", "shown", "-o", "shown.html", "--replace")
    assert "scan holds a run of scan without its result: resume it" in (here / "shown.html").read_text()


def test_page_command_writes_nothing_when_there_is_nothing_to_show(here):
    ok("scan", "curve", "--task", "mine:circle", "--out", "lost", "--points", "3", "--no-line")
    (here / "lost" / "scan.json").unlink()
    lost = "lost holds a run of scan without its result: resume it"
    for folders, said in ((("a", "curve"), "make some with `thalweg scan`"), (("lost",), lost)):
        refused = invoke("page", *folders, "-o", "nothing.html")
        assert refused.exit_code == 2
        assert f"{', '.join(folders)} holds no results that a page could show: {said}" in refused.output
        assert not (here / "nothing.html").exists()


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            "other_names",
            r"TypeError: .*'image'.*a batch of \{image: float32 4 x 2, labels: int64 4\}; the keys of a dict",
        ),
        ("doubled", r"RuntimeError: .* whose weights are float64 on cpu, a batch of \(float32 40 x 2, int64 40\)"),
        ("float_labels", r"RuntimeError: .* \(.*mine\.py, line \d+\); thalweg gave the network"),
    ],
)
def test_errors_of_the_users_own_code_are_reported_with_what_it_was_given(here, factory, said):
    result = CliRunner().invoke(
        app, ["fit", "--task", f"mine:{factory}", "--epochs", "1", "--out", f"out-{factory}", "--quiet"]
    )
    assert result.exit_code == 2
    assert re.search(said, result.output), result.output
    assert "Traceback" not in result.output


def test_next_line_names_a_free_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for expected in ("scan", "scan-2", "scan-3"):
        options.done(tmp_path, options.following(scan, {"task": "mine:task"}, "curve", out="scan"))
        assert capsys.readouterr().out.endswith(f"next: thalweg scan curve --task mine:task --out {expected}\n")
        (tmp_path / expected).mkdir()


def test_next_line_names_folders_that_look_like_options_or_have_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"task": "mine:task"}
    assert "scan ./-curve --task" in options.following(scan, given, Path("-curve"), out="scan")
    assert options.following(scan, given, out=".").endswith(f" --out {tmp_path}-2")


def words_of(line):
    """The arguments that a shell makes of a line which begins with thalweg."""
    shell = subprocess.run(
        ["sh", "-c", f"thalweg() {{ printf '%s\\0' \"$@\"; }}; {line}"], capture_output=True, text=True, check=True
    )
    return shell.stdout.split("\0")[:-1]


def test_every_next_line_runs_as_a_shell_reads_it(tmp_path, monkeypatch):
    """A session of commands, each pasted from what the one before said, with names that need quoting."""
    folder = tmp_path / "it's a folder; with $names"
    folder.mkdir()
    (folder / "my task.py").write_text(TASK)
    monkeypatch.chdir(folder)
    common = "--task './my task.py:circle' --weight-decay 0.0001 --seed 3 --precision bf16 --device cpu"
    beginnings = [
        f"thalweg fit {common} --epochs 2 --clip 5.0 --out 'first end'",
        f"thalweg scan 'first end' 'first end-2' {common} --points 3 --out 'straight line'",
        f"thalweg walk {common} --epochs 2 --lr-min 1e-4 --out 'my walk'",
        f"thalweg compare {common.replace(' --seed 3', '')} --budget 20 --seeds 1 --out 'my comparison'",
    ]
    ran = []
    for line in beginnings:
        while line:
            ran.append(line)
            line = "".join(re.findall(r"^next: (.+)", ok(*words_of(line)), re.MULTILINE))
    said = [words_of(line)[0] for line in ran]
    assert said[:6] == ["fit", "fit", "connect", "scan", "plane", "page"]
    assert said[6:11] == ["scan", "connect", "scan", "plane", "page"]
    assert said[11:] == ["walk", "ensemble", "page", "compare", "page"]
    for command, line in zip(said, ran, strict=True):
        for option in ("--task './my task.py:circle'", "--device cpu"):
            assert (option in line) == (command != "page"), line
        for option in ("--weight-decay 0.0001", "--precision bf16"):
            assert (option in line) == (command not in ("page", "ensemble")), line
    assert all("--clip 5.0" in line for line in ran[:3])
    assert "--seed 4" in ran[1]


def test_next_lines_begin_as_the_program_was_started(monkeypatch, tmp_path):
    for started, expected in (
        ("/x/thalweg/__main__.py", [sys.executable, "-m", "thalweg"]),
        (".venv/bin/thalweg", [".venv/bin/thalweg"]),
        (str(tmp_path / "thalweg"), ["thalweg"]),
        ("pytest", ["thalweg"]),
        ("/x/pytest/__main__.py", ["thalweg"]),
    ):
        (tmp_path / "thalweg").touch(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "argv", [started])
        assert options.program() == expected


def test_commands_list_the_top_files_of_a_folder(tmp_path, capsys):
    for number in range(40):
        (tmp_path / f"member-{number}").mkdir()
        (tmp_path / f"member-{number}" / "weights").touch()
    (tmp_path / "report.json").touch()
    options.done(tmp_path, "thalweg page")
    assert (
        capsys.readouterr().out
        == f"wrote {tmp_path}/report.json\n      and 40 files in folders below\nnext: thalweg page\n"
    )


def test_closed_output_pipe_is_no_error(here):
    """As `thalweg ... | head` does."""
    command = [sys.executable, "-m", "thalweg", "scan", "curve", "--task", "mine:circle", "--out", "piped", "--quiet"]
    read, write = os.pipe()
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        os.close(read)
        errors = process.stderr.read()
    assert (process.returncode, errors) == (128 + signal.SIGPIPE, "")
    assert (here / "piped" / "scan.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("option", ["--version", "--help"])
def test_output_that_cannot_be_written_is_one_sentence(option):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "thalweg", option], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "thalweg: [Errno 28] No space left on device\n")
