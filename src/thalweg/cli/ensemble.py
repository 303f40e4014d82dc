"""thalweg ensemble."""

from pathlib import Path
from typing import Annotated

import typer

import thalweg as tw

from . import options
from .options import bar, chosen_data, done, following, plain
from .page import page

MEMBERS = "members"


def ensemble(
    what: Annotated[
        list[Path], typer.Argument(help="Folders of `thalweg walk` or `fit`, or weights files; all are pooled.")
    ],
    task: options.Task,
    out: options.Out,
    data: options.Data = None,
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
    from ..loading import load_inputs, load_members
    from ..store.files import no_link
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    name = chosen_data(inputs.data, data)
    pooled = tw.Ensemble(inputs.model, [member for path in what for member in load_members(path, inputs.model, key)])
    members = [member.digest() for member in pooled.members]
    with Run(out, resume=resume, note=settings).opened("ensemble", {"data": name, "members": members}) as run:
        report = pooled.report(inputs.task, inputs.data[name], progress=bar(quiet))
        pooled.save(no_link(out / MEMBERS))
        run.finish(lambda folder: report.save(folder / "report.json"))
    typer.echo(f"on '{name}'\n{report.table()}")
    done(out, following(page, {}, out, out="page.html"))
