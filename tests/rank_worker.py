"""What every process of a test runs: under torchrun, or alone. Each writes its results to the given folder."""

import os
import sys
from pathlib import Path

import torch
from zoo import ZOO

import thalweg as tw
from thalweg.store.runs import LOG, Run
from thalweg.training.step import UniformBends

NAMES = ["mlp", "transformer_dict", "tied_lstm", "frozen", "two_inputs"]


def settings(case, **more):
    return {"epochs": -(-50 // len(case.batches())), "lr": 0.05, "weight_decay": 0.01, "progress": False, **more}


def together(processes):
    """What must not depend on the number of processes."""
    found = {}
    for name in NAMES:
        case = ZOO[name]
        module, (a, b), batches = case.module(1), case.ends(), case.batches()
        for loss in ("uniform", "arclength"):
            curve = tw.connect(module, tw.Bezier(a, b, 2), case.task, batches, loss=loss, same_t=True, **settings(case))
            found[f"{name} {loss}"] = torch.stack([bend.vector for bend in curve.bends])
        found[f"{name} clipped"] = tw.fit(module, case.task, batches, clip=0.1, **settings(case)).vector
        found[f"{name} accumulated"] = tw.fit(module, case.task, batches, accumulate=2, **settings(case)).vector
        scan = tw.scan(module, tw.Segment(a, b), case.task, {"x": batches}, points=7, progress=False)
        found[f"{name} scan"] = torch.tensor(scan.values["x"]["loss"])
    case = ZOO["mlp"]  # elsewhere Adam may make whole steps of gradients that are but rounding
    own = settings(case, weight_decay=0.0, optimizer=torch.optim.AdamW, accumulate=2)
    found["adamw"] = tw.fit(case.module(1), case.task, case.batches(), **own).vector
    for accumulate in (1, 2):  # where some parts, or no part, of a batch reach an expert
        own = {"epochs": 4, "lr": 0.01, "optimizer": torch.optim.AdamW, "accumulate": accumulate, "progress": False}
        found[f"routed {accumulate}"] = tw.fit(Routed(), case.task, odd_batches(), **own).vector
    method = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)
    members = tw.walk(case.module(1), case.task, case.batches(), method, epochs=4, progress=False).members
    found["walk"] = torch.stack([member.vector for member in members])
    run = Run(Path(sys.argv[2]) / f"run-{processes.size}")
    tw.fit(case.module(1), case.task, case.batches(), run=run, **settings(case))
    logged = processes.once(lambda: [entry["loss"] for entry in run.lines(LOG)])
    found["losses"] = torch.tensor(logged, dtype=torch.float64)
    line = tw.Segment(*case.ends())
    scan = tw.scan(case.module(1), line, case.task, {"x": case.batches()}, points="adaptive", progress=False)
    found["adaptive scan"] = torch.tensor([scan.t, scan.values["x"]["loss"]])
    seen = []  # by rank 0 alone, though t is that of all
    how = {"same_t": True, "on_epoch": seen.append if processes.first else None, **settings(case)}
    tw.connect(case.module(1), tw.Bezier(*case.ends()), case.task, case.batches(), **how)
    logged = processes.once(lambda: [[entry["loss"], entry["t"]] for entry in seen])
    found["reported"] = torch.tensor(logged, dtype=torch.float64)
    scores = tw.Ensemble(case.module(1), members).score(case.task, case.batches())
    found["ensemble"] = torch.tensor(list(scores.values()))
    how = {"run": Path(sys.argv[2]) / f"soup-{processes.size}", "progress": False}
    for k in range(2):  # the second reads the folder
        soup = tw.soup(case.module(1), members, case.task, case.batches(), metric="loss", **how)
        found[f"soup {k}"] = torch.cat([soup.vector, torch.tensor([soup.score, *soup.tried.values()])])
    between = tw.barriers(case.module(1), members, case.task, case.batches(), points=4, progress=False)
    found["barriers"] = torch.tensor(between.values["data"]["loss"])
    return found


def apart(processes):
    """What belongs to one process, and what all must share nevertheless."""
    normal, dropping = ZOO["conv_bn"], ZOO["dropout"]
    even = normal.batches()[:2]  # batch norm cannot learn from the single example that half of the last one may be
    trained = tw.fit(normal.module(1), normal.task, even, **settings(normal))
    found = {"statistics": torch.cat([buffer.double().reshape(-1) for buffer in trained.buffers.values()])}
    found["dropout"] = tw.fit(dropping.module(1), dropping.task, dropping.batches(), **settings(dropping)).vector
    constants = tw.fit(Masked(), tw.classification(), odd_batches(), **settings(normal))
    found["masks"] = torch.cat([constants.vector, *(b.double().reshape(-1) for b in constants.buffers.values())])
    padded = ZOO["tied_lstm"]
    half = [
        torch.cat([tokens[:2], torch.full_like(tokens[:2], -100)]) for tokens in (b[1] for b in padded.batches()[:2])
    ]
    text = [(batch[0][:4], labels) for batch, labels in zip(padded.batches(), half, strict=False)]
    found["padding"] = tw.fit(padded.module(1), tw.language_modelling(), text, **settings(padded)).vector
    a, b = (tw.Weights.of(Masked()) for _ in range(2))
    own = {"loss": "arclength", **settings(normal)}
    curve = tw.connect(Masked(), tw.Bezier(a, b), tw.classification(), odd_batches(), **own)
    found["arclength"] = curve.bends[0].vector
    return found | one_step(processes)


class Routed(torch.nn.Module):
    """Each example goes through one of two experts, and none through the third."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 3, dtype=torch.float64) for _ in range(3))

    def forward(self, x):
        chosen, out = (x[:, 0] * 2.15).long(), x.new_zeros(len(x), 3)
        for k, expert in enumerate(self.experts):
            if (where := (chosen == k).nonzero()[:, 0]).numel():
                out = out.index_put((where,), expert(x[where]))
        return out


class Masked(torch.nn.Module):
    """With buffers that are constants, one of them infinite."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(len(DRAWN))
        DRAWN.append(1)
        self.linear = torch.nn.Linear(4, 3, dtype=torch.float64)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, float("-inf")], dtype=torch.float64))
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406, 0.1]))

    def forward(self, x):
        return self.linear(x - self.mean) + self.mask.masked_fill(self.mask.isinf(), -9.0)


