"""thalweg paper list, run, show and draw."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import thalweg as tw

from .options import Compile, Device, Graph, Quiet, progress

Folder = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where networks, curves and results are stored.")
]

Chosen = Annotated[
    str | None, typer.Option(help="One or several, separated by commas. [default: the entry's]", show_default=False)
]


def list_entries() -> None:
    """List every table and figure of the paper that can be reproduced."""
    from ..paper.entries import ENTRIES

    for entry in ENTRIES.values():
        pairs = ", ".join(f"{model} on {data}" for data, model in entry.pairs)
        typer.echo(f"{entry.name:15} {entry.shows} ({entry.where}; {pairs})")


def run(
    names: Annotated[list[str], typer.Argument(help="Entries of `thalweg paper list`, or `all`.")],
    out: Folder = Path("thalweg-paper"),
    model: Chosen = None,
    data_set: Chosen = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the recipe, such as weight_decay=1e-4; stored in its own folder. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            help="How many runs, if an entry has several; or a list of seeds, for networks too: 0,1,3, or '3,' for one."
        ),
    ] = "3",
    scale: Annotated[
        Literal["full", "smoke"], typer.Option(help="All of it, or just enough to run every line.")
    ] = "full",
    data: Annotated[
        Path | None, typer.Option(envvar="THALWEG_DATA", help="The folder that holds the data sets.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Download missing data from their publishers.")] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            help="Only train part i of n of what is missing, such as 1/4, if several machines share the folder."
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many training runs are interleaved on a GPU.")] = 3,
    device: Device = None,
    compile: Compile = None,
    graph: Graph = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce experiments of the paper, from scratch, on real data.

    What entries share is trained once; an interrupted run is resumed. Writes results as JSON with the paper's
    numbers next to ours, and the figure.
    """
    import torch

    from ..paper import entries, running
    from ..store.runs import check_no_run

    check_no_run(out)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    number, listed = entries.listed_seeds(seeds)
    chosen = [
        (entry, pair)
        for entry in map(entries.find_entry, entries.ENTRIES if names == ["all"] else names)
        for pair in entry.chosen(data_set, model)
    ]
    opened = {}
    for pair in {pair for _, pair in chosen}:
        recipe = entries.find_recipe(*pair, changes or ())
        precision = recipe.precision if where.startswith("cuda") else "fp32"
        compute = tw.Compute(precision, recipe.compile if compile is None else compile, graph)
        opened[pair] = entries.open_experiment(
            out,
            *pair,
            scale,
            changes or (),
            given=data,
            device=where,
            compute=compute,
            progress=progress(quiet),
            download=download,
            seeds=listed,
            interleaved=at_once,
        )
    runs = [(entry, opened[pair]) for entry, pair in chosen]
    typer.echo(f"{len(runs)} run{'s' * (len(runs) > 1)} at {scale} scale on {where}; {running.price(runs, number)}")
    if shard is not None:
        return typer.echo(running.train_part(runs, number, shard))
    running.perform_all(runs, number, typer.echo)
    if scale == "smoke":
        typer.echo("at smoke scale nothing is learned, and whether claims hold means nothing")


def show(
    names: Annotated[list[str] | None, typer.Argument(help="Entries; by default all that have results.")] = None,
    out: Folder = Path("thalweg-paper"),
) -> None:
    """Show results, with the paper's numbers next to ours."""
    from ..reporting.result import FILE, Result

    found = [Result.load(path) for path in sorted(out.rglob(FILE))]
    shown = [result for result in found if not names or result.entry in names]
    if not shown:
        raise tw.ThalwegError(
            f"{out} holds no results{' of those' if names else ''}: make some with `thalweg paper run`"
        )
    typer.echo("\n\n".join(f"{result}\n{_origin(result.about)}" for result in shown))


def draw(out: Folder = Path("thalweg-paper")) -> None:
    """Draw the figures of all results again, from their files alone."""
    from ..paper.drawing import draw as drawn
    from ..reporting.result import FILE

    folders = sorted(path.parent for path in out.rglob(FILE))
    if not folders:
        raise tw.ThalwegError(f"{out} holds no results: make some with `thalweg paper run`")
    for path in (path for folder in folders for path in drawn(folder)):
        typer.echo(f"wrote {path}")


def _origin(about: dict[str, object]) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in about.items() if key not in ("versions", "recipe"))
    return facts + ("; nothing is learned at this scale, and claims mean nothing" if about["scale"] == "smoke" else "")
