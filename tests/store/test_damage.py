"""Truncations and flipped bits at random places of every kind of file: refused with a sentence, or harmless."""

import random
import shutil
from dataclasses import replace

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.results import Report
from thalweg.store.runs import Run
from thalweg.weightspace.checkpoint import Checkpoint

CASES = 110  # for each of the kinds below


def flat(value):
    return repr(value.to_dict() if hasattr(value, "to_dict") else value)


def weights(path):
    found = tw.Weights.load(path)
    return found.digest(), flat(found.made)


def curve(path):
    found = tw.Curve.load(path)
    return type(found).__name__, [point.digest() for point in found.points]


def checkpoint(path):
    found = Checkpoint.load(path)
    return found.weights.digest(), {k: v.tolist() for k, v in sorted(found.optimizer.items())}, found.kind, found.epoch


def state(path):
    tensors, about = Run(path.parent).load()
    return {name: tensor.tolist() for name, tensor in sorted(tensors.items())}, about


def members(path):
    return [member.digest() for member in tw.Ensemble.load(path.parent, ZOO["conv_bn"].module(1)).members]


KINDS = {
    "weights.safetensors": weights,
    "curve.safetensors": curve,
    "kept-1.safetensors": checkpoint,
    "state.safetensors": state,
    "scan.json": lambda path: flat(tw.Scan.load(path)),
    "trace.json": lambda path: flat(tw.Trace.load(path)),
    "comparison.json": lambda path: flat(tw.Comparison.load(path)),
    "report.json": lambda path: flat(Report.load(path)),
    "ensemble/ensemble.json": members,
    "log.jsonl": lambda path: Run(path.parent).lines(path.name),
    "run.json": lambda path: tw.store.files.load_json(path, "run"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One file of each kind, small enough to be damaged often."""
    path, case = tmp_path_factory.mktemp("files"), ZOO["conv_bn"]
    a, b = case.ends()
    batches = case.batches()
    a.save(path / "weights.safetensors")
    tw.Bezier(a, b).save(path / "curve.safetensors")
    trained = tw.fit(case.module(1), case.task, batches, epochs=3, lr=0.1, keep=[1], run=path / "fit")
    for name in ("log.jsonl", "run.json", "kept-1.safetensors"):
        shutil.copy(path / "fit" / name, path / name)
    Run(path).save({"vector": torch.randn(50)}, {"epoch": 3, "python": list(range(100))})
    tw.scan(case.module(1), [a, b], case.task, {"x": batches}).save(path / "scan.json")
    walk = tw.walk(case.module(1), case.task, batches, tw.SWA(lr=0.1), epochs=2)
    walk.traces[0].save(path / "trace.json")
    ensemble = tw.Ensemble(case.module(1), [replace(trained, kept={})])
    ensemble.save(path / "ensemble")
    ensemble.report(case.task, batches).save(path / "report.json")
    arguments = (case.module, case.task, batches, batches, [tw.Independent()])
    tw.compare(*arguments, budget=2, seeds=(1,), multiples=(1,)).save(path / "comparison.json")
    return path


def attempt(read, path):
    try:
        return read(path)
    except tw.ThalwegError as error:
        return error


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_harmless(name, folder):
    path, read, dice = folder / name, KINDS[name], random.Random(name)
    original, whole = path.read_bytes(), read(folder / name)
    refused = 0
    try:
        for case in range(CASES):
            if case % 3 == 0:
                damaged = original[: dice.randrange(len(original))]
            else:
                place = dice.randrange(len(original))
                damaged = original[:place] + bytes([original[place] ^ 1 << dice.randrange(8)]) + original[place + 1 :]
            path.write_bytes(damaged)
            found = attempt(read, path)
            if isinstance(found, tw.ThalwegError):
                refused += 1
                assert path.name in str(found)
            else:
                assert found == (whole[: len(found)] if name == "log.jsonl" else whole)
    finally:
        path.write_bytes(original)
    assert refused > CASES / 3 or name == "log.jsonl"
