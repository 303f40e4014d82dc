"""thalweg plane."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, done, following, plain
from .page import page
from .scan_output import write_scans

if TYPE_CHECKING:
    from torch import nn


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
    from ..loading import load_inputs
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
    write_scans({out: result})
    done(out, following(page, given, out, out="page.html"))


def _plane(what: list[Path], model: "nn.Module", key: str | None) -> "tuple[tw.Plane, dict[str, Any]]":
    from ..loading import is_curve, load_curve, load_weights

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
