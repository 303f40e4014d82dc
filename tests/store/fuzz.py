"""Mutations of every kind of file that is read: each must be refused by a sentence, or change nothing.

    python tests/store/fuzz.py 20000

Chunks run in forked children, so that a crash of the interpreter counts, under limits on memory and time.
"""

import copy
import gzip
import json
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from run_folders import RECORD, barriers, comparison, curve, report
from safetensors.torch import save_file
from zoo import ZOO

import thalweg as tw
from thalweg.paper.data import fetch, readers
from thalweg.paper.data.fetch import SETS
from thalweg.paper.data.readers import read_pickle
from thalweg.reporting import page
from thalweg.reporting.result import Claim, Result
from thalweg.results import CurveEnsemble, Report
from thalweg.store import files
from thalweg.store.runs import Run
from thalweg.weightspace.checkpoint import Checkpoint

MEMORY, SECONDS = 6 * 2**30, 20  # of address space, and for one mutation
CASE = ZOO["conv_bn"]
FINE = {"refused", "same", "other"}
Reader = Callable[[Path], object]


def adapted(seed):
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    net[0].requires_grad_(False)
    torch.manual_seed(seed)
    torch.nn.init.normal_(net[1].weight)
    return net


def summary(weights):
    return weights.digest(), repr(weights.made)


def checkpoint(path):
    found = Checkpoint.load(path)
    return summary(found.weights), {k: v.tolist() for k, v in sorted(found.optimizer.items())}, found.kind, found.epoch


def curve_file(path):
    found = tw.Curve.load(path)
    return type(found).__name__, [point.digest() for point in found.points], sorted(vars(found))


def permutation(path):
    found = tw.Permutation.load(path)
    return {name: order.tolist() for name, order in sorted(found.orders.items())}, found.axes, found.within


def state(path):
    tensors, about = Run(path.parent).load()
    return {name: tensor.tolist() for name, tensor in sorted(tensors.items())}, about


def members(path):
    return [summary(member) for member in tw.Ensemble.load(path.parent, adapted(1)).members]


def result(kind):
    """A result that was read can be shown."""

    def read(path):
        found = kind.load(path)
        with np.errstate(all="ignore"):
            return repr(found.to_dict()), found.table() if hasattr(found, "table") else ""

    return read


def foreign(path):
    return summary(tw.Weights.load(path, CASE.module(0)))


def page_of(path):
    """Everything the page shows of the folder, as text."""
    out = path.parent.parent / "page.html"
    page.write(out, [path.parent], replace=True)
    return out.read_text()


def pickled(path):
    entries = read_pickle(path.read_bytes(), path)
    return readers.images_of(entries, path)[0].tolist(), entries["labels"]