DRAWN = []


def odd_batches():
    """The last has one example, so that one of two processes has none."""
    g = torch.Generator().manual_seed(0)
    return [(torch.rand(n, 4, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (8, 8, 1)]


def one_step(processes):
    """A step along a curve with one t for each process, and where each of them stood."""
    case, stood = ZOO["mlp"], []
    before = UniformBends.draw

    def noted(self):
        numbers = before(self)
        stood.append(self.t)
        return numbers

    UniformBends.draw = noted
    batch = case.batches()[:1]
    a, b = case.ends()
    curve = tw.connect(
        case.module(1), tw.Bezier(a, b), case.task, batch, epochs=1, schedule=lambda i: 0.1, momentum=0.0
    )
    return {"t": torch.tensor(stood, dtype=torch.float64), "bend": curve.bends[0].vector}


def disagreements(processes):
    """Messages of runs that the processes started differently."""
    case, said = ZOO["mlp"], {}
    version = tw.__version__

    def fit(**more):
        return tw.fit(
            more.pop("module", case.module(1)),
            case.task,
            more.pop("batches", case.batches()),
            **settings(case, **more),
        )

    def other_version():
        tw.__version__ = version if processes.first else "0.0.0"
        try:
            return fit()
        finally:
            tw.__version__ = version

    x, y = case.batches()[0]
    normal = ZOO["conv_bn"]
    taken = Path(sys.argv[2]) / "taken"
    if processes.first:
        taken.mkdir()
        (taken / "something").touch()
    attempts = {
        "settings": lambda: fit(weight_decay=0.01 * (1 + processes.rank)),
        "data": lambda: fit(batches=[(x + processes.rank, y)]),
        "start": lambda: fit(module=case.module(processes.rank)),
        "version": other_version,
        "scan": lambda: tw.scan(case.module(1), list(case.ends()), case.task, {"x": [(x + processes.rank, y)]}),
        "nothing": lambda: processes.once(lambda: 1),
        "first": lambda: processes.once(lambda: 1 / 0),
        "folder": lambda: fit(run=taken),
        "single": lambda: tw.fit(
            normal.module(1), normal.task, [tuple(t[:3] for t in normal.batches()[0])] * 2, epochs=1, lr=0.1
        ),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (tw.ThalwegError, ZeroDivisionError) as error:
            said[name] = str(error)
    return said


def on_one_gpu(processes):
    """The same on a CUDA GPU, which all processes use."""
    found = {}
    for name in ("mlp", "conv_bn", "transformer_dict"):
        case = ZOO[name]
        module, ends, batches = case.module(1).cuda(), [end.to("cuda") for end in case.ends()], case.batches()[:2]
        curve = tw.Bezier(*ends)
        if name != "conv_bn":  # whose statistics are those of a process's part of the batch
            curve = tw.connect(module, curve, case.task, batches, same_t=True, **settings(case))
            found[f"{name} fit"] = tw.fit(module, case.task, batches, **settings(case)).vector.cpu()
            found[f"{name} bend"] = curve.bends[0].vector.cpu()
        scan = tw.scan(module, curve, case.task, {"x": batches}, points=5, bn_batches=batches, progress=False)
        found[f"{name} scan"] = torch.tensor(scan.values["x"]["loss"])
    return found


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "gpu" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")  # the user's own, since NCCL wants a GPU for each process
    with tw.distributed() as processes:
        found = {"together": together, "apart": apart, "gpu": on_one_gpu, "disagreements": disagreements}[what](
            processes
        )
        torch.save(found, folder / f"{what}-{processes.size}-{processes.rank}.pt")
        os._exit(0)  # the last of the disagreements leaves processes apart, and gloo's threads may abort one that ends


if __name__ == "__main__":
    main()
