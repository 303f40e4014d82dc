"""walk, ensemble, compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, done, following, plain
from .pages import page

if TYPE_CHECKING:
    from ..training.methods import Method

MEMBERS = "members"

Name = Literal["fge", "snapshot", "swa"]
Cycle = Annotated[
    float, typer.Option(help="FGE and SWA: the length of a cycle in epochs; of FGE an even number of iterations.")
]
Cycles = Annotated[int, typer.Option(help="Snapshot: how many cycles in the whole run.")]
Highest = Annotated[float, typer.Option(help="The highest learning rate of a cycle; SWA's constant one.")]
Data = Annotated[
    str | None, typer.Option(help="Which of the factory's data to score on. [default: the last]", show_default=False)
]
Lowest = Annotated[float, typer.Option(help="FGE: the lowest learning rate, at which networks are collected.")]


def walk(
    task: options.Task,
    out: options.Out,
    method: Annotated[Name, typer.Option(help="How to walk and when to collect.", case_sensitive=False)] = "fge",
    start: Annotated[
        list[Path] | None,
        typer.Option(
            help=(
                "Weights to start from, or an epoch kept by `thalweg fit --keep`; may be repeated. [default: a new "
                "network]"
            )
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of training from each start.")] = 20,
    cycle: Cycle = 2,
    cycles: Cycles = 5,
    lr_max: Highest = 0.01,
    lr_min: Lowest = 0.0005,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Continue training under a cyclic learning rate and collect networks for an ensemble.

    Writes the networks into `members/`, what happened on the way as `trace-1.json`, and the trace as PNG and PDF.
    """
    given, settings = {**locals()}, plain(locals())
    from matplotlib.figure import Figure

    from ..inputs import load_inputs, load_start
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    way = _method(method, cycle, cycles, lr_max, lr_min)
    starts = [load_start(path, inputs.model, key) for path in start or []] or None
    run = Run(out, every=every, resume=resume, note=settings)
    rest: Any = {"epochs": epochs, "momentum": momentum, "weight_decay": weight_decay, "clip": clip, "seed": seed}
    told: Any = {
        "watch": inputs.data,
        "compute": tw.Compute(precision, compile, graph),
        "run": run,
        "progress": bar(quiet),
    }
    found = tw.walk(inputs.model, inputs.task, inputs.train, way, start=starts, **told, **rest)
    for number, trace in enumerate(found.traces, start=1):
        figure = Figure(figsize=(7, 8), layout="constrained")
        tw.figures.trace(trace, axes=figure.subplots(3, 1, sharex=True))
        tw.figures.save(figure, out / f"trace-{number}")
    typer.echo(f"collected {len(found.members)} networks")
    done(out, following(ensemble, given, out, out="ensemble"))


def ensemble(
    what: Annotated[
        list[Path], typer.Argument(help="Folders of `thalweg walk` or `fit`, or weights files; all are pooled.")
    ],
    task: options.Task,
    out: options.Out,
    data: Data = None,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Average the predictions of several networks: the score of each, and of the ensemble as it grows.

    Writes `report.json` and the pooled networks into `members/`.
    """
    settings = plain(locals())
    from ..inputs import load_inputs, load_members
    from ..store.files import no_link
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    name = _chosen(inputs.data, data)
    pooled = tw.Ensemble(inputs.model, [member for path in what for member in load_members(path, inputs.model, key)])
    members = [member.digest() for member in pooled.members]
    with Run(out, resume=resume, note=settings).opened("ensemble", {"data": name, "members": members}) as run:
        report = pooled.report(inputs.task, inputs.data[name], progress=bar(quiet))
        pooled.save(no_link(out / MEMBERS))
        run.finish(lambda folder: report.save(folder / "report.json"))
    typer.echo(f"on '{name}'\n{report.table()}")
    done(out, following(page, {}, out, out="page.html"))


def compare(
    task: options.Task,
    out: options.Out,
    methods: Annotated[str, typer.Option(help="Which methods, separated by commas.")] = "ind,snapshot,fge,swa",
    budget: Annotated[int, typer.Option(help="Epochs of one run; no method gets more.")] = 40,
    seeds: Annotated[int, typer.Option(help="How many runs of each method, with the seeds 0, 1, ...")] = 3,
    lr: options.Rate = 0.05,
    cycle: Cycle = 2,
    cycles: Cycles = 5,
    lr_max: Annotated[
        float | None,
        typer.Option(help="FGE's highest and SWA's only rate. [default: a fifth of --lr]", show_default=False),
    ] = None,
    lr_min: Annotated[
        float | None, typer.Option(help="FGE's lowest rate. [default: a hundredth of --lr]", show_default=False)
    ] = None,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    data: Data = None,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Compare independent networks, Snapshot, FGE and SWA ensembles at equal cost: one, two and three training budgets.

    Prints the table of errors and writes `comparison.json` and a figure.
    """
    settings = plain(locals())
    from matplotlib.figure import Figure

    from ..inputs import load_inputs
    from ..store.runs import Run

    inputs = load_inputs(task, 0, device)
    highest, lowest = lr / 5 if lr_max is None else lr_max, lr / 100 if lr_min is None else lr_min
    chosen = [name.strip().lower() for name in methods.split(",")]
    if not set(chosen) <= {"ind", "snapshot", "fge", "swa"}:
        raise ThalwegError(f"methods are ind, snapshot, fge and swa, separated by commas; got '{methods}'")
    rates = {"snapshot": lr, "fge": highest, "swa": highest}
    ways = [tw.Independent() if name == "ind" else _method(name, cycle, cycles, rates[name], lowest) for name in chosen]
    name = _chosen(inputs.data, data)
    result = tw.compare(
        lambda seed: load_inputs(task, seed, device).model,  # with the data of seed 0, since all are scored together
        inputs.task,
        inputs.train,
        inputs.data[name],
        ways,
        budget=budget,
        multiples=[k for k in (1, 2, 3) if k <= seeds],
        seeds=range(seeds),
        bn_batches=inputs.bn_batches,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        clip=clip,
        compute=tw.Compute(precision, compile, graph),
        run=Run(out, every=every, resume=resume, note=settings),
        progress=bar(quiet),
    )
    figure = Figure(layout="constrained")
    tw.figures.budget(result, ax=figure.subplots())
    tw.figures.save(figure, out / "comparison")
    typer.echo(f"on '{name}'\n{result.table()}")
    done(out, following(page, {}, out, out="page.html"))


def _method(name: str, cycle: float, cycles: int, lr_max: float, lr_min: float) -> "Method":
    if name == "fge":
        return tw.FGE(cycle=cycle, lr_max=lr_max, lr_min=lr_min)
    return tw.Snapshot(cycles=cycles, lr_max=lr_max) if name == "snapshot" else tw.SWA(lr=lr_max, cycle=cycle)


def _chosen(data: dict[str, Any], name: str | None) -> str:
    if name is None:
        return list(data)[-1]
    if name not in data:
        raise ThalwegError(f"the task's data are {', '.join(data)}; got '{name}'")
    return name