def mnist(path):
    copy_ = fetch.Copy(SETS["mnist"][0], path.parent)
    images, labels = readers._pair(copy_, "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    return images.tolist(), labels.tolist()


KINDS: dict[str, Reader] = {
    "weights/w.safetensors": lambda path: summary(tw.Weights.load(path)),
    "ours-as-foreign/w.safetensors": foreign,
    "kept/kept-1.safetensors": checkpoint,
    "curve/curve.safetensors": curve_file,
    "permutation/permutation.safetensors": permutation,
    "swag/swag.safetensors": lambda path: summary(tw.SWAG.load(path).sample(1)[0]),
    "members/ensemble.json": members,
    "members/member-*": members,
    "members/base-*": members,
    "state/state.safetensors": state,
    "scan/scan.json": result(tw.Scan),
    "barriers/barriers.json": result(tw.Barriers),
    "report/report.json": result(Report),
    "comparison/comparison.json": result(tw.Comparison),
    "trace/trace.json": result(tw.Trace),
    "curve-ensemble/points.json": result(CurveEnsemble),
    "paper/result.json": result(Result),
    "page/scan.json": page_of,
    "page/run.json": page_of,
    "run/run.json": lambda path: files.load_json(path, "run"),
    "bench/bench.json": lambda path: files.load_json(path, "bench"),
    "lines/log.jsonl": lambda path: Run(path.parent).lines(path.name),
    "lines/points.jsonl": lambda path: Run(path.parent).lines(path.name),
    "foreign/new.pt": foreign,
    "foreign/old.pt": foreign,
    "foreign/net.safetensors": foreign,
    "cifar/data_batch_1": pickled,
    "mnist/train-images-idx3-ubyte": mnist,
    "mnist/train-labels-idx1-ubyte": mnist,
    "packed/train-images-idx3-ubyte.gz": mnist,
}
UNCHECKED = ("foreign/", "cifar/", "mnist/")  # no hash of ours: other numbers are another, whole file
CUT = ("lines/",)  # of which the last line may have been cut short


def make(folder: Path) -> None:
    """One file of each kind, small enough to be damaged often."""
    a, b = CASE.ends()
    a.save(folder / "weights" / "w.safetensors")
    a.save(folder / "ours-as-foreign" / "w.safetensors")
    tw.Bezier(a, b).save(folder / "curve" / "curve.safetensors")
    Checkpoint(a, {"momentum_buffer": torch.randn(a.layout.size)}, "SGD", 3).save(
        folder / "kept" / "kept-1.safetensors"
    )
    inner = tw.Weights.of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2)))
    axes = {"0.weight": (("group", 4, "h"), ("fixed", 2)), "0.bias": (("group", 4, "h"),)}
    axes["1.weight"] = (("fixed", 2), ("product", 4, ("group", 2, "g"), ("group", 2, "i")))
    orders = {"h": torch.tensor([2, 0, 1, 3]), "g": torch.tensor([1, 0]), "i": torch.tensor([[1, 0], [0, 1]])}
    tw.Permutation(orders, axes, {"i": "g"}, inner.layout).save(folder / "permutation" / "permutation.safetensors")
    tw.Ensemble(adapted(0), [replace(tw.Weights.of(adapted(k)), made={"by": "fuzz"}) for k in (1, 2)]).save(
        folder / "members"
    )
    tw.SWAG([a, b], rank=2).save(folder / "swag" / "swag.safetensors")
    (folder / "state").mkdir()
    Run(folder / "state").save({"vector": torch.randn(50)}, {"epoch": 3, "python": list(range(30))})
    curve(points=5).save(folder / "scan" / "scan.json")
    barriers("ab").save(folder / "barriers" / "barriers.json")
    report(3).save(folder / "report" / "report.json")
    comparison().save(folder / "comparison" / "comparison.json")
    watched = {"test": {"error": [0.2, 0.1]}}
    tw.Trace(np.full(4, 0.1), np.ones(4), np.arange(4.0), [2, 4], 2, [0, 4], watched).save(
        folder / "trace" / "trace.json"
    )
    t, scaled = [0.0, 0.5, 1.0], {"none": [1.0, 1.0, 1.0]}
    scores: dict = {"none": {"error": 0.1, "nll": 0.3}}
    CurveEnsemble(t, t, t, t, scaled, scaled, scores, {"none": [[0.5, 0.9, 0.8]]}, "held-out data").save(
        folder / "curve-ensemble" / "points.json"
    )
    rows = [{"method": "FGE", "error (%)": 5.1, "error (%) (paper)": 5.2}]
    Result("curves", "Table 2", rows, [Claim("it is lower", True, "5.1 < 5.2")], {"scale": "full"}).save(
        folder / "paper" / "result.json"
    )
    curve(points=3).save(folder / "page" / "scan.json")
    files.save_json(folder / "page" / "run.json", "run", RECORD)
    files.save_json(folder / "run" / "run.json", "run", RECORD)
    files.save_json(
        folder / "bench" / "bench.json", "bench", {"timings": {"step": [0.1, 0.2]}, "machine": {"cpu": "x"}}
    )
    (folder / "lines").mkdir()
    for name in ("log.jsonl", "points.jsonl"):
        for epoch in range(4):
            Run(folder / "lines").append(name, {"epoch": epoch, "loss": 0.5**epoch})
    state_dict = CASE.module(1).state_dict()
    for part in ("foreign", "cifar", "mnist", "packed"):
        (folder / part).mkdir()
    torch.save({"state_dict": state_dict, "epoch": 3}, folder / "foreign" / "new.pt")
    torch.save(
        {"state_dict": state_dict, "epoch": 3}, folder / "foreign" / "old.pt", _use_new_zipfile_serialization=False
    )
    save_file(state_dict, folder / "foreign" / "net.safetensors", metadata={"format": "pt"})
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    (folder / "cifar" / "data_batch_1").write_bytes(pickle.dumps({b"data": pixels, b"labels": [3, 8]}, protocol=2))
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(range(32))
    for part in ("mnist", "packed"):
        (folder / part / "train-images-idx3-ubyte").write_bytes(images)
        (folder / part / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 8]))
    (folder / "packed" / "train-images-idx3-ubyte").unlink()
    (folder / "packed" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Bits, cuts, insertions, exchanged ranges, zeroed blocks, and sizes that are far too large."""
    size = len(content)
    place, length = dice.randrange(size), dice.choice([1, 2, 8, 64, 512])
    other = dice.randrange(size)
    match dice.randrange(7):
        case 0:
            return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
        case 1:
            return content[:place]
        case 2:
            return content[:place] + dice.randbytes(length) + content[place:]
        case 3:
            return content[:place] + bytes(length) + content[place + length :]
        case 4:
            low, high = sorted((place, other))
            length = min(length, high - low, size - high)
            middle = content[low + length : high]
            return (
                content[:low]
                + content[high : high + length]
                + middle
                + content[low : low + length]
                + content[high + length :]
            )
        case 5:
            return content[:place] + content[place + length :]
        case _:
            return content[:place] + dice.choice([b"\xff" * 8, (2**60).to_bytes(8, "little")]) + content[place + 8 :]


ODD = [None, True, -1, 0, 1.5, 10**18, 10**400, float("nan"), "", "x", "nn", "float32", "../x", "\u2028</script>"]
ODD += [[], {}, [[]], {"a": []}]


def edited(value, dice: random.Random):
    """A JSON value with one part replaced, removed or doubled."""
    value = copy.deepcopy(value)
    places = []

    def walk(here):
        for key in list(here) if isinstance(here, dict) else range(len(here)):
            places.append((here, key))
            if isinstance(here[key], dict | list):
                walk(here[key])

    walk(value)
    here, key = dice.choice(places)
    match dice.randrange(5):
        case 0:
            del here[key]
        case 1 if isinstance(here, list):
            here.insert(key, here[key])
        case 2 if isinstance(here, dict):
            here[f"{key}x"] = here.pop(key)
        case _:
            here[key] = dice.choice(ODD)
    return value


def rehashed(path: Path, content: bytes, dice: random.Random) -> bytes:
    """A structural edit with a hash that fits, as whoever crafts a file would make it."""
    if path.suffix == ".jsonl":
        entries = [json.loads(line)["entry"] for line in content.decode().splitlines()]
        run = Run(path.parent)
        path.write_text("")
        for entry in edited(entries, dice):
            run.append(path.name, entry)
    elif path.suffix == ".json":
        record = json.loads(content)
        files.save_json(path, record["thalweg"], edited(record["content"], dice))
    else:
        tensors, metadata = files.read_safetensors(path)
        about = json.loads(metadata["about"])
        if dice.random() < 0.3:
            name = dice.choice(sorted(tensors))
            strange = [
                torch.ones(2, 3),
                tensors[name].double(),
                tensors[name].reshape(-1)[:0],
                torch.ones(()),
                tensors[name].bool(),
            ]
            tensors |= {name: dice.choice(strange)}
        else:
            about = edited({"about": about}, dice).get("about", {})
        files.save_tensors(path, metadata["thalweg"], tensors, about)
    return path.read_bytes()


def unhashed(path: Path, content: bytes, dice: random.Random) -> bytes:
    """A structural edit of the whole record, hash and kind included."""
    if path.suffix == ".json":
        return json.dumps(edited(json.loads(content), dice)).encode()
    if content[8:9] != b"{":
        return mutated(content, dice)
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(edited(json.loads(content[8 : 8 + size]), dice)).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def attempt(name: str, path: Path, original: bytes, whole: object, dice: random.Random) -> str:
    """One mutation: 'refused', 'same', 'other' (a whole file with another content), or a complaint."""
    ours = path.suffix in (".json", ".jsonl") or (path.suffix == ".safetensors" and not name.startswith("foreign"))
    way = dice.choice([mutated, mutated, "unhashed", "rehashed"] if ours else [mutated])
    crafted = way == "rehashed"
    if crafted:
        rehashed(path, original, dice)
    else:
        path.write_bytes(unhashed(path, original, dice) if way == "unhashed" else mutated(original, dice))
    before = others(path)
    outcome, found = read(name, path)
    if others(path) != before:
        return "another file was touched"
    if outcome or found == whole:
        return outcome or "same"
    if name.startswith(CUT) and not path.read_bytes().endswith(b"}") and found == whole[: len(found)]:
        return "same"
    return "other" if crafted or name.startswith(UNCHECKED) else "another result, though the hash does not fit"


def read(name: str, path: Path) -> tuple[str, object]:
    """What reading came to, if not to a result; and the result."""
    signal.alarm(SECONDS)
    try:
        return "", KINDS[name](path)
    except tw.ThalwegError as error:
        return "refused" if len(str(error).splitlines()[0]) < 1500 else f"a long sentence: {str(error)[:300]}", None
    except BaseException:
        return traceback.format_exc(limit=-6), None
    finally:
        signal.alarm(0)


def others(path: Path) -> dict:
    """Every other file in the folder and around it, and when it was written."""
    found = [other for other in path.parent.parent.rglob("*") if other not in (path, path.parent.parent / "page.html")]
    return {other: (other.lstat().st_size, other.lstat().st_mtime_ns) for other in found if not other.is_dir()}


def chunk(folder: Path, seed: int, count: int) -> Counter:
    """Some mutations, of one kind of file after another."""
    dice = random.Random(seed)
    outcomes: Counter = Counter()
    for number in range(count):
        name = list(KINDS)[(seed * count + number) % len(KINDS)]
        [path, *_] = sorted(folder.glob(name))
        original = path.read_bytes()
        before = random.Random(dice.random())
        whole = KINDS[name](path)
        outcome = attempt(name, path, original, whole, before)
        path.write_bytes(original)
        outcomes[outcome if outcome in FINE else f"{name}: {outcome}"] += 1
    return outcomes


def forked(folder: Path, seed: int, count: int) -> Counter:
    """A chunk in a child of its own, whose crash or hunger for memory is one of the outcomes."""
    out = folder / "outcomes.json"
    child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            make(folder)
            out.write_text(json.dumps(chunk(folder, seed, count)))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    return (
        Counter(json.loads(out.read_text()))
        if status == 0
        else Counter({f"the child of seed {seed} ended with {status}": 1})
    )


def run(total: int, seed: int = 0, size: int = 500) -> Counter:
    """All mutations, and what became of them."""
    outcomes: Counter = Counter()
    for number in range(-(-total // size)):
        with tempfile.TemporaryDirectory() as folder:
            outcomes += forked(Path(folder), seed + number, min(size, total - number * size))
    return outcomes


if __name__ == "__main__":
    begun = time.monotonic()
    outcomes = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for outcome, times in outcomes.most_common():
        print(f"{times:6}  {outcome}")
    print(f"{outcomes.total():6}  in {time.monotonic() - begun:.0f} s, {len(KINDS)} kinds of file")
    sys.exit(bool(set(outcomes) - FINE))
