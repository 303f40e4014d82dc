"""An error in the user's own code, or of the system, is one sentence on the command line; in Python it stays what it
is.
"""

import errno
import os
import re
import resource
import tempfile
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from run_folders import tree
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, get_worker_info
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.error_notes import in_a_sentence
from thalweg.store import files
from thalweg.store.runs import Run

TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
import thalweg as tw

class Theirs(LookupError):
    pass

class Data(Dataset):
    def __init__(self, fault="", error=None):
        self.fault, self.error = fault, error
    def __len__(self):
        return 8
    def __getitem__(self, i):
        if i == 5 and (self.fault == "dataset" or (self.fault == "workers" and get_worker_info() is not None)):
            raise self.error or Theirs("of the data set\\nand more of it")  # dataset, workers
        return self.transformed(torch.ones(3) * i), i % 2
    def transformed(self, x):
        if self.fault == "transform":
            raise Theirs("of the transform")  # transform
        return x

class Net(nn.Linear):
    def forward(self, x):
        if getattr(self, "fault", "") == "forward":
            raise Theirs("of forward")  # forward
        return super().forward(x)

def collate(items):
    raise Theirs("of collate")  # collate

def loss(outputs, targets):
    raise Theirs("of the loss")  # loss

def predict(net, batch):
    raise Theirs("of predict")  # predict

def metric(outputs, targets):
    raise Theirs("of the metric")  # metric

def made(seed, fault="", error=None):
    if fault == "factory":
        raise Theirs("of the factory\\nand more of it")  # factory
    torch.manual_seed(seed)
    known = tw.classification()
    task = tw.Task(
        loss if fault == "loss" else known.loss,
        predict if fault == "predict" else known.predict,
        metrics=dict(mine=metric) if fault == "metric" else None,
    )
    rest = dict(num_workers=1) if fault == "workers" else dict(collate_fn=collate) if fault == "collate" else {}
    model = Net(3, 2)
    model.fault = fault
    return dict(model=model, task=task, train=DataLoader(Data(fault, error), 4, **rest))

def plain(seed):
    return made(seed)

def missing(seed):
    return made(seed, "dataset", FileNotFoundError(2, "No such file or directory", "cat.png"))

""" + "\n".join(
    f"def {fault}_fails(seed):\n    return made(seed, '{fault}')\n"
    for fault in ("dataset", "workers", "transform", "collate", "forward", "loss", "predict", "metric", "factory")
)
SAID = {
    "dataset": "of the data set",
    "workers": "of the data set",
    "transform": "of the transform",
    "collate": "of collate",
    "forward": "of forward",
    "loss": "of the loss",
    "predict": "of predict",
    "metric": "of the metric",
    "factory": "of the factory",
}
COMMANDS = {
    "fit": ["--epochs", 1],
    "connect": ["a.safetensors", "b.safetensors", "--epochs", 1],
    "walk": ["--epochs", 2, "--method", "swa", "--start", "a.safetensors"],
    "scan": ["a.safetensors", "b.safetensors", "--points", 2],
    "ensemble": ["a.safetensors", "b.safetensors"],
}
UNUSED = {("connect", "metric"), ("ensemble", "loss"), ("ensemble", "metric")}


@pytest.fixture(autouse=True, scope="module")
def impatient():
    """Torch waits five seconds for a worker whose error it has passed on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
        yield


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        tw.Weights.of(network(seed)).save(tmp_path / f"{name}.safetensors")
    return tmp_path


