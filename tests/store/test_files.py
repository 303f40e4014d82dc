"""Files: whole or not at all, refused when damaged, read without running code."""

import os
import pickle
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.store import files
from thalweg.weightspace.checkpoint import Checkpoint


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "w.safetensors"
    tw.Weights.of(ZOO["conv_bn"].module(1)).save(path)
    return path


def test_write_that_fails_leaves_the_old_file_and_no_litter(saved):
    before = saved.read_bytes()

    def writer(temporary: Path):
        temporary.write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(tw.ThalwegError, match=r"could not be written.*no space"):
        files.write(saved, writer)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_save_names_a_dtype_that_files_do_not_hold(tmp_path):
    module = nn.Linear(2, 1)
    module.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(
        tw.ThalwegError, match=r"phase' cannot be saved, since a safetensors file holds no torch.complex128"
    ):
        tw.Weights.of(module).save(tmp_path / "w.safetensors")
    assert not [*tmp_path.iterdir()]


def test_files_of_equal_content_have_equal_bytes(tmp_path):
    about = {"name": 'caf\u00e9 "quoted" / \x01\n', "values": [1.5, None]}
    for k in range(8):
        files.save_tensors(tmp_path / str(k), "odd", {"b": torch.ones(3), "a": torch.zeros(2, 2)}, about)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    tensors, kept = files.load_tensors(tmp_path / "0", "odd")
    assert kept == about
    assert torch.equal(tensors["b"], torch.ones(3))


def test_files_can_be_read_by_others(saved):
    from safetensors.torch import load_file

    module = ZOO["conv_bn"].module(2)
    module.load_state_dict(load_file(saved))
    assert torch.equal(tw.Weights.of(module).vector, tw.Weights.load(saved).vector)
    umask = os.umask(0)
    os.umask(umask)
    assert saved.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(tw.ThalwegError, match=r"w\.safetensors is not a whole safetensors file"):
        tw.Weights.load(saved)


def test_flipped_bits_are_refused(saved):
    content, chance = saved.read_bytes(), random.Random(0)
    for _ in range(200):
        place = chance.randrange(len(content))
        saved.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
        with pytest.raises(tw.ThalwegError, match=r"w\.safetensors"):
            tw.Weights.load(saved)


def test_json_file_is_covered_by_a_hash(tmp_path):
    path = tmp_path / "r.json"
    files.save_json(path, "scan", {"a": [0.1, float("nan"), 1e-300], "b": "ü"})
    assert files.load_json(path, "scan")["a"][2] == 1e-300
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(tw.ThalwegError, match="damaged or was edited"):
        files.load_json(path, "scan")
    path.write_text(path.read_text()[:40])
    with pytest.raises(tw.ThalwegError, match="not a whole JSON file"):
        files.load_json(path, "scan")


def test_file_of_another_kind_or_a_newer_format_is_refused(saved, tmp_path, monkeypatch):
    with pytest.raises(tw.ThalwegError, match="must be a curve file, but it is a weights file: check the path"):
        tw.Curve.load(saved)
    monkeypatch.setattr(files, "FORMAT", 2)
    tw.Weights.of(nn.Linear(1, 1)).save(tmp_path / "new.safetensors")
    monkeypatch.undo()
    with pytest.raises(tw.ThalwegError, match="has format 2; this thalweg reads format 1"):
        tw.Weights.load(tmp_path / "new.safetensors")


LOADS = {
    "permutation": tw.Permutation.load,
    "curve": tw.Curve.load,
    "swag": tw.SWAG.load,
    "checkpoint": Checkpoint.load,
}


@pytest.mark.parametrize("kind", LOADS)
def test_loaders_without_module_do_not_advise_it(kind, tmp_path):
    (tmp_path / "t.txt").write_text("mine, and nothing of thalweg\n")
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "net.pt")
    for name in ("t.txt", "net.pt"):
        with pytest.raises(
            tw.ThalwegError, match=rf"{name} must be a {kind} file, but thalweg did not write it: check the path$"
        ):
            LOADS[kind](tmp_path / name)


def test_files_of_another_kind_are_named_with_their_article(saved, tmp_path):
    swag = tw.SWAG()
    swag.collect(tw.Weights.of(nn.Linear(1, 1)))
    swag.save(tmp_path / "swag.safetensors")
    with pytest.raises(tw.ThalwegError, match="must be a permutation file, but it is a swag file: check the path"):
        tw.Permutation.load(tmp_path / "swag.safetensors")
    with pytest.raises(tw.ThalwegError, match="must be a permutation file, but it is a weights file: check the path"):
        tw.Permutation.load(saved)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(tw.ThalwegError, match="nothing does not exist: check the path"):
        tw.Weights.load(tmp_path / "nothing")


