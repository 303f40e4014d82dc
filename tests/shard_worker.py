"""What every rank of the tests of networks in shards runs. Ranks are forked, so that torch is imported once."""

import os
import runpy
import signal
import socket
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from typer.main import get_command

import thalweg as tw
from thalweg.cli import app
from thalweg.evaluation import fingerprint
from thalweg.store.runs import Run


class Tied(nn.Module):
    """A transformer with layer norm, tied and frozen weights, a buffer, and a layer that no loss reaches."""

    def __init__(self, words=11, width=12):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 18, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((), 0.5))
        torch.manual_seed(99)
        self.adapter = nn.Linear(width, width).requires_grad_(False)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(self.adapter(hidden)) * self.scale)


def mlp():
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))


def made(kind, seed):
    torch.manual_seed(seed)
    return {"mlp": mlp, "tied": Tied}[kind]().double()


def in_shards(kind, seed=0):
    def make():
        module = made(kind, seed)
        for part in module.layers if kind == "tied" else module[:2]:
            fully_shard(part)
        return fully_shard(module)

    return make


def batches(kind):
    """Of unequal sizes, one with fewer examples than ranks."""
    torch.manual_seed(5)
    if kind == "mlp":
        return [(torch.randn(n, 3).double(), torch.randint(2, (n,))) for n in (8, 5, 1)]
    pairs = [torch.randint(11, (2, n, 4)).unbind() for n in (6, 1, 5)]
    for _, labels in pairs:
        labels[-1, 2:] = -100  # so that ranks count unequally
    return pairs


def token_losses(outputs, targets):
    values = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return values[targets.flatten() != -100]


def task(kind):
    return tw.classification() if kind == "mlp" else tw.Task(token_losses)


COMMON = {"epochs": 2, "lr": 0.05, "weight_decay": 0.01, "seed": 3, "progress": False}
VARIANTS = {
    "plain": {},
    "clip": {"clip": 0.3, "accumulate": 2},
    "adamw": {"optimizer": torch.optim.AdamW, "lr": 1e-3, "weight_decay": 0.0},
    "phi": {"optimizer": torch.optim.AdamW, "lr": 1e-3, "weight_decay": 0.0, "decay_at": "phi"},
    "arclength": {"loss": "arclength"},
    "stream": {"compute": tw.Compute(stream=True)},
}
CURVES = [("mlp", name) for name in VARIANTS] + [("tied", name) for name in ("plain", "clip", "adamw")]
FOUR = [("tied", "plain")]  # what is tried with four ranks


def ends(kind):
    return [tw.Weights.of(made(kind, seed)) for seed in (1, 2)]


def shards_of_ends(kind, network):
    return [tw.Weights.from_state(end.state_dict(), network) for end in ends(kind)]


def connected(kind, variant, network=None, **more):
    """By one process without shards, if no network is given."""
    a, b = ends(kind) if network is None else shards_of_ends(kind, network)
    how = {**COMMON, **VARIANTS[variant], **more}
    return tw.connect(network or made(kind, 0), tw.Bezier(a, b, 2), task(kind), batches(kind), **how)


def scanned(kind, curve, network=None):
    data = {"x": batches(kind)}
    return tw.scan(network or made(kind, 0), curve, task(kind), data, points=3, weight_decay=0.01, progress=False)


def fitted(kind, network=None):
    return tw.fit(network or made(kind, 4), task(kind), batches(kind), **{**COMMON, **VARIANTS["clip"]})


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor of numbers that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if type(one) is torch.Tensor and one.is_floating_point():
                self.elements = max(self.elements, one.untyped_storage().nbytes() // one.element_size())
        return found


def whole(weights):
    parts = weights.layout.split(weights.vector).values()
    return torch.cat([part.full_tensor().reshape(-1) for part in parts])


def curves(ranks, folder):
    found = {}
    for kind, variant in CURVES if ranks.size == 2 else FOUR:
        network = tw.sharded(in_shards(kind))
        before = tw.Weights.of(network)
        curve = connected(kind, variant, network)
        found[f"{kind} {variant}"] = torch.stack([whole(bend) for bend in curve.bends])
        with torch.no_grad():
            network(batches(kind)[0][0])  # after which fully_shard would keep some layers gathered
        assert torch.equal(tw.Weights.of(network).vector, before.vector)
        if (kind, variant) == ("tied", "plain"):
            curve.save(folder / f"tied-{ranks.size}")
            found |= measured(scanned(kind, curve, network), curve)
            found["fit"] = whole(fitted(kind, tw.sharded(in_shards(kind, 4)))) if ranks.size == 2 else None
    return found


def measured(scan, curve):
    values = [torch.tensor(values) for _, values in sorted(scan.values["x"].items())]
    return {"scan": torch.stack(values), "length": torch.tensor([scan.length_ratio, curve.start.distance(curve.end)])}


def files(ranks, folder):
    """Written by two ranks, read by three, and a whole file read in shards."""
    network = tw.sharded(in_shards("tied"))
    found = {f"digest {k}": end.digest() for k, end in enumerate(shards_of_ends("tied", network))}
    for name in ("tied-2", "whole"):
        curve = tw.Curve.load(folder / f"{name}.safetensors" if name == "whole" else folder / name, network)
        found[name] = torch.stack([whole(bend) for bend in curve.bends])
        found[f"{name} adapter"] = curve.start.frozen["adapter.weight"].full_tensor()
    return found


def killed(ranks, folder):
    """Rank 1 dies in the second epoch of three steps."""
    network, steps = tw.sharded(in_shards("tied")), []

    def dying(outputs, targets):
        steps.append(1)
        if len(steps) == 5 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return token_losses(outputs, targets)

    a, b = shards_of_ends("tied", network)
    how = {**COMMON, **VARIANTS["adamw"], "run": Run(folder / "run", every=1)}
    tw.connect(network, tw.Bezier(a, b, 2), tw.Task(dying), batches("tied"), **how)


def resumed(ranks, folder):
    network = tw.sharded(in_shards("tied"))
    state = (folder / "run" / "state.safetensors").exists()
    curve = connected("tied", "adamw", network, run=folder / "run")
    again = connected("tied", "adamw", network, run=folder / "run")
    return {"state": state, "curve": torch.stack([whole(bend) for bend in curve.bends]), "again": whole(again.bends[1])}


def largest(ranks, folder):
    """Of a network that is cut into many parts of equal size."""

    def make():
        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))).double()
        for part in module:
            fully_shard(part)
        return fully_shard(module)

    fingerprint.PROJECTED = 64  # instead of a million values of a gradient, which would be all of this one
    network = tw.sharded(make)
    a, size = tw.Weights.of(network), sum(p.numel() for p in network.parameters())
    b = replace(a, vector=a.vector + 1)
    data = [(torch.randn(8, 16).double(), torch.randn(8, 16).double())]
    with Largest() as seen:
        curve = tw.connect(network, tw.Bezier(a, b), tw.regression(), data, epochs=1, lr=0.1, progress=False)
        tw.scan(network, curve, tw.regression(), {"x": data}, points=2, progress=False)
        curve.save(folder / "largest")
        tw.Curve.load(folder / "largest", network)
    return {"elements": seen.elements, "size": size, "vector": len(curve.bends[0].vector)}


