"""demo, fit, connect, scan, plane."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, done, following, plain
from .pages import page

if TYPE_CHECKING:
    from torch import nn


def demo(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where everything goes; an earlier demo there is replaced."),
    ] = Path("thalweg-demo"),
    quiet: options.Quiet = False,
) -> None:
    """Try everything on handwritten digits: curves between two networks, the planes around them, and ensembles at one
    budget.

    Needs no data and no GPU, and takes two to three minutes on two cores. The straight line between the networks
    crosses a barrier and the trained curves do not; figures are written as PNG and PDF, and all of it as one
    interactive page.
    """
    from ..demo import CONNECT, FIT, WEIGHT_DECAY, run
    from ..store.runs import Run, start_run

    start_run(out, "demo", {"fit": FIT, "connect": CONNECT, "data": "test"}, again=True)
    Run(out).finish(lambda folder: run(folder, progress=bar(quiet)))
    given = {"task": "thalweg.demo:digits", "weight_decay": WEIGHT_DECAY}
    done(out, following(plane, given, out / "bezier.safetensors", out="plane"))


def fit(
    task: options.Task,
    out: options.Out,
    epochs: options.Epochs = 30,
    lr: options.Rate = 0.05,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    keep: Annotated[
        list[int] | None,
        typer.Option(help="An epoch to keep with the optimizer's state, for `thalweg walk --start`; may be repeated."),
    ] = None,
    seed: options.Seed = 0,
    runs: Annotated[
        int,
        typer.Option(
            min=1, help="How many networks, with the seeds --seed, --seed + 1 and so on; on a GPU three at a time."
        ),
    ] = 1,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train one network, or several interleaved: the ends of a curve.

    Prints loss and error, and writes `weights.safetensors`; of several networks into one folder each, `seed-0` and so
    on.
    """
    given, settings = {**locals()}, plain(locals())
    from ..inputs import load_inputs
    from ..runtime.interleave import at_once
    from ..store.runs import Run

    each, compute = [load_inputs(task, seed + k, device) for k in range(runs)], tw.Compute(precision, compile, graph)
    common: Any = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip": clip}

    def job(number: int) -> Any:
        folder, inputs = out if runs == 1 else out / f"seed-{number}", each[number - seed]
        run = Run(folder, every=every, resume=resume, note={**settings, "seed": number})
        told: Any = {"keep": keep or (), "compute": compute, "run": run, "progress": bar(quiet)}
        return lambda: tw.fit(inputs.model, inputs.task, inputs.train, seed=number, **told, **common)

    trained = at_once([job(seed + k) for k in range(runs)], next(each[0].model.parameters()).device)
    for number, (inputs, weights) in enumerate(zip(each, trained, strict=True), start=seed):
        alone = tw.scan(
            inputs.model, [weights], inputs.task, inputs.data, weight_decay=weight_decay, progress=bar(quiet)
        )
        typer.echo(alone.table() if runs == 1 else f"seed {number}: {alone.table()}")
    done(out, _after_fit(given))


