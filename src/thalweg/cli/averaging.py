"""thalweg barriers and soup: whether several networks can be averaged, and their average."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import thalweg as tw

from . import options
from .ensembles import check_different, chosen_data
from .page import page

Networks = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Folders of `thalweg fit` or `walk`, or checkpoints: .safetensors, .pt, .ckpt."),
]


def barriers(
    what: Networks,
    task: options.Task,
    out: options.Out,
    align: Annotated[
        bool,
        typer.Option(
            "--align", help="Measure all pairs again with the hidden units of one renumbered to match the other."
        ),
    ] = False,
    by: options.By = None,
    points: Annotated[int, typer.Option(help="Number of points on each line, including its ends.")] = 11,
    weight_decay: options.Decay = 0.0,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    graph: options.Graph = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the barriers on the straight lines between all pairs of networks: can these be averaged?

    Prints a matrix for each data set and quantity (a barrier is the largest excess over the line that joins the values
    of both networks), and writes `barriers.json`, `barriers.csv` and the matrices as PNG and PDF.
    """
    by = options.matched_by(align, by)
    own = options.Arguments("barriers", locals())
    from ..store.files import write_text

    inputs = own.inputs
    found = tw.barriers(
        inputs.model,
        _networks(own, "barriers lie between networks"),
        inputs.task,
        inputs.data,
        align=by or False,
        groups=inputs.groups,
        points=points,
        weight_decay=weight_decay,
        bn_batches=inputs.bn_batches,
        **own.running,
    )
    tw.figures.save(_drawn(found), out / "barriers")
    write_text(out / "barriers.csv", found.to_csv())
    typer.echo(found.table())
    options.done(out, options.following(page, own.given, out, out="page.html"))


def _drawn(found: "tw.Barriers") -> Any:
    """A row of panels for the loss and the error on each data set."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = [(data, quantity) for data, quantity in found.quantities() if quantity in ("loss", "error")]

    def plot(axes: Any) -> None:
        for row, (data, quantity) in zip(axes, drawn, strict=True):
            tw.figures.barriers(found, data, quantity, row)

    rows, columns = len(drawn), len(found.panels())
    layout = ConstrainedLayoutEngine(compress=True, h_pad=0.15)  # apart from the titles of the next row
    return tw.figures.panels(plot, (1.4 + 4.4 * columns, 4.4 * rows), rows, columns, layout, squeeze=False)


def soup(
    what: Networks,
    task: options.Task,
    out: options.Out,
    how: Annotated[
        Literal["greedy", "uniform"],
        typer.Option(
            help="Add networks, the best first, unless they worsen the score of the average; or average all.",
            case_sensitive=False,
        ),
    ] = "greedy",
    data: Annotated[
        str | None,
        typer.Option(
            "--held-out",
            "--data",
            help="Which of the factory's data to choose by, preferably used for nothing else. [default: the last]",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="What to choose by. [default: the error, or the loss if there is none]", show_default=False),
    ] = None,
    maximise: Annotated[bool, typer.Option("--maximise", help="Higher values of the metric are better.")] = False,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    graph: options.Graph = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Average the weights of several networks into one, chosen by their score on held-out data.

    Prints the score of each network and of each average, and what the result measures on all data; writes
    `weights.safetensors`.
    """
    own = options.Arguments("soup", locals())
    inputs, networks = own.inputs, _networks(own, "a soup is an average of networks")
    name = chosen_data(inputs.data, data)
    found = tw.soup(
        inputs.model,
        networks,
        inputs.task,
        inputs.data[name],
        how=how,
        metric=metric,
        maximise=maximise,
        bn_batches=inputs.bn_batches,
        **own.running,
    )
    others = "" if data or len(inputs.data) == 1 else ", the last of the data: for others, give --held-out"
    typer.echo(f"{'chosen' if how == 'greedy' else 'scored'} on '{name}'{others}\n{found}")
    scan = tw.scan(inputs.model, [found], inputs.task, inputs.data, progress=options.progress(quiet))
    typer.echo(replace(scan, name="the average").table())
    options.done(out, options.following(barriers, {**own.given, "align": bool(found.barrier)}, *what, out="barriers"))


def _networks(own: options.Arguments, rule: str) -> "dict[str, tw.Weights]":
    """By the names of their folders, or their paths where several have one name; members of a walk are numbered."""
    from ..loading import load_members

    what, model = own.given["what"], own.inputs.model
    check_different(what)
    short = [path.stem if path.is_file() else path.resolve().name for path in what]
    names = short if len(set(short)) == len(short) else map(str, what)
    found = {name: load_members(path, model, own.keys[path]) for name, path in zip(names, what, strict=True)}
    if sum(map(len, found.values())) < 2:
        raise tw.ThalwegError(f"{rule}, and {what[0]} holds a single one: give another RUN with it")
    device = next(model.parameters()).device
    return {
        f"{name}/{number}" if len(members) > 1 else name: member.to(device)
        for name, members in found.items()
        for number, member in enumerate(members, start=1)
    }
