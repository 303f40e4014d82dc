"""Checkpoints of other people's making, found and read the same in Python and on the command line."""

import argparse
import shlex
import subprocess
import sys
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import thalweg as tw


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(weights, module):
    mine, theirs = weights.state_dict(), module.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def prefixed(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def written(path, content):
    """As .pt whatever it is, as .safetensors if it is flat."""
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


WRAPPERS = {
    "plain": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3},
    "model_state": lambda s: {
        "epoch": 3,
        "model_state": s,
        "optimizer_state": {"state": {0: {"momentum_buffer": torch.ones(3)}}},
    },
    "model": lambda s: {"model": s},
    "anything": lambda s: {"run": {"nets": {"student": s}}},
}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model.", "net.", "my_net."])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_load_finds_weights_in_wrappers_and_behind_prefixes(wrapper, prefix, tmp_path):
    module = network(1)
    for suffix in (".pt", ".pth", ".ckpt", ".bin"):
        path = written(tmp_path / f"c{suffix}", WRAPPERS[wrapper](prefixed(prefix, module.state_dict())))
        assert same(tw.Weights.load(path, network()), module)
        assert same(tw.Weights.load(path, network()), module)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model."])
@pytest.mark.parametrize("name", ["c.safetensors", "c.bin"])
def test_checkpoint_safetensors_are_read_like_pickles(name, prefix, tmp_path):
    save_file(prefixed(prefix, network(1).state_dict()), tmp_path / name, metadata={"format": "pt"})
    assert same(tw.Weights.load(tmp_path / name, network()), network(1))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("part", ["module", "_orig_mod", "model", "net"])