def connect(
    ends: options.Networks,
    task: options.Task,
    out: options.Out,
    curve: Annotated[
        Literal["bezier", "polychain"], typer.Option(help="The kind of curve.", case_sensitive=False)
    ] = "bezier",
    bends: Annotated[int, typer.Option(help="Number of trainable points between the ends.")] = 1,
    loss: Annotated[
        Literal["uniform", "arclength"],
        typer.Option(
            help="What is minimised: the mean loss over t (uniform), or over the length of the curve (arclength)."
        ),
    ] = "uniform",
    same_t: Annotated[
        bool, typer.Option("--same-t", help="Under torchrun: the same t on all ranks in a step, instead of one each.")
    ] = False,
    epochs: options.Epochs = 60,
    lr: options.Rate = 0.05,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep the curve on the CPU and only one network on the GPU, to save GPU memory."),
    ] = False,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train a curve of low loss between two trained networks, START and END.

    Writes `curve.safetensors`.
    """
    given, settings = {**locals()}, plain(locals())
    from ..inputs import load_inputs, load_weights
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    kind = tw.Bezier if curve == "bezier" else tw.PolyChain
    loaded = [load_weights(path, inputs.model, key) for path in ends]
    if len(loaded) != 2:
        raise ThalwegError(f"a curve joins two networks; got {' '.join(map(str, ends))}: give START and END")
    a, b = loaded
    fresh = kind(a.to("cpu"), b.to("cpu"), bends) if stream else kind(a, b, bends)
    if a.distance(b) == 0:
        raise ThalwegError(f"a curve joins two networks, and {ends[0]} and {ends[1]} are the same: give another end")
    run = Run(out, every=every, resume=resume, note=settings)
    rest: Any = {
        "epochs": epochs,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "clip": clip,
        "seed": seed,
    }
    how = tw.Compute(precision, compile, graph, stream)
    told: Any = {"loss": loss, "same_t": same_t, "compute": how, "run": run, "progress": bar(quiet)}
    found = tw.connect(inputs.model, fresh, inputs.task, inputs.train, **told, **rest)
    typer.echo(f"{type(found).__name__}, length ratio {found.length_ratio():.2f}")
    done(out, following(scan, given, out, out="scan"))


def scan(
    what: Annotated[
        list[Path],
        typer.Argument(
            help="A curve (a folder of `thalweg connect` or its file); or two networks, for the straight line."
        ),
    ],
    task: options.Task,
    out: options.Out,
    points: Annotated[int, typer.Option(help="Number of equally spaced values of t, including the ends.")] = 61,
    line: Annotated[
        bool,
        typer.Option(
            "--line/--no-line", help="Also measure the straight line between the ends of a curve, as a baseline."
        ),
    ] = True,
    weight_decay: options.Decay = 0.0,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    graph: options.Graph = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure loss and error along a curve, or along the straight line between two networks.

    Prints the summary (mean: over t; int: over the curve's length; barrier: the largest excess over the line that joins
    the values at the ends) and writes `scan.json`, `scan.csv` and the profile as PNG and PDF; of a curve also the scan
    of the straight line between its ends, into the folder `line`, and both into one profile.
    """
    given, settings = {**locals()}, plain(locals())
    from ..inputs import is_curve, load_curve, load_inputs, load_weights
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    if len(what) == 1:
        target = load_curve(what[0], inputs.model)
    elif len(what) == 2 and not any(map(is_curve, what)):
        target = tw.Segment(*(load_weights(path, inputs.model, key) for path in what))
    else:
        raise ThalwegError(f"give one curve or two networks to scan; got {' '.join(map(str, what))}")
    run = Run(out, resume=resume, note=settings)
    rest: Any = {
        "weight_decay": weight_decay,
        "bn_batches": inputs.bn_batches,
        "compute": tw.Compute(precision, graph=graph),
        "run": run,
    }
    results = {out: tw.scan(inputs.model, target, inputs.task, inputs.data, points=points, **rest, progress=bar(quiet))}
    if line and target.bends and target.start.distance(target.end) > 0:
        straight, rest = tw.Segment(target.start, target.end), {**rest, "run": run.child("line")}
        found = tw.scan(inputs.model, straight, inputs.task, inputs.data, points=points, **rest, progress=bar(quiet))
        results = {out / "line": found, **results}
    _report(results)
    done(out, _after_scan(given, len(target.bends)))