class Payload:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickle_that_would_run_code_is_refused_and_did_not_run(tmp_path):
    target = tmp_path / "ran"
    torch.save({"weight": Payload(target)}, tmp_path / "bad.pt")
    with pytest.raises(tw.ThalwegError, match=r"bad\.pt holds more than tensors"):
        tw.Weights.load(tmp_path / "bad.pt", nn.Linear(2, 2))
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Payload(target)))
    with pytest.raises(tw.ThalwegError, match=r"raw\.pt"):
        tw.Weights.load(tmp_path / "raw.pt", nn.Linear(2, 2))
    assert not target.exists()


def reference_checkpoint(module, points, bezier):
    """A curve as the paper's public code saves it: control points beside each other, buffers once, the basis on top."""
    state = {}
    for i, point in enumerate(points):
        state |= {f"net.{name}_{i}": tensor.clone() for name, tensor in point.layout.split(point.vector).items()}
    state |= {f"net.{name}": tensor for name, tensor in tw.Weights.of(module).buffers.items()}
    state["coeff_layer.range"] = torch.arange(3.0)
    if bezier:
        state["coeff_layer.binom"] = torch.tensor([1.0, 2.0, 1.0])
    return {"epoch": 200, "model_state": state, "optimizer_state": {"state": {}, "param_groups": [{"lr": 0.01}]}}


@pytest.mark.parametrize("kind", [tw.Bezier, tw.PolyChain])
def test_load_curves_of_the_papers_public_code(kind, tmp_path):
    from thalweg.loading import is_curve, load_curve

    case = ZOO["conv_bn"]
    points = [tw.Weights.of(case.module(seed)) for seed in range(3)]
    torch.save(reference_checkpoint(case.module(0), points, kind is tw.Bezier), tmp_path / "checkpoint-200.pt")
    assert is_curve(tmp_path / "checkpoint-200.pt")
    curve = load_curve(tmp_path / "checkpoint-200.pt", case.module(5))
    assert type(curve) is kind
    assert all(torch.equal(ours.vector, theirs.vector) for ours, theirs in zip(curve.points, points, strict=True))
    scan = tw.scan(case.module(5), curve, case.task, {"x": case.batches()}, points=3, bn_batches=case.batches())
    assert scan.name == kind.__name__
    with pytest.raises(tw.ThalwegError, match=r"has tensors named net\.\*_0"):
        tw.Curve.from_state(case.module(1).state_dict(), case.module(1))


PATHS = {
    "in another encoding": ("caf\udce9.safetensors", r"'caf\\udce9.safetensors' cannot be a path \('utf-8' codec"),
    "a number": (5, r"'5' cannot be a path \(.*os.PathLike object"),
    "a list": (["a"], "cannot be a path"),
    "bytes": (b"a", "cannot be a path"),
    "a name with a NUL byte": ("a\0b", r"cannot be a path \(embedded null byte\)"),
    "a name that is too long": ("n" * 300, r"cannot be a path \(File name too long\): give the name of a file"),
}
BATCHES = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]


def calls_with_a_path(net):
    task, weights, methods = tw.classification(), tw.Weights.of(net), [tw.Independent]
    common = {"budget": 1, "multiples": [1], "seeds": [0]}
    scan = tw.scan(net, [weights], task, {"x": BATCHES})
    return {
        "fit": lambda path: tw.fit(net, task, BATCHES, epochs=1, lr=0.1, run=path),
        "scan": lambda path: tw.scan(net, [weights], task, {"x": BATCHES}, run=path),
        "walk": lambda path: tw.walk(net, task, BATCHES, tw.SWA(lr=0.1), epochs=1, run=path),
        "compare": lambda path: tw.compare(lambda seed: net, task, BATCHES, BATCHES, methods, run=path, **common),
        "Weights.load": tw.Weights.load,
        "Weights.load with a module": lambda path: tw.Weights.load(path, net),
        "Weights.save": weights.save,
        "Curve.load": tw.Curve.load,
        "Curve.save": tw.Segment(weights, weights).save,
        "Scan.load": tw.Scan.load,
        "Scan.save": scan.save,
        "Ensemble.load": lambda path: tw.Ensemble.load(path, net),
        "Ensemble.save": tw.Ensemble(net, [weights]).save,
        "Checkpoint.load": Checkpoint.load,
        "Checkpoint.save": Checkpoint(weights, {}, "SGD", 1).save,
        "page": lambda path: tw.page.write(path, []),
        "page of": lambda path: tw.page.write("page.html", [path]),
    }


@pytest.mark.parametrize("kind", PATHS)
def test_bad_paths_are_refused_in_every_call(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, said = PATHS[kind]
    for call in calls_with_a_path(nn.Linear(3, 2)).values():
        with pytest.raises(tw.ThalwegError, match=said):
            call(path)
    assert not [*tmp_path.iterdir()]
