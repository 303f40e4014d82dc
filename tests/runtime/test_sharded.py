"""Networks in shards: what several processes compute with a part of it each is what one computes with the whole."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import shard_worker as worker
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import thalweg as tw
from thalweg.store import files

SOURCE = Path(tw.__file__).parents[1]  # so that the processes run this copy
STEPS = (
    "curves-2",
    "curves-4",
    "files-3",
    "killed-2",
    "resumed-3",
    "largest-4",
    "broken-2",
    "example-2",
    "commands-2",
    "lone-2",
    "unequal-2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all ranks have written what they found."""
    folder = tmp_path_factory.mktemp("shards")
    worker.connected("tied", "plain").save(folder / "whole.safetensors")
    path = f"{Path(worker.__file__).parent}:{SOURCE}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, worker.__file__, str(folder), *STEPS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def found(folder, name, rank=0):
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=True)


def off(one, two):
    return float((one - two).norm() / two.norm())


@pytest.fixture(scope="module")
def alone():
    bends = {pair: torch.stack([bend.vector for bend in worker.connected(*pair).bends]) for pair in worker.CURVES}
    return {f"{kind} {variant}": value for (kind, variant), value in bends.items()}


@pytest.mark.parametrize(("number", "tried"), [(2, worker.CURVES), (4, worker.FOUR)])
def test_curves_in_shards_are_those_of_connect(number, tried, folder, alone):
    ours = found(folder, f"curves-{number}")
    for name in map(" ".join, tried):
        assert off(ours[name], alone[name]) < 1e-12, name


@pytest.mark.parametrize("number", [2, 4])
def test_scans_in_shards_are_those_of_whole_networks(number, folder):
    ours, curve = found(folder, f"curves-{number}"), worker.connected("tied", "plain")
    for name, values in worker.measured(worker.scanned("tied", curve), curve).items():
        assert torch.allclose(ours[name], values, rtol=1e-12, atol=0), name


def test_fits_in_shards_are_those_of_whole_networks(folder):
    assert off(found(folder, "curves-2")["fit"], worker.fitted("tied").vector) < 1e-12


@pytest.mark.parametrize("number", [2, 4])
def test_curve_saved_in_shards_is_read_as_one(number, folder, alone):
    curve = tw.Curve.load(folder / f"tied-{number}")
    start, end = worker.ends("tied")
    assert (curve.start.digest(), curve.end.digest()) == (start.digest(), end.digest())
    assert off(torch.stack([bend.vector for bend in curve.bends]), alone["tied plain"]) < 1e-12
    curve.point(0.3).load_into(worker.made("tied", 0))


def test_files_in_shards_are_read_by_another_number_of_ranks_and_whole_ones_in_shards(folder, alone):
    ours, ends = found(folder, "files-3"), worker.ends("tied")
    for name in ("tied-2", "whole"):
        assert off(ours[name], alone["tied plain"]) < 1e-12
        assert torch.equal(ours[f"{name} adapter"], ends[0].frozen["adapter.weight"])
    assert [ours["digest 0"], ours["digest 1"]] == [end.digest() for end in ends]


def test_killed_run_in_shards_is_resumed_by_another_number_of_ranks(folder, alone):
    ours = found(folder, "resumed-3")
    assert ours["state"]  # so that it was not run from the start
    assert off(ours["curve"], alone["tied adamw"]) < 1e-12
    assert torch.equal(ours["again"], ours["curve"][1])
    assert off(tw.Curve.load(folder / "run").bends[0].vector, alone["tied adamw"][0]) < 1e-12
    assert not [path.name for path in (folder / "run").iterdir() if path.name.startswith("state")]


def test_sharded_rank_holds_no_whole_vector(folder):
    """The largest tensor is the three points of a curve in one block, of a quarter of the weights each."""
    for rank in range(4):
        seen = found(folder, "largest-4", rank)
        assert seen["vector"] == seen["size"] // 4
        assert 3 * seen["vector"] <= seen["elements"] < seen["size"]


def test_sharded_weights_not_finite_on_one_rank_are_an_error_of_all(folder):
    for rank in range(2):
        error = found(folder, "broken-2", rank)["error"]
        assert error.startswith(
            "Diverged: the weights or their batch-norm statistics are no longer finite after step 4"
        )