def network(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def fit(factory, out="out", *before):
    return invoke(*before, "fit", "--task", f"theirs:{factory}", "--epochs", 1, "--out", out, "--quiet")


def line_of(fault):
    return 1 + next(k for k, line in enumerate(TASK.splitlines()) if "  # " in line and fault in line.split("  # ")[1])


@pytest.mark.parametrize("fault", SAID)
@pytest.mark.parametrize("command", COMMANDS)
def test_error_in_user_code_is_a_sentence_with_the_users_line(command, fault, here):
    result = invoke(command, *COMMANDS[command], "--task", f"theirs:{fault}_fails", "--out", "out", "--quiet")
    if (command, fault) in UNUSED:
        assert result.exit_code == 0, (result.output, result.exception)
        return
    assert result.exit_code == 2, (result.output, result.exception)
    before = "the task factory theirs:factory_fails failed with " if fault == "factory" else ""
    what = rf"(theirs\.)?Theirs: {SAID[fault]} \(/.*/theirs\.py, line {line_of(fault)}\)"
    was = "" if fault == "factory" else r"thalweg was \w.*; "
    expected = rf"thalweg: {before}{what}; (thalweg gave .*; )?{was}the traceback is shown by thalweg --debug \.\.\.\n"
    assert re.fullmatch(expected, result.output), result.output


def test_missing_file_in_the_users_data_set_is_a_sentence_with_the_users_line(here):
    result = fit("missing")
    assert result.exit_code == 2
    where = rf"\(.*theirs\.py, line {line_of('dataset')}\); .*"
    assert re.fullmatch(rf"thalweg: FileNotFoundError: .*cat\.png.* {where}--debug \.\.\.\n", result.output), (
        result.output
    )


@pytest.mark.parametrize("fault", SAID)
def test_debug_option_shows_the_traceback_and_the_sentence(fault, here):
    result = fit(f"{fault}_fails", "out", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.output
    assert TASK.splitlines()[line_of(fault) - 1].split("  # ")[0].strip() in result.output
    assert result.output.splitlines()[-1].startswith("thalweg: ")
    assert "Traceback" not in fit(f"{fault}_fails").output


def test_curve_of_the_users_own_is_refused_by_a_sentence_on_the_command_line(here):
    class Failing(tw.Bezier):
        def coefficients(self, t):
            raise ZeroDivisionError("of the curve")

    Failing(*(tw.Weights.of(network(seed)) for seed in range(2))).save(here / "c.safetensors")
    result = invoke("scan", "c.safetensors", "--task", "theirs:plain", "--out", "out", "--quiet")
    assert result.exit_code == 2
    assert re.fullmatch(
        r"thalweg: c\.safetensors holds a curve of kind .*Failing: load it with Failing\.load\n", result.output
    )


class Theirs(LookupError):
    """Nothing of ours catches it."""


def raising(*_, **__):
    raise Theirs("theirs")


class Items(list):
    def __getitem__(self, i):
        return super().__getitem__(i) if i != 5 else raising()


class ItemsOfWorkers(list):
    def __getitem__(self, i):
        return super().__getitem__(i) if i != 5 or get_worker_info() is None else raising()


class FailingCurve(tw.PolyChain):
    failing = False

    def coefficients(self, t):
        return raising() if self.failing and t > 0.3 else super().coefficients(t)


class FailingNet(nn.Linear):
    forward = raising


def python_calls(fault, run):
    """Public calls whose own code of the user's fails where `fault` says."""
    items = [(torch.ones(3) * i, i % 2) for i in range(8)]
    rest = {"workers": {"num_workers": 1}, "collate": {"collate_fn": raising}}.get(fault, {})
    items = {"dataset": Items, "workers": ItemsOfWorkers}.get(fault, list)(items)
    batches = DataLoader(items, 4, **rest)
    known = tw.classification()
    task = tw.Task(
        raising if fault == "loss" else known.loss,
        raising if fault == "predict" else known.predict,
        metrics={"mine": raising} if fault == "metric" else None,
    )
    net = FailingNet(3, 2) if fault == "forward" else network(0)
    a, b = (tw.Weights.of(network(seed)) for seed in (1, 2))
    curve = FailingCurve(a, b)
    curve.failing = fault == "coefficients"
    rate = {"schedule": raising} if fault == "schedule" else {"lr": 0.1}
    own = {"optimizer": raising} if fault == "optimizer" else {}
    data = {"train": batches}

    def make(seed):
        return raising() if fault == "make" else net

    return {
        "fit": lambda: tw.fit(net, task, batches, epochs=1, run=run, **rate, **own),
        "connect": lambda: tw.connect(net, curve, task, batches, epochs=6, run=run, **rate, **own),
        "walk": lambda: tw.walk(net, task, batches, tw.SWA(lr=0.1), epochs=2, watch=data, run=run, **own),
        "scan": lambda: tw.scan(net, curve, task, data, points=4, run=run),
        "Ensemble": lambda: tw.Ensemble(net, [a, b]).score(task, batches),
        "compare": lambda: tw.compare(
            make, task, batches, batches, [tw.Independent], budget=1, multiples=[1], seeds=[0], run=run
        ),
        "curve_ensemble": lambda: tw.curve_ensemble(net, curve, task, batches, bn_batches=batches, points=4),
    }


EVERYWHERE = ["dataset", "workers", "collate", "forward", "predict"]
PYTHON = {
    "fit": [*EVERYWHERE, "loss", "schedule", "optimizer"],
    "connect": [*EVERYWHERE, "loss", "schedule", "optimizer", "coefficients"],
    "walk": [*EVERYWHERE, "loss", "metric", "optimizer"],
    "scan": [*EVERYWHERE, "loss", "metric", "coefficients"],
    "Ensemble": EVERYWHERE,
    "compare": [*EVERYWHERE, "loss", "make"],
    "curve_ensemble": [*EVERYWHERE, "loss", "coefficients"],
}


@pytest.mark.parametrize("kept", [False, True], ids=["", "with a run folder"])
@pytest.mark.parametrize(("call", "fault"), [(call, fault) for call, faults in PYTHON.items() for fault in faults])
def test_error_in_user_code_stays_what_it_is_in_python_with_a_note_of_the_place(call, fault, kept, tmp_path):
    with pytest.raises(Theirs) as caught:
        python_calls(fault, tmp_path / "run" if kept else None)[call]()
    assert type(caught.value) is Theirs
    [said] = caught.value.args
    assert said == "theirs" or (fault == "workers" and said.endswith("Theirs: theirs\n"))
    assert [note.startswith("thalweg was ") for note in caught.value.__notes__].count(True) == 1, caught.value.__notes__


PLACES = {
    ("fit", "dataset"): "training (1 of 2 done)",
    ("fit", "schedule"): "training (0 of 2 done)",
    ("fit", "optimizer"): "making the optimizer",
    ("connect", "collate"): "connecting (FailingCurve) (0 of 12 done)",
    ("scan", "coefficients"): "asking for the coefficients of FailingCurve at t = 0.3",
    ("scan", "dataset"): "scanning FailingCurve (0 of 4 done)",
    ("scan", "forward"): "trying the first batch",
    ("walk", "metric"): "walking (SWA) (0 of 4 done)",
    ("Ensemble", "dataset"): "predicting (0 of 2 done)",
    ("compare", "make"): "making the network of seed 0",
}


@pytest.mark.parametrize(("call", "fault"), PLACES)
def test_note_says_where_in_the_run_the_users_code_failed(call, fault):
    with pytest.raises(Theirs) as caught:
        python_calls(fault, None)[call]()
    [note] = [note for note in caught.value.__notes__ if note.startswith("thalweg was ")]
    assert note.startswith(f"thalweg was {PLACES[call, fault]}")


def test_update_bn_says_where_the_users_code_failed():
    def batches():
        yield torch.ones(4, 3), None
        raising()

    class Own:
        def __len__(self):
            return 2

        def __iter__(self):
            return batches()

    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(Theirs) as caught:
        tw.update_bn(net, tw.average([tw.Weights.of(net)] * 2), Own())
    assert caught.value.__notes__ == ["thalweg was updating batch-norm statistics"]


def failing_from(call):
    calls = count(1)
    return tw.Task(
        lambda outputs, targets: raising() if next(calls) >= call else tw.classification().loss(outputs, targets)
    )


def test_loss_that_fails_in_any_call_of_a_scan_gets_a_note():
    """In the first pass, at each of two points, and when the last point is measured again."""
    line, batches = (
        tw.Segment(*(tw.Weights.of(network(seed)) for seed in (1, 2))),
        [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))],
    )
    places = []
    for call in range(1, 5):
        with pytest.raises(Theirs) as caught:
            tw.scan(network(0), line, failing_from(call), {"train": batches}, points=2)
        places.append(caught.value.__notes__[-1].removeprefix("thalweg was "))
    points = [f"scanning Segment ({done} of 2 done)" for done in range(2)]
    assert places == ["trying the first batch", *points, "measuring the last point again"]


