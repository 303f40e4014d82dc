"""thalweg compare."""

from typing import Annotated

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, chosen_data, done, following, plain, walking_method
from .page import page


def compare(
    task: options.Task,
    out: options.Out,
    methods: Annotated[str, typer.Option(help="Which methods, separated by commas.")] = "ind,snapshot,fge,swa",
    budget: Annotated[int, typer.Option(help="Epochs of one run; no method gets more.")] = 40,
    seeds: Annotated[int, typer.Option(help="How many runs of each method, with the seeds 0, 1, ...")] = 3,
    lr: options.Rate = 0.05,
    cycle: options.Cycle = 2,
    cycles: options.Cycles = 5,
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
    data: options.Data = None,
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

    from ..loading import load_inputs
    from ..store.runs import Run

    inputs = load_inputs(task, 0, device)
    highest, lowest = lr / 5 if lr_max is None else lr_max, lr / 100 if lr_min is None else lr_min
    chosen = [name.strip().lower() for name in methods.split(",")]
    if not set(chosen) <= {"ind", "snapshot", "fge", "swa"}:
        raise ThalwegError(f"methods are ind, snapshot, fge and swa, separated by commas; got '{methods}'")
    rates = {"snapshot": lr, "fge": highest, "swa": highest}
    ways = [
        tw.Independent() if name == "ind" else walking_method(name, cycle, cycles, rates[name], lowest)
        for name in chosen
    ]
    name = chosen_data(inputs.data, data)
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