def plane(
    what: Annotated[
        list[Path], typer.Argument(help="Three networks; or one curve with one bend, for the plane in which it lies.")
    ],
    task: options.Task,
    out: options.Out,
    grid: Annotated[int, typer.Option(help="Number of points along each axis.")] = 21,
    margin: Annotated[
        float, typer.Option(help="How far to go beyond the three points, as a fraction of their extent.")
    ] = 0.2,
    weight_decay: options.Decay = 0.0,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    graph: options.Graph = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure loss and error over the plane through three networks, or through a curve's ends and its bend.

    Writes `scan.json`, `scan.csv` and the surface as PNG and PDF.
    """
    given, settings = {**locals()}, plain(locals())
    from ..inputs import load_inputs
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    target, drawn = _plane(what, inputs.model, key)
    run = Run(out, resume=resume, note=settings)
    rest: Any = {
        "weight_decay": weight_decay,
        "bn_batches": inputs.bn_batches,
        "compute": tw.Compute(precision, graph=graph),
        "run": run,
    }
    where: Any = {"grid": (grid, grid), "margin": margin, "overlay": drawn}
    result = tw.scan(inputs.model, target, inputs.task, inputs.data, **where, **rest, progress=bar(quiet))
    _report({out: result})
    done(out, following(page, given, out, out="page.html"))


def _plane(what: list[Path], model: "nn.Module", key: str | None) -> "tuple[tw.Plane, dict[str, Any]]":
    from ..inputs import is_curve, load_curve, load_weights

    if len(what) == 3 and not any(map(is_curve, what)):
        return tw.Plane(*(load_weights(path, model, key) for path in what)), {}
    if len(what) != 1:
        raise ThalwegError(f"give three networks, or one curve, for a plane; got {' '.join(map(str, what))}")
    curve = load_curve(what[0], model)
    if len(curve.bends) != 1:
        raise ThalwegError(
            f"a curve lies in a plane if it has one bend; {what[0]} has {len(curve.bends)}: give three networks"
        )
    return tw.Plane(curve.start, curve.end, curve.bends[0]), {type(curve).__name__: curve}


def _after_fit(given: dict[str, Any]) -> str:
    """A curve, if there are two networks of one task; the second network, if there is one."""
    out, seed = given["out"], given["seed"]
    if given["runs"] > 1:
        ends = [out / f"seed-{seed}", out / f"seed-{seed + 1}"]
    elif other := _other_network(out, given["task"], seed):
        ends = [other, out]
    else:
        return following(fit, {**given, "seed": seed + 1}, out=str(out))
    kept = {key: value for key, value in given.items() if key != "epochs"}  # those of a network do not apply to a curve
    return following(connect, kept, *ends, out="curve")


def _other_network(out: Path, task: str, seed: int) -> Path | None:
    """A network next to this one, trained on the same task from another seed."""
    from ..store.files import WEIGHTS, load_json
    from ..store.runs import RECORD

    for record in sorted(out.parent.glob(f"*/{RECORD}")):
        with suppress(ThalwegError):
            settings = load_json(record, "run")["settings"]
            if settings.get("task") == task and settings.get("seed") != seed and (record.parent / WEIGHTS).is_file():
                return record.parent
    return None


def _after_scan(given: dict[str, Any], bends: int) -> str:
    """A curve after a straight line, the plane of a curve with one bend, or the page."""
    if bends == 1:
        return following(plane, given, *given["what"], out="plane")
    if len(given["what"]) == 2:
        return following(connect, given, *given["what"], out="curve")
    return following(page, given, given["out"], out="page.html")


def _report(results: "Mapping[Path, tw.Scan]") -> None:
    """Scans by folder as text, JSON and CSV, and in the last folder one figure of all, with a row per data set: its
    loss, and its error where there is one.
    """
    from matplotlib.figure import Figure

    from ..store.files import write

    *_, (last, result) = results.items()
    for folder, each in results.items():
        write(folder / "scan.csv", partial(Path.write_text, data=each.to_csv()))
    drawn: Any = result if result.kind == "plane" else {each.name: each for each in results.values()}
    name, draw = ("surface", tw.figures.surface) if result.kind == "plane" else ("profile", tw.figures.profile)
    columns = [quantity for quantity in ("loss", "error") if all(quantity in entry for entry in result.values.values())]
    figure = Figure(figsize=(5.5 * len(columns), _height(result) * len(result.values)), layout="constrained")
    panels = figure.subplots(len(result.values), len(columns), squeeze=False)
    for row, data in zip(panels, result.values, strict=True):
        for ax, quantity in zip(row, columns, strict=True):
            draw(drawn, data, quantity, ax)
    tw.figures.save(figure, last / name)
    for folder, each in results.items():
        # what both say about the ends, only once
        typer.echo((each if folder == last else replace(each, stored={})).table())


def _height(result: "tw.Scan") -> float:
    """Of a panel, in inches: that of a plane as its sides are."""
    import numpy as np

    return (
        4.0
        if result.x is None or result.y is None
        else min(8.0, 1.0 + 4.0 * float(np.ptp(result.y) / np.ptp(result.x)))
    )
