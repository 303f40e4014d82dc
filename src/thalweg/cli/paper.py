"""paper list, run, show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import Stopped, ThalwegError
from .options import Compile, Device, Graph, Quiet, bar

if TYPE_CHECKING:
    from ..paper.entries import Entry
    from ..paper.experiment import Experiment

Folder = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where networks, curves and results are stored.")
]

Chosen = Annotated[
    str | None, typer.Option(help="One or several, separated by commas. [default: the entry's]", show_default=False)
]


def list_entries() -> None:
    """List every table and figure of the paper that can be reproduced."""
    from ..paper.entries import ENTRIES, SHOWS

    for entry in ENTRIES.values():
        pairs = ", ".join(f"{model} on {data}" for data, model in entry.pairs)
        shows, where = SHOWS[entry.name]
        typer.echo(f"{entry.name:15} {shows} ({where}; {pairs})")


def run(
    names: Annotated[list[str], typer.Argument(help="Entries of `thalweg paper list`, or `all`.")],
    out: Folder = Path("thalweg-paper"),
    model: Chosen = None,
    data_set: Chosen = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs, where an entry has several.")] = 3,
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
            help="Only train, and only part i of n of what is missing, as 1/4: for machines that share the folder."
        ),
    ] = None,
    device: Device = None,
    precision: Annotated[
        Literal["fp32", "bf16"] | None,
        typer.Option(help="[default: bf16 on a GPU]", case_sensitive=False, show_default=False),
    ] = None,
    compile: Compile = None,
    graph: Graph = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce experiments of the paper, from scratch, on real data.

    What entries share is trained once; an interrupted run is resumed. Writes results as JSON with the paper's
    numbers next to ours, and the figure.
    """
    import torch

    from ..paper.entries import ENTRIES, find_entry, open_experiment
    from ..paper.experiment import Experiment
    from ..paper.pricing import price
    from ..runtime.compute import Compute

    entries = [find_entry(name) for name in (ENTRIES if names == ["all"] else names)]
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    shops: dict[tuple[str, str], Experiment] = {}
    runs = []
    for entry in entries:
        for pair in entry.chosen(data_set, model):
            recurrent = pair[0] == "ptb"  # whose layers are single calls, with nothing to compile
            usual = "bf16" if where.startswith("cuda") and not recurrent else "fp32"
            compute = Compute(precision or usual, False if recurrent and compile is None else compile, graph)  # type: ignore[arg-type]
            common: Any = {
                "given": data,
                "device": where,
                "compute": compute,
                "progress": bar(quiet),
                "download": download,
            }
            shops[pair] = shops.get(pair) or open_experiment(out, *pair, scale, **common)
            runs.append((entry, shops[pair]))
    typer.echo(f"{len(runs)} runs at {scale} scale on {where}; {price(runs, seeds)}")
    if shard is not None:
        return _train_part(runs, seeds, shard)
    _perform(runs, seeds)
    if scale == "smoke":
        typer.echo("at smoke scale nothing is learned, and whether claims hold means nothing")


def _perform(runs: "list[tuple[Entry, Experiment]]", seeds: int) -> None:
    """Train everything needed, then measure; a run that fails does not stop the others."""
    from ..paper.entries import perform
    from ..paper.experiment import prepare

    failed = []
    try:
        prepare([item for entry, experiment in runs for item in entry.wanted(experiment, seeds)])
        for entry, experiment in runs:
            try:
                typer.echo(f"\n{perform(experiment, entry, seeds)}\nwrote {experiment.folder / entry.name}")
            except ThalwegError as error:
                failed.append(f"{entry.name}: {error}")
    except Stopped as error:
        raise Stopped("stopped; everything trained and measured so far is kept", error.signal) from None
    if failed:
        raise ThalwegError("; ".join(failed))


def _train_part(runs: "list[tuple[Entry, Experiment]]", seeds: int, shard: str) -> None:
    """What can be trained now, divided among shards; the next stage once all shards have finished this one."""
    from ..paper.experiment import missing, prepare

    wanted = list(dict.fromkeys(item for entry, experiment in runs for item in entry.wanted(experiment, seeds)))
    left = missing(wanted)
    first = min((need.stage for _, need in left), default=0)
    i, n = _shard(shard)
    own = [item for item in wanted if item[1].stage == first][i - 1 :: n]  # the same division on every machine
    todo = missing(own)
    prepare(todo)
    later = any(need.stage > first for _, need in left)
    then = (
        "more can be trained once all shards are done: run the command again"
        if later
        else "then run it without --shard"
    )
    typer.echo(f"trained {len(todo)} of the {len(own)} of this shard; {then}")


def show(
    names: Annotated[list[str] | None, typer.Argument(help="Entries; by default all that have results.")] = None,
    out: Folder = Path("thalweg-paper"),
) -> None:
    """Show results, with the paper's numbers next to ours."""
    from ..reporting.result import FILE, Result

    found = [Result.load(path) for path in sorted(out.rglob(FILE))]
    shown = [result for result in found if not names or result.entry in names]
    if not shown:
        raise ThalwegError(f"{out} holds no results{' of those' if names else ''}: make some with `thalweg paper run`")
    typer.echo("\n\n".join(f"{result}\n{_origin(result.about)}" for result in shown))


def draw(out: Folder = Path("thalweg-paper")) -> None:
    """Draw the figures of all results again, from their files alone."""
    from ..paper.drawing import draw as drawn
    from ..reporting.result import FILE

    folders = sorted(path.parent for path in out.rglob(FILE))
    if not folders:
        raise ThalwegError(f"{out} holds no results: make some with `thalweg paper run`")
    for path in (path for folder in folders for path in drawn(folder)):
        typer.echo(f"wrote {path}")


def _origin(about: dict[str, object]) -> str:
    told = ", ".join(f"{key} {value}" for key, value in about.items() if key not in ("versions", "recipe"))
    return told + ("; nothing is learned at this scale, and claims mean nothing" if about["scale"] == "smoke" else "")


def _shard(shard: str) -> tuple[int, int]:
    try:
        i, n = (int(part) for part in shard.split("/"))
    except ValueError:
        i, n = 0, 0
    if not 1 <= i <= n:
        raise ThalwegError(f"a shard is part i of n, such as 1/4; got '{shard}'")
    return i, n