def test_weights_load_keeps_a_prefix_that_the_network_has(part, suffix, tmp_path):
    class Wrapped(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.add_module(part, network(seed))

    path = written(tmp_path / f"c{suffix}", Wrapped(1).state_dict())
    assert same(tw.Weights.load(path, Wrapped(0)), Wrapped(1))
    path = written(tmp_path / f"twice{suffix}", prefixed(f"{part}.", Wrapped(1).state_dict()))
    assert same(tw.Weights.load(path, Wrapped(0)), Wrapped(1))


def test_weights_load_of_an_averaged_model(tmp_path):
    averaged = AveragedModel(network(1))
    assert same(tw.Weights.load(written(tmp_path / "a.pt", averaged.state_dict()), network()), network(1))
    path = written(tmp_path / "b.pt", {"model": network(2).state_dict(), "swa": averaged.state_dict()})
    assert same(tw.Weights.load(path, network(), key="swa"), network(1))
    state = {name: value.clone() for name, value in averaged.state_dict().items()}
    assert same(tw.Weights.load(written(tmp_path / "c.safetensors", state), network()), network(1))


def test_weights_load_key_chooses_among_several(tmp_path):
    content = {
        "state_dict": network(1).state_dict(),
        "state_dict_ema": network(2).state_dict(),
        "ema": {"net": network(3).state_dict()},
    }
    path = written(tmp_path / "c.pt", content)
    with pytest.raises(tw.ThalwegError, match=r"under 'state_dict', 'state_dict_ema', 'ema\.net': choose with key="):
        tw.Weights.load(path, network())
    for key, seed in (("state_dict", 1), ("state_dict_ema", 2), ("ema", 3), ("ema.net", 3)):
        assert same(tw.Weights.load(path, network(), key), network(seed))
    with pytest.raises(
        tw.ThalwegError,
        match=r"under 'nothing'; it holds them under 'state_dict', 'state_dict_ema', 'ema\.net': choose with key=",
    ):
        tw.Weights.load(path, network(), "nothing")
    path = written(tmp_path / "plain.pt", network(1).state_dict())
    with pytest.raises(tw.ThalwegError, match="tensors under 'ema'; it holds them at its top: leave key= out"):
        tw.Weights.load(path, network(), "ema")


def test_weights_load_prefers_the_top_level(tmp_path):
    path = written(tmp_path / "c.pt", {**network(1).state_dict(), "ema": network(2).state_dict()})
    assert same(tw.Weights.load(path, network()), network(1))
    assert same(tw.Weights.load(path, network(), "ema"), network(2))


@pytest.mark.parametrize(
    ("suffix", "keys"), [(".pt", r"'state_dict\.net', 'state_dict\.ema'"), (".safetensors", "'ema', 'net'")]
)
def test_weights_load_of_two_networks_asks_which(suffix, keys, tmp_path):
    state = {**prefixed("net.", network(1).state_dict()), **prefixed("ema.", network(2).state_dict())}
    path = written(tmp_path / f"c{suffix}", state if suffix == ".safetensors" else {"state_dict": state, "epoch": 3})
    with pytest.raises(tw.ThalwegError, match=f"under {keys}: choose"):
        tw.Weights.load(path, network())
    assert same(tw.Weights.load(path, network(), "ema"), network(2))


def test_weights_load_refuses_part_of_a_larger_network(tmp_path):
    path = written(tmp_path / "c.pt", {"0.weight": torch.ones(2, 2), **prefixed("head.", nn.Linear(3, 2).state_dict())})
    with pytest.raises(tw.ThalwegError, match="under 'head': choose"):
        tw.Weights.load(path, nn.Linear(3, 2))
    tw.Weights.load(path, nn.Linear(3, 2), "head")


def test_weights_load_names_what_does_not_fit(tmp_path):
    state = network(1).state_dict()
    for change, named in (
        ({"2.weight": torch.ones(5, 4)}, r"'2\.weight' is \(5, 4\)"),
        ({"more": torch.ones(1)}, "'more' is in the state dict but not in the network"),
        ({"2.bias": torch.ones(2, dtype=torch.int8)}, r"'2\.bias' is torch\.int8"),
        ({"2.bias": torch.ones(2, dtype=torch.complex64)}, r"'2\.bias' is torch\.complex64"),
    ):
        with pytest.raises(tw.ThalwegError, match=rf"c\.pt.*{named}"):
            tw.Weights.load(written(tmp_path / "c.pt", {"model": prefixed("module.", {**state, **change})}), network())
    del state["2.bias"]
    with pytest.raises(tw.ThalwegError, match=r"c\.pt.*'2\.bias' is in the network but not in the state dict"):
        tw.Weights.load(written(tmp_path / "c.pt", state), network())


def test_weights_load_takes_tied_weights_under_either_name(tmp_path):
    def tied(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        net[1].weight = net[0].weight
        return net

    for name in ("0.weight", "1.weight"):
        path = written(tmp_path / "t.safetensors", {name: tied(1)[0].weight.detach()})
        assert same(tw.Weights.load(path, tied(0)), tied(1))


def test_weights_load_checks_files_against_the_network(tmp_path):
    tw.Weights.of(network(1)).save(tmp_path / "w.safetensors")
    assert same(tw.Weights.load(tmp_path / "w.safetensors", network(), "ema"), network(1))
    with pytest.raises(tw.ThalwegError, match=r"'weight' is in the network but not in .*w\.safetensors"):
        tw.Weights.load(tmp_path / "w.safetensors", nn.Linear(3, 2))


def helper(values):
    return values


REFUSED = {
    "module": lambda: network(1),
    "sync": lambda: {"model": nn.SyncBatchNorm.convert_sync_batchnorm(network(1))},
    "function": lambda: {"state_dict": network(1).state_dict(), "collate": helper},
    "options": lambda: {"state_dict": network(1).state_dict(), "args": argparse.Namespace(lr=0.1)},
    "ema": lambda: {"ema": network(1), "args": argparse.Namespace(lr=0.1)},
}


def run_here(line, monkeypatch):
    """A line that runs Python, read as a shell reads it, without another process, which would import torch."""
    program, command, code, *arguments = shlex.split(line)
    assert (program, command) == (sys.executable, "-c")
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with warnings.catch_warnings(action="ignore"):
        exec(code, {})


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_pickle_comes_with_a_convert_line(name, old, tmp_path, monkeypatch):
    path = tmp_path / "it's mine; $HOME.pt"
    torch.save(REFUSED[name](), path, _use_new_zipfile_serialization=not old)
    with pytest.raises(tw.ThalwegError, match="holds more than tensors") as refusal:
        tw.Weights.load(path, network(), "ema" if name == "ema" else None)
    line = str(refusal.value).splitlines()[-1]
    if (name, old) == ("options", True):
        subprocess.run(line, shell=True, check=True, capture_output=True)
    else:
        run_here(line, monkeypatch)
    assert same(tw.Weights.load(f"{path}.safetensors", network()), network(1))


def test_convert_line_overwrites_nothing(tmp_path, monkeypatch):
    torch.save(network(1), tmp_path / "c.pt")
    (tmp_path / "c.pt.safetensors").write_text("mine")
    with pytest.raises(tw.ThalwegError) as refusal:
        tw.Weights.load(tmp_path / "c.pt", network())
    with pytest.raises(FileExistsError):
        run_here(str(refusal.value).splitlines()[-1], monkeypatch)
    assert (tmp_path / "c.pt.safetensors").read_text() == "mine"


def test_refused_scripted_module_comes_with_a_convert_line(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, but its files are still around
        torch.jit.save(torch.jit.script(network(1)), tmp_path / "s.pt")
    with pytest.raises(tw.ThalwegError, match="holds more than tensors") as refusal:
        tw.Weights.load(tmp_path / "s.pt", network())
    run_here(str(refusal.value).splitlines()[-1], monkeypatch)
    assert same(tw.Weights.load(tmp_path / "s.pt.safetensors", network()), network(1))


@pytest.mark.parametrize("new", [True, False])
def test_checkpoint_cut_short_anywhere_is_refused(new, tmp_path):
    path = tmp_path / "c.pt"
    torch.save({"state_dict": network(1).state_dict()}, path, _use_new_zipfile_serialization=new)
    content = path.read_bytes()
    for end in range(0, len(content), 37):
        path.write_bytes(content[:end])
        with pytest.raises(tw.ThalwegError, match=r"c\.pt"):
            tw.Weights.load(path, network())


def test_checkpoint_archives_that_torch_never_writes_are_refused(tmp_path):
    path = written(tmp_path / "c.pt", network(1).state_dict())
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for name, content in entries.items():
            bomb.writestr(name, content + bytes(10**7 if name.endswith("data/0") else 0))
    with pytest.raises(tw.ThalwegError, match=r"bomb\.pt is not a whole checkpoint .*more than ten times"):
        tw.Weights.load(tmp_path / "bomb.pt", network())
    with zipfile.ZipFile(tmp_path / "twice.pt", "w") as twice, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in [*entries.items(), *entries.items()]:
            twice.writestr(name, content)
    with pytest.raises(tw.ThalwegError, match=r"twice\.pt is not a whole checkpoint .*two files of one name"):
        tw.Weights.load(tmp_path / "twice.pt", network())


def test_checkpoint_with_unusual_contents_is_refused(tmp_path):
    deep = {"weight": torch.ones(1)}
    for _ in range(200):
        deep = {"model": deep}
    around = {}
    around["self"] = around
    for content in ([1, 2], torch.ones(3), {"a": 1}, {}, deep, around, {"weight": torch.ones(2, 2).to_sparse()}):
        with pytest.raises(tw.ThalwegError, match=r"c\.pt must hold a state dict"):
            tw.Weights.load(written(tmp_path / "c.pt", content), network())


@pytest.mark.parametrize("text", ["import torch\n", "Python\n", "{}"])
def test_file_that_is_no_checkpoint_is_not_called_truncated(text, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(
        tw.ThalwegError,
        match=r"mine\.py is not a checkpoint: give a file that thalweg, torch\.save or safetensors wrote$",
    ):
        tw.Weights.load(tmp_path / "mine.py", torch.nn.Linear(2, 1))


def test_empty_or_cut_checkpoint_is_called_truncated(tmp_path):
    torch.save(torch.nn.Linear(2, 1).state_dict(), tmp_path / "net.pt")
    content = (tmp_path / "net.pt").read_bytes()
    for size in (0, 100, len(content) // 2):
        (tmp_path / "net.pt").write_bytes(content[:size])
        with pytest.raises(tw.ThalwegError, match=r"net\.pt is not a whole checkpoint .*: it may be truncated"):
            tw.Weights.load(tmp_path / "net.pt", torch.nn.Linear(2, 1))
