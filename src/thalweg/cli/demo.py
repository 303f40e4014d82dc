"""thalweg demo."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .curves import plane


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
    Run(out).finish(lambda folder: run(folder, progress=options.progress(quiet)))
    given = {"task": "thalweg.demo:digits", "weight_decay": WEIGHT_DECAY}
    options.done(out, options.following(plane, given, out / "bezier.safetensors", out="plane"))