def test_errors_of_our_own_get_no_note():
    with pytest.raises(tw.ThalwegError) as caught:
        tw.fit(network(0), tw.classification(), [(torch.ones(4, 3), torch.full((4,), 7))], epochs=1, lr=0.1)
    assert not hasattr(caught.value, "__notes__")


def test_error_of_a_worker_keeps_its_type_where_its_text_has_several_lines():
    def chained(i):
        try:
            return {}[i]
        except KeyError as error:
            raise Theirs("first\n  second\nthird") from error

    class Data:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return chained(i)

    with pytest.raises(Theirs) as caught:
        next(iter(DataLoader(Data(), 2, num_workers=1)))
    assert re.match(r"(\w+\.)*Theirs: first \(.*test_error_notes\.py, line \d+\); ", in_a_sentence(caught.value))


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


@pytest.mark.parametrize(
    "given",
    [
        ["connect", "a.safetensors", "LONG", "--out", "out", "--task", "theirs:plain"],
        ["scan", "LONG", "--out", "out", "--task", "theirs:plain"],
        ["plane", "LONG", "--out", "out", "--task", "theirs:plain"],
        ["walk", "--start", "LONG", "--out", "out", "--task", "theirs:plain"],
        ["ensemble", "a.safetensors", "LONG", "--out", "out", "--task", "theirs:plain"],
        ["page", "LONG"],
        ["page", "LONG", "-o", "LONG"],
        ["demo", "--out", "LONG"],
        ["paper", "show", "--out", "LONG"],
    ],
    ids=" ".join,
)
def test_too_long_a_name_is_a_sentence_with_the_name(given, here):
    result = invoke(*(word.replace("LONG", "n" * 300) for word in given))
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.output == (
        f"thalweg: '{'n' * 300}' cannot be a path (File name too long): give the name of a file or a folder\n"
    )
    assert not (here / "out").exists()


