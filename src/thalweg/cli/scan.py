"""thalweg scan."""

from pathlib import Path
from typing import Annotated, Any

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, done, following, plain
from .page import page
from .plane import plane
from .scan_output import write_scans


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
    from ..loading import is_curve, load_curve, load_inputs, load_weights
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
    write_scans(results)
    done(out, _after_scan(given, len(target.bends)))


def _after_scan(given: dict[str, Any], bends: int) -> str:
    """A curve after a straight line, the plane of a curve with one bend, or the page."""
    from .connect import connect

    if bends == 1:
        return following(plane, given, *given["what"], out="plane")
    if len(given["what"]) == 2:
        return following(connect, given, *given["what"], out="curve")
    return following(page, given, given["out"], out="page.html")