def test_sharded_curve_example_runs(folder):
    printed = found(folder, "example-2")["printed"]
    assert printed.startswith("Segment, length ratio 1.00")
    assert "2 processes, each with 0.50 of every vector" in printed


def test_sharded_ranks_that_make_other_networks_are_named(folder):
    for rank in range(2):
        error = found(folder, "unequal-2", rank)["error"]
        assert error.endswith("the same network: 'weight' is (2, 3) in process 0 and (3, 3) in process 1")


def test_sharded_rank_without_any_weight_takes_part(folder):
    assert [found(folder, "lone-2", rank)["size"] for rank in range(2)] == [1, 0]
    alone = worker.one_weight(worker.lonely())
    assert tw.Weights.load(folder / "lone.safetensors").vector.item() == pytest.approx(alone.vector.item(), rel=1e-12)


def test_commands_take_a_sharded_network(folder):
    curve, scan = tw.Curve.load(folder / "connected"), tw.Scan.load(folder / "scanned")
    again = tw.scan(worker.made("mlp", 0), curve, worker.task("mlp"), {"x": worker.batches("mlp")}, points=3)
    assert scan.values["x"]["loss"] == pytest.approx(again.values["x"]["loss"], rel=1e-12)
    assert curve.bends[0].distance(tw.Segment(curve.start, curve.end).point(0.5)) > 0