@pytest.mark.parametrize("known", ["nothing", "the folder", "a stopped run"])
def test_read_only_disk_is_a_sentence_with_the_path(known, here, monkeypatch):
    """Whatever is there of the run; root may write everywhere, so the system's answer is put in its place."""
    if known != "nothing":
        (here / "out").mkdir()
    if known == "a stopped run":
        assert fit("plain").exit_code == 0
        (here / "out" / "weights.safetensors").unlink()
    before = tree(here)
    writable = open

    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    def read_only(path, mode="r", *rest, **settings):
        return (refuse if set(mode) & set("wa+x") else writable)(path, mode, *rest, **settings)

    for place, name in ((os, "mkdir"), (tempfile, "mkdtemp")):
        monkeypatch.setattr(place, name, refuse)
    monkeypatch.setattr("builtins.open", read_only)
    name = {"nothing": "out", "the folder": r"out/\.lock", "a stopped run": r"out/\.lock"}[known]
    said = rf"{name} could not be written \(Read-only file system\), and what was there before is unchanged: choose .*"
    other = "out holds a run of fit by another" if known == "a stopped run" else said  # which is known before writing
    with pytest.raises(tw.ThalwegError, match=other):
        tw.fit(network(0), tw.classification(), [(torch.ones(2, 3), torch.tensor([0, 1]))], epochs=1, lr=0.1, run="out")
    result = invoke("fit", "--task", "theirs:plain", "--epochs", 1, "--out", "out", "--quiet", "--resume")
    assert result.exit_code == 2
    assert re.fullmatch(rf"thalweg: {said}\n", result.output), result.output
    assert tree(here) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write and read everything")
def test_no_permission_is_a_sentence_with_the_path(here):
    (here / "closed").mkdir(mode=0o500)
    tw.Weights.of(nn.Linear(3, 2)).save(here / "w.safetensors")
    os.chmod(here / "w.safetensors", 0)
    assert "closed/out" in fit("plain", "closed/out").output
    with pytest.raises(tw.ThalwegError, match=r"w\.safetensors cannot be read \(Permission denied\)"):
        tw.Weights.load(here / "w.safetensors")


@pytest.mark.parametrize("command", ["connect", "scan", "plane", "walk", "ensemble"])
def test_key_option_chooses_weights_inside_checkpoints(command, here):
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