def example(ranks, folder):
    sys.argv = ["sharded_curve.py", "--epochs", "1", "--out", str(folder / "example")]
    with redirect_stdout(StringIO()) as printed:
        runpy.run_path(str(Path(__file__).parent.parent / "examples" / "sharded_curve.py"), run_name="__main__")
    return {"printed": printed.getvalue()}


def factory(seed):
    """What a task factory of the command line returns, in shards."""
    model, data = tw.sharded(in_shards("mlp", seed)), batches("mlp")
    return {"model": model, "task": task("mlp"), "train": data, "data": {"x": data}}


def commands(ranks, folder):
    os.chdir(folder)
    for line in (
        "fit --runs 2 --epochs 2 --lr 0.1 --out ends",
        "connect ends/seed-0 ends/seed-1 --epochs 2 --lr 0.1 --out connected",
        "connect ends/seed-0 ends/seed-1 --epochs 2 --lr 0.1 --out connected --resume",
        "scan connected --points 3 --out scanned",
    ):
        words = [*line.split(), "--task", "shard_worker:factory", "--quiet"]
        with redirect_stdout(StringIO()):
            get_command(app)(words, standalone_mode=False)


def one_weight(network):
    x = torch.linspace(-1, 1, 8).double().reshape(-1, 1)
    return tw.fit(network, tw.regression(), [(x, 2 * x)], epochs=3, lr=0.1, clip=0.1, progress=False)


def lone(ranks, folder):
    """One weight: the second rank has none."""

    def make():
        return fully_shard(lonely())

    weights = one_weight(tw.sharded(make))
    weights.save(folder / "lone.safetensors")
    return {"size": len(weights.vector)}


def lonely():
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False).double()


class Spoilt(torch.optim.SGD):
    """Its fourth step breaks a weight of rank 1 alone."""

    taken = 0

    def step(self):
        super().step()
        self.taken += 1
        if self.taken == 4 and dist.get_rank() == 1:
            self.param_groups[0]["params"][0].to_local().fill_(torch.inf)


def broken(ranks, folder):
    network = tw.sharded(in_shards("mlp"))
    a, b = shards_of_ends("mlp", network)
    how = {"epochs": 4, "schedule": lambda i: 0.01, "optimizer": Spoilt, "progress": False}
    try:
        tw.connect(network, tw.Bezier(a, b), tw.classification(), batches("mlp")[:1], **how)
    except tw.ThalwegError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


def unequal(ranks, folder):
    try:
        tw.sharded(lambda: fully_shard(nn.Linear(3, 2 + ranks.rank)))
    except tw.ThalwegError as error:
        return {"error": str(error)}
    return {}


def rank_of(rank, size, port, name, folder):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with tw.distributed() as ranks:
        found = globals()[name](ranks, folder)
    if rank == 0 or name in ("largest", "broken", "lone", "unequal"):
        torch.save(found, folder / f"{name}-{size}-{rank}.pt")


def launch(name, size, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        if not (child := os.fork()):
            try:
                rank_of(rank, size, port, name, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert any(ended) if name == "killed" else not any(ended), f"{name} in {size} processes: {ended}"


if __name__ == "__main__":
    for needed in ("torch._dynamo", "thalweg.runtime.running", *(f"thalweg.{home}" for home in tw._HOMES)):
        import_module(needed)  # once, before ranks are forked
    for step in sys.argv[2:]:
        launch(step.split("-")[0], int(step.split("-")[1]), Path(sys.argv[1]))