@pytest.fixture
def one_rank():
    """A process group of one, in which networks can be divided, too."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with tw.distributed():
            yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["mlp", "tied"])
def test_sharded_works_on_one_rank(kind, one_rank, tmp_path):
    """Though whole and divided tensors have the same shapes there."""
    whole, network = worker.connected(kind, "clip"), tw.sharded(worker.in_shards(kind))
    curve = worker.connected(kind, "clip", network, run=tmp_path / "run")
    assert off(curve.bends[0].vector, whole.bends[0].vector) < 1e-12
    ours, theirs = (worker.scanned(kind, *pair).values["x"]["loss"] for pair in ((curve, network), (whole,)))
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_sharded_leaves_the_callers_random_state(one_rank):
    network = tw.sharded(lambda: fully_shard(nn.Linear(3, 2)))
    data, before = [(torch.ones(2, 3), torch.ones(2, 2))], torch.get_rng_state()
    tw.fit(network, tw.regression(), data, epochs=1, lr=0.1, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


REFUSED = {
    "batch norm": (
        lambda: fully_shard(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
        r"batch norm \('1.running_mean'\)",
    ),
    "no shards": (lambda: nn.Linear(2, 2), "returned a Linear without"),
    "not a network": (lambda: 3, "returned a int without"),
    "two dtypes": (
        lambda: fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())),
        "must have one dtype",
    ),
    "nothing moves": (lambda: fully_shard(nn.Linear(2, 2).requires_grad_(False)), "none moves"),
    "meta": (lambda: fully_shard(nn.Linear(2, 2, device="meta")), "'weight' has no values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sharded_refuses_networks_that_cannot_be_divided(name, one_rank):
    make, message = REFUSED[name]
    with pytest.raises(tw.ThalwegError, match=message):
        tw.sharded(make)


def test_sharded_network_is_refused_where_a_whole_one_is_needed(one_rank, tmp_path):
    network = tw.sharded(worker.in_shards("mlp"))
    weights, data = tw.Weights.of(network), worker.batches("mlp")
    for call in (
        lambda: tw.Ensemble(network, [weights]),
        lambda: tw.walk(network, tw.classification(), data, tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01), epochs=2),
        lambda: tw.align(network, weights, weights, tw.classification(), data),
    ):
        with pytest.raises(tw.ThalwegError, match="in shards can be used in fit, connect and scan"):
            call()
    with pytest.raises(tw.ThalwegError, match="use Plane"):
        tw.Plane.around(weights)
    with pytest.raises(tw.ThalwegError, match="keep= is for whole networks"):
        tw.fit(network, tw.classification(), data, epochs=2, lr=0.1, keep=[1], run=tmp_path / "run")


def test_module_under_fully_shard_is_refused_without_its_function(one_rank):
    module = worker.in_shards("mlp")()
    for call in (tw.Weights.of, lambda module: worker.scanned("mlp", tw.Segment(*worker.ends("mlp")), module)):
        with pytest.raises(tw.ThalwegError, match=r"network = thalweg.sharded\(make\)"):
            call(module)


def test_sharded_vectors_on_the_cpu_are_not_copied_to_gpus(one_rank):
    weights = tw.Weights.of(tw.sharded(worker.in_shards("mlp")))
    gpus = SimpleNamespace(device_type="cuda", mesh=weights.layout.mesh.mesh)
    for part in replace(weights.layout, mesh=gpus).split(weights.vector).values():
        part.to_local().zero_()
    assert not weights.vector.any()


def test_sharded_and_whole_weights_do_not_mix(one_rank):
    network = tw.sharded(worker.in_shards("mlp"))
    whole = worker.ends("mlp")[0]
    for where, pair in {"start": (tw.Weights.of(network), whole), "end": (whole, tw.Weights.of(network))}.items():
        with pytest.raises(tw.ThalwegError, match=f"the division 'among 1 ranks' is in {where} only"):
            tw.Bezier(*pair)


def test_sharded_function_must_make_a_new_network(one_rank):
    network = fully_shard(nn.Linear(3, 3))
    data = [(torch.ones(2, 3), torch.ones(2, 3))]
    with pytest.raises(tw.ThalwegError, match="returned the same network again"):
        tw.fit(tw.sharded(lambda: network), tw.regression(), data, epochs=1, lr=0.1)


def test_sharded_refuses_another_network_made_by_the_function(one_rank):
    widths = iter([3, 4])
    network = tw.sharded(lambda: fully_shard(nn.Linear(3, next(widths))))
    data = [(torch.ones(2, 3), torch.ones(2, 3))]
    with pytest.raises(tw.ThalwegError, match="'weight' is \\(3, 3\\) in the network and \\(4, 3\\) in the one that"):
        tw.fit(network, tw.regression(), data, epochs=1, lr=0.1)


@pytest.mark.parametrize("damage", ["flipped", "missing", "elsewhere", "another network"])
def test_damaged_shards_are_refused(damage, one_rank, tmp_path):
    network, path = tw.sharded(worker.in_shards("mlp")), tmp_path / "a.safetensors"
    tw.Weights.of(network).save(path)
    [shards] = tmp_path.glob("a-shards-*")
    [file] = shards.iterdir()
    if damage == "flipped":
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    elif damage == "missing":
        file.unlink()
        shards.rmdir()
    elif damage == "elsewhere":
        tensors, about = files.load_tensors(path, "weights", whole=False)
        about["shards"]["folder"] = "../a-shards-0123456789abcdef"
        files.save_tensors(path, "weights", tensors, about)
    other = tw.sharded(lambda: fully_shard(nn.Linear(3, 7).double()))
    said = {
        "flipped": "is damaged: its files are not those that a.safetensors names",
        "missing": "which is not next to it: keep both in one folder",
        "elsewhere": "which thalweg did not write",
        "another network": "the network is another one: '0.bias'",
    }[damage]
    for module in [other] if damage == "another network" else [network, None]:
        with pytest.raises(tw.ThalwegError, match=said):
            tw.Weights.load(path, module)


def test_save_replaces_earlier_shards(one_rank, tmp_path):
    path = tmp_path / "a.safetensors"
    for seed in (1, 2):
        weights = tw.Weights.of(tw.sharded(worker.in_shards("mlp", seed)))
        weights.save(path)
        assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(tw.Weights.load(path).vector, weights.vector)


def test_save_in_shards_never_deletes_foreign_folders(one_rank, tmp_path):
    path, number = tmp_path / "a.safetensors", "0123456789abcdef"
    others = [tmp_path / "a-shards-backup" / "mine", tmp_path / f"a-shards-{number}" / "notes.txt"]
    others += [tmp_path / f"aa-shards-{number}" / "shard-1.safetensors"]
    for file in others:
        file.parent.mkdir()
        file.write_text("mine")
    for seed in (1, 2):
        tw.Weights.of(tw.sharded(worker.in_shards("mlp", seed))).save(path)
    assert [file.read_text() for file in others] == ["mine"] * 3
    assert len(list(tmp_path.iterdir())) == 5