@pytest.mark.parametrize("plain", ["plain.pt", "plain.safetensors", "wrapped.pt"])
@pytest.mark.parametrize("command", ["align", "connect", "scan", "plane", "barriers", "ensemble", "walk"])
def test_key_option_leaves_plain_state_dicts_as_they_are(command, plain, here):
    torch.manual_seed(0)
    nets = [nn.Linear(3, 2) for _ in range(4)]
    for name in ("plain.pt", "wrapped.pt"):
        prefix = "module." if name == "wrapped.pt" else ""
        torch.save({f"{prefix}{key}": value for key, value in nets[0].state_dict().items()}, here / name)
    save_file(nets[0].state_dict(), here / "plain.safetensors")
    for number, name in enumerate(("b.ckpt", "c.ckpt"), start=1):
        torch.save({"model": nets[3].state_dict(), "ema": nets[number].state_dict()}, here / name)
    given = [plain, "b.ckpt"] if command != "plane" else [plain, "b.ckpt", "c.ckpt"]
    if command == "walk":
        given = ["--start", plain, "--start", "b.ckpt", "--epochs", 2, "--method", "swa"]
    rest = {"connect": ["--epochs", 1], "scan": ["--points", 2], "plane": ["--grid", 2], "barriers": ["--points", 3]}
    common = [command, *given, *rest.get(command, []), "--task", "theirs:plain"]
    result = invoke(*common, "--out", "out", "--key", "ema")
    assert result.exit_code == 0, (result.output, result.exception)
    if command == "align":
        assert f"next: thalweg connect {plain} out --task theirs:plain --out curve" in result.output
    if command == "connect":
        curve = tw.Curve.load("out/curve.safetensors")
        for end, net in ((curve.start, nets[0]), (curve.end, nets[1])):
            assert torch.equal(end.state_dict()["weight"], net.weight)
    refused = invoke(*common, "--out", "none", "--key", "emma")
    assert refused.exit_code == 2
    assert "b.ckpt holds none of the network's tensors under 'emma'; it holds them under 'model', 'ema': choose" in (
        refused.output
    )
    if command in ("align", "scan"):
        refused = invoke(*[plain if word == "b.ckpt" else word for word in common], "--key", "ema", "--out", "none")
        assert "; it holds them " in refused.output


def test_warnings_point_to_the_line_of_the_caller(tmp_path):
    module, task, x = nn.Linear(1, 1, bias=False), tw.regression(), torch.ones(2, 1)
    points = [tw.Weights.of(nn.Linear(1, 1, bias=False)) for _ in range(2)]
    calls = (
        lambda: tw.scan(module, points, task, [(x, x * float("nan"))]),
        lambda: tw.barriers(module, points, task, [(x, x * float("nan"))], points=3),
        lambda: tw.soup(module, points, tw.Task(lambda y, _: -(y[:, 0] ** 2)), [(x, x)], how="uniform"),
        lambda: tw.fit(module, task, [(x, x)], epochs=1, lr=0.1, keep=[1]).save(tmp_path / "kept.safetensors"),
    )
    for number, value in enumerate((1.0, -1.0)):
        points[number].vector.fill_(value)
    for call in calls:
        with pytest.warns(UserWarning) as seen:  # noqa: PT030
            call()
        assert {warning.filename for warning in seen} == {__file__}


def test_folder_of_networks_lists_what_is_inside(here):
    for seed in range(2):
        tw.Weights.of(nn.Linear(3, 2)).save(here / "ends" / f"seed-{seed}" / "weights.safetensors")
    result = invoke("connect", "ends", "ends", "--task", "theirs:plain", "--out", "out")
    assert result.exit_code == 2
    assert "ends holds no weights.safetensors: give ends/seed-0 ends/seed-1, or one of them" in result.output


def test_arrays_in_place_of_tensors_are_named():
    module, task = nn.Conv2d(1, 1, 1), tw.Task(lambda outputs, targets: outputs.flatten(1).mean(1), metrics={})
    batches = [(torch.ones(2, 1, 3, 3).numpy(), torch.ones(2).numpy())]
    with pytest.raises(TypeError) as error:
        tw.fit(module, task, batches, epochs=1, lr=0.1)
    said = "a batch of (ndarray, ndarray); a batch holds tensors: convert numpy's arrays with torch.as_tensor"
    assert said in error.value.__notes__[0]
    assert "expected one of" not in in_a_sentence(error.value)
