"""thalweg walk, ensemble and compare: networks that are collected on a walk, pooled, and compared at equal cost."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import thalweg as tw

from . import options
from .page import page


def walk(
    task: options.Task,
    out: options.Out,
    method: Annotated[
        Literal["fge", "snapshot", "swa"],
        typer.Option(help="How to walk and when to collect.", case_sensitive=False),
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
    lr_max: Annotated[float, typer.Option(help="The highest learning rate of a cycle; SWA's constant one.")] = 0.01,
    lr_min: Annotated[
        float, typer.Option(help="FGE: the lowest learning rate, at which networks are collected.")
    ] = 0.0005,
    optimizer: options.Optimizer = None,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    accumulate: options.Accumulate = 1,
    key: options.Key = None,
    seed: options.TrainingSeed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    stop_if_stalled: options.StopIfStalled = False,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Continue training under a cyclic learning rate and collect networks for an ensemble.

    Writes the networks into `members/`, what happened on the way as `trace-1.json`, and the trace as PNG and PDF.
    """
    own = options.Arguments("walk", locals())
    from ..loading import load_start
    from .averaging import soup

    inputs = own.inputs
    found = tw.walk(
        inputs.model,
        inputs.task,
        inputs.train,
        _method(method, cycle, cycles, lr_max, lr_min),
        start=[load_start(path, inputs.model, own.keys[path]) for path in start or []] or None,
        watch=inputs.data,
        **own.training,
    )
    for number, trace in enumerate(found.traces, start=1):
        figure = tw.figures.panels(partial(tw.figures.trace, trace, None, None), (7, 8), rows=3, sharex=True)
        tw.figures.save(figure, out / f"trace-{number}")
    typer.echo(f"collected {len(found.members)} networks")
    averaged = method == "swa" and len(found.traces) == 1 < len(found.members)  # its network is their average
    options.done(
        out,
        options.following(soup, own.given, out, "--how", "uniform", out="soup")
        if averaged
        else options.following(ensemble, own.given, out, out="ensemble"),
    )


def ensemble(
    what: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of `thalweg walk` or `fit`, or weights files; all are pooled."),
    ],
    task: options.Task,
    out: options.Out,
    data: options.Data = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Other data of the task, to fit a temperature on; it is saved with the ensemble."),
    ] = None,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Average the predictions of several networks: the score of each, and of the ensemble as it grows.

    Writes `report.json`, its reliability diagram as PNG and PDF, and the pooled networks into `members/`.
    """
    own = options.Arguments("ensemble", locals())
    from ..errors import during
    from ..evaluation.fingerprint import bn_fingerprint, measured_fingerprint
    from ..loading import load_members
    from ..store.files import no_link

    inputs = own.inputs
    check_different(what)
    name, other = chosen_data(inputs.data, data, held_out), inputs.data[held_out] if held_out else None
    members = (load_members(path, inputs.model, own.keys[path]) for path in what)
    pooled = tw.Ensemble(inputs.model, [member for each in members for member in each])
    scored = {key: inputs.data[key] for key in (name, held_out) if key}
    with (
        during("scoring the ensemble"),
        own.run.opened(
            "ensemble",
            {
                **{"data": name, "members": [each.digest() for each in pooled.members]},
                **measured_fingerprint(inputs.model, pooled.members[0], inputs.task, scored, own.compute),
                **bn_fingerprint(inputs.bn_batches),
            },
        ) as run,
    ):
        if other:
            pooled.calibrate(inputs.task, other, progress=options.progress(quiet))
        report = pooled.report(
            inputs.task,
            inputs.data[name],
            held_out=other,
            bn_batches=inputs.bn_batches,
            progress=options.progress(quiet),
        )
        pooled.save(no_link(out / "members"))
        run.finish(lambda folder: report.save(folder / "report.json"))
    if report.reliability:
        tw.figures.save(tw.figures.panels(partial(tw.figures.reliability, report), (6, 6)), out / "reliability")
    typer.echo(f"on '{name}'\n{report.table()}")
    options.done(out, options.following(page, own.given, out, out="page.html"))


def compare(
    task: options.Task,
    out: options.Out,
    methods: Annotated[str, typer.Option(help="Which methods, separated by commas.")] = "ind,snapshot,fge,swa",
    budget: Annotated[int, typer.Option(help="Epochs of one run; no method gets more.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each method, with the seeds 0, 1, ...")] = 3,
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
    held_out: Annotated[
        str | None, typer.Option(help="Other data of the task, to fit the temperatures of calibrated scores on.")
    ] = None,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Compare independent networks, Snapshot, FGE and SWA ensembles at equal cost: one, two and three training budgets.

    Prints errors, costs and how many independent networks each is worth; writes `comparison.json`, and the errors
    as PNG and PDF; that number too, where it is known.
    """
    own = options.Arguments("compare", locals())
    from ..loading import load_inputs

    inputs = own.inputs
    highest, lowest = lr / 5 if lr_max is None else lr_max, lr / 100 if lr_min is None else lr_min
    chosen = [name.strip().lower() for name in methods.split(",")]
    ways = [_method(name, cycle, cycles, lr if name == "snapshot" else highest, lowest) for name in chosen]
    name = chosen_data(inputs.data, data, held_out)
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
        held_out=inputs.data[held_out] if held_out else None,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        clip=clip,
        **own.running,
    )
    tw.figures.save(tw.figures.panels(partial(tw.figures.budget, result, None)), out / "comparison")
    if not all(isnan(result.equivalent(name, k)) for name in result.entries for k in result.multiples):
        tw.figures.save(tw.figures.panels(partial(tw.figures.equivalents, result, None)), out / "equivalents")
    typer.echo(f"on '{name}'\n{result.table()}")
    options.done(out, options.following(page, own.given, out, out="page.html"))


def _method(name: str, cycle: float, cycles: int, lr_max: float, lr_min: float) -> Any:
    match name:
        case "ind":
            return tw.Independent()
        case "fge":
            return tw.FGE(cycle=cycle, lr_max=lr_max, lr_min=lr_min)
        case "snapshot":
            return tw.Snapshot(cycles=cycles, lr_max=lr_max)
        case "swa":
            return tw.SWA(lr=lr_max, cycle=cycle)
        case _:
            raise tw.ThalwegError(f"methods are ind, snapshot, fge and swa, separated by commas; got '{name}'")


def check_different(what: Sequence[Path]) -> None:
    if len(set(what)) < len(what):
        raise tw.ThalwegError(f"each network is given once; got {' '.join(map(str, what))}")


def chosen_data(data: Mapping[str, Any], name: str | None, held_out: str | None = None) -> str:
    """The name of the data to score on: the one given, or the last that is not held out."""
    for given in filter(None, (name, held_out)):
        if given not in data:
            raise tw.ThalwegError(f"the task's data are {', '.join(data)}; got '{given}'")
    return name or ([each for each in data if each != held_out] or [*data])[-1]
