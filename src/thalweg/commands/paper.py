"""paper list, run, show."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from ..errors import ThalwegError
from .options import Compile, Device, Graph, Quiet, bar

T = TypeVar("T")
Folder = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where networks, curves and results are kept and found.")
]

Chosen = Annotated[
    str | None, typer.Option(help="One or several, separated by commas. [default: the entry's]", show_default=False)
]


def list_entries() -> None:
    """Every table and figure of the paper that can be run again."""
    from ..paper.entries import ENTRIES

    for entry in ENTRIES.values():
        typer.echo(f"{entry.name:15} {entry.shows} ({entry.where}; by default {entry.model} on {entry.data})")


def run(
    names: Annotated[list[str], typer.Argument(help="Entries of `thalweg paper list`, or `all`.")],
    out: Folder = Path("thalweg-paper"),
    model: Chosen = None,
    data_set: Chosen = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs, where an entry has several.")] = 3,
    scale: Annotated[Literal["full", "smoke"], typer.Option(help="All of it, or just enough to run every line.")] = "full",
    data: Annotated[Path | None, typer.Option(envvar="THALWEG_DATA", help="The folder that holds the data sets.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch data that are not there from their makers' pages.")] = False,
    shard: Annotated[str, typer.Option(help="Only part i of n of the runs, as 1/4, to divide them over machines.")] = "1/1",
    device: Device = None,
    precision: Annotated[
        Literal["fp32", "bf16"] | None, typer.Option(help="[default: bf16 on a GPU]", case_sensitive=False, show_default=False)
    ] = None,
    compile: Compile = None,
    graph: Graph = None,
    quiet: Quiet = False,
) -> None:
    """Run experiments of the paper again, from scratch, on real data.

    What entries share is trained once and found again; a run that was stopped goes on. Writes results as JSON with the paper's
    numbers beside ours, and the figure.
    """
    import torch

    from ..modes import Mode
    from ..paper.entries import ENTRIES, find_entry, open_shop, perform, price
    from ..paper.workshop import prepare

    entries = [find_entry(name) for name in (ENTRIES if names == ["all"] else names)]
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    mode = Mode(precision or ("bf16" if where.startswith("cuda") else "fp32"), compile, graph)
    runs = [
        (entry, (own_data, own_model))
        for entry in entries
        for own_data in (data_set or entry.data).split(",")
        for own_model in (model or entry.model).split(",")
    ]
    runs = _part(sorted(runs, key=lambda item: item[1]), shard)
    shops = {
        pair: open_shop(out, *pair, scale, given=data, device=where, mode=mode, progress=bar(quiet), download=download)
        for pair in dict.fromkeys(pair for _, pair in runs)
    }
    wanted = [item for entry, pair in runs for item in entry.wanted(shops[pair], seeds)]
    typer.echo(f"{len(runs)} runs at {scale} scale on {where}; {price(wanted)}")
    prepare(wanted)
    for entry, pair in runs:
        shop = shops[pair]
        typer.echo(f"\n{perform(shop, entry, seeds)}\nwrote {shop.folder / entry.name}")
    if scale == "smoke":
        typer.echo("at smoke scale nothing is learned, and whether claims hold means nothing")


def show(
    out: Folder = Path("thalweg-paper"),
    names: Annotated[list[str] | None, typer.Option("--entry", help="Only these.")] = None,
) -> None:
    """Results that are there, with the paper's numbers beside ours."""
    from ..paper.result import FILE, Result

    found = [Result.load(path) for path in sorted(out.rglob(FILE))]
    shown = [result for result in found if not names or result.entry in names]
    if not shown:
        raise ThalwegError(f"{out} holds no results{' of those' if names else ''}: make some with `thalweg paper run`")
    typer.echo("\n\n".join(f"{result}\n{_origin(result.about)}" for result in shown))


def _origin(about: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in about.items() if key != "versions")


def _part(runs: list[T], shard: str) -> list[T]:
    """Part i of n, whole stretches, since neighbours share networks."""
    try:
        i, n = (int(part) for part in shard.split("/"))
    except ValueError:
        i, n = 0, 0
    if not 1 <= i <= n:
        raise ThalwegError(f"a shard is part i of n, such as 1/4; got '{shard}'")
    return runs[len(runs) * (i - 1) // n : len(runs) * i // n]
