"""thalweg walk."""

from pathlib import Path
from typing import Annotated, Any

import typer

import thalweg as tw

from . import options
from .ensemble import ensemble
from .options import bar, done, following, plain, walking_method


def walk(
    task: options.Task,
    out: options.Out,
    method: Annotated[
        options.MethodName, typer.Option(help="How to walk and when to collect.", case_sensitive=False)
    ] = "fge",
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
    cycle: options.Cycle = 2,
    cycles: options.Cycles = 5,
    lr_max: options.Highest = 0.01,
    lr_min: options.Lowest = 0.0005,
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

    from ..loading import load_inputs, load_start
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    way = walking_method(method, cycle, cycles, lr_max, lr_min)
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
