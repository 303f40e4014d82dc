"""The command line. Torch and matplotlib are imported inside the commands, so that `--help` answers at once."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .errors import Diverged, ThalwegError

if TYPE_CHECKING:
    from torch import nn

    from .evaluation.scan import Scan
    from .weightspace.planes import Plane

app = typer.Typer(
    name="thalweg",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find low-loss curves between trained networks, and measure and draw what lies along and around them.",
    epilog="Start with `thalweg demo`. Every command writes one new folder and says at its end what it wrote.",
)

Task = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="PACKAGE.MODULE:FACTORY",
        help="Your network and data: `factory(seed)` returns a dict with `model`, `task`, `train`, and perhaps `refresh` "
        "(training data without augmentation, for batch norm) and `data` (name -> batches to measure on). "
        "`thalweg.demo:digits` is one to try.",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder for everything this command writes.")]
Epochs = Annotated[int, typer.Option(help="How many times to go through the training data.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate: constant for half the epochs, then down to 1 %.")]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.")]
Decay = Annotated[float, typer.Option("--weight-decay", help="The loss counts half this times the squared weights.")]
Clip = Annotated[float | None, typer.Option(help="Largest norm of the gradient. [default: no limit]", show_default=False)]
Seed = Annotated[int, typer.Option(help="Given to the factory, and decides shuffling and every random choice.")]
Device = Annotated[
    str | None,
    typer.Option(help="Where to compute, such as cpu or cuda:1. [default: cuda if there is one]", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, even on a terminal.")]
Network = Annotated[Path, typer.Argument(help="A folder of `thalweg fit`, a .safetensors file, or a .pt state dict.")]


def _plainly(command: Callable[..., None]) -> Callable[..., None]:
    """What went wrong in one sentence: exit code 2 for bad input, 1 for a run that diverged, 130 for Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            _fail("stopped by Ctrl-C; nothing that was on disk before has changed", 130)
        except Diverged as error:
            _fail(f"{error}{_keep(error, kwargs.get('out'))}", 1)
        except (ThalwegError, OSError) as error:
            _fail(str(error), 2)

    return wrapped


@app.command()
@_plainly
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where figures and results go.")] = Path(
        "thalweg-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Three small networks on handwritten digits, the curves between two of them, and the planes around them.

    Needs no data and no GPU, and takes less than two minutes on two cores. It ends with a table, in which the straight
    line between the networks meets a barrier and the trained curves do not, and with figures as PNG and PDF.
    """
    from .demo import CONNECT, FIT, run
    from .store.runs import start_run

    start_run(out, "demo", {"fit": FIT, "connect": CONNECT}, again=True)
    run(out, progress=_bar(quiet))
    figures = f"thalweg plane {out}/bezier.safetensors --task thalweg.demo:digits --out plane"
    _done(out, "*", figures)


@app.command()
@_plainly
def fit(
    task: Task,
    out: Out,
    epochs: Epochs = 30,
    lr: Rate = 0.05,
    momentum: Momentum = 0.9,
    weight_decay: Decay = 0.0,
    clip: Clip = None,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train one network: the end of a curve. Run it with two seeds to get two ends.

    Writes `weights.safetensors`.
    """
    settings = {key: value for key, value in locals().items() if key not in ("out", "quiet")}
    from .inputs import WEIGHTS, load_inputs
    from .store.runs import start_run
    from .training.fit import fit as train

    inputs = load_inputs(task, seed, device)
    start_run(out, "fit", settings)
    rest: Any = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip": clip, "seed": seed}
    train(inputs.model, inputs.task, inputs.train, progress=_bar(quiet), **rest).save(out / WEIGHTS)
    _done(out, "*", f"thalweg connect {out} OTHER --task {task} --out curve")


@app.command()
@_plainly
def connect(
    start: Network,
    end: Network,
    task: Task,
    out: Out,
    curve: Annotated[Literal["bezier", "polychain"], typer.Option(help="The kind of curve.")] = "bezier",
    bends: Annotated[int, typer.Option(help="How many trainable points between the ends.")] = 1,
    loss: Annotated[
        Literal["uniform", "arclength"],
        typer.Option(help="What is minimised: the mean loss over t (uniform), or over the length of the curve (arclength)."),
    ] = "uniform",
    epochs: Epochs = 60,
    lr: Rate = 0.05,
    momentum: Momentum = 0.9,
    weight_decay: Decay = 0.0,
    clip: Clip = None,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Find a curve of low loss between two trained networks, START and END.

    Writes `curve.safetensors`.
    """
    settings = {key: str(v) if isinstance(v, Path) else v for key, v in locals().items() if key not in ("out", "quiet")}
    from .inputs import CURVE, load_inputs, load_weights
    from .store.runs import start_run
    from .training.connect import connect as train
    from .weightspace.curves import Bezier, PolyChain

    inputs = load_inputs(task, seed, device)
    kind = Bezier if curve == "bezier" else PolyChain
    fresh = kind(load_weights(start, inputs.model), load_weights(end, inputs.model), bends)
    start_run(out, "connect", settings)
    rest: Any = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip": clip, "seed": seed}
    train(inputs.model, fresh, inputs.task, inputs.train, loss=loss, progress=_bar(quiet), **rest).save(out / CURVE)
    _done(out, "*", f"thalweg scan {out} --task {task} --weight-decay {weight_decay} --out scan")


@app.command()
@_plainly
def scan(
    what: Annotated[
        list[Path],
        typer.Argument(help="A curve (a folder of `thalweg connect` or its file); or two networks, for the straight line."),
    ],
    task: Task,
    out: Out,
    points: Annotated[int, typer.Option(help="How many equally spaced values of t, the ends included.")] = 61,
    weight_decay: Decay = 0.0,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure loss and error along a curve, or along the straight line between two networks.

    Prints the summary and writes `scan.json`, `scan.csv` and the profile as PNG and PDF.
    """
    settings = {"what": list(map(str, what)), "task": task, "points": points, "weight_decay": weight_decay, "seed": seed}
    from .evaluation.scan import scan as measure
    from .inputs import is_curve, load_curve, load_inputs, load_weights
    from .reporting import figures
    from .store.runs import start_run
    from .weightspace.curves import Segment

    inputs = load_inputs(task, seed, device)
    if len(what) == 1:
        target = load_curve(what[0], inputs.model)
    elif len(what) == 2 and not any(map(is_curve, what)):
        target = Segment(*(load_weights(path, inputs.model) for path in what))
    else:
        raise ThalwegError(f"give one curve or two networks to scan; got {' '.join(map(str, what))}")
    start_run(out, "scan", settings)
    rest: Any = {"points": points, "weight_decay": weight_decay, "refresh": inputs.refresh, "progress": _bar(quiet)}
    result = measure(inputs.model, target, inputs.task, inputs.data, **rest)
    _write(out, result, "profile", lambda data, quantity, ax: figures.profile(result, data, quantity, ax))
    typer.echo(result.table())
    _done(out, "*", f"thalweg plane {what[0]} --task {task} --out plane" if len(what) == 1 else None)


@app.command()
@_plainly
def plane(
    what: Annotated[
        list[Path],
        typer.Argument(help="Three networks; or one curve with one bend, for the plane in which it lies."),
    ],
    task: Task,
    out: Out,
    grid: Annotated[int, typer.Option(help="How many points along each axis.")] = 21,
    margin: Annotated[
        float, typer.Option(help="How far to look beyond the three points, as a share of their extent.")
    ] = 0.2,
    weight_decay: Decay = 0.0,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure loss and error over the plane through three networks, or through a curve's ends and its bend.

    Writes `scan.json`, `scan.csv` and the surface as PNG and PDF.
    """
    settings = {"what": list(map(str, what)), "task": task, "grid": grid, "margin": margin, "weight_decay": weight_decay}
    from .evaluation.scan import scan as measure
    from .inputs import load_inputs
    from .reporting import figures
    from .store.runs import start_run

    inputs = load_inputs(task, seed, device)
    target, drawn = _plane(what, inputs.model)
    start_run(out, "plane", {**settings, "seed": seed})
    rest: Any = {"weight_decay": weight_decay, "refresh": inputs.refresh, "draw": drawn, "progress": _bar(quiet)}
    result = measure(inputs.model, target, inputs.task, inputs.data, grid=(grid, grid), margin=margin, **rest)
    _write(out, result, "surface", lambda data, quantity, ax: figures.surface(result, data, quantity, ax))
    typer.echo(result.table())
    _done(out, "*", None)


def _plane(what: list[Path], model: "nn.Module") -> "tuple[Plane, dict[str, Any]]":
    from .inputs import is_curve, load_curve, load_weights
    from .weightspace.planes import Plane

    if len(what) == 3 and not any(map(is_curve, what)):
        return Plane(*(load_weights(path, model) for path in what)), {}
    if len(what) != 1:
        raise ThalwegError(f"give three networks, or one curve, for a plane; got {' '.join(map(str, what))}")
    curve = load_curve(what[0], model)
    if len(curve.bends) != 1:
        raise ThalwegError(
            f"a curve lies in a plane if it has one bend; {what[0]} has {len(curve.bends)}: give three networks"
        )
    return Plane(curve.start, curve.end, curve.bends[0]), {type(curve).__name__: curve}


def _write(out: Path, result: "Scan", name: str, draw: Callable[[str, str, Any], Any]) -> None:
    """The result as JSON and CSV, and one figure with a panel per data set: its error where there is one, else its loss."""
    from matplotlib.figure import Figure

    from .reporting import figures
    from .store.files import write

    result.save(out / "scan.json")
    write(out / "scan.csv", lambda temporary: temporary.write_text(result.to_csv()))
    panels = [
        (data, quantity) for data, entry in result.values.items() for quantity in ("loss", "error") if quantity in entry
    ]
    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    for ax, (data, quantity) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(data, quantity, ax)
    figures.save(figure, out / name)


def _bar(quiet: bool) -> bool | None:
    return False if quiet else None


def _done(out: Path, pattern: str, following: str | None) -> None:
    typer.echo("wrote " + "\n      ".join(str(path) for path in sorted(out.glob(pattern))))
    if following:
        typer.echo(f"next: {following}")


def _keep(error: Diverged, out: Path | None) -> str:
    if out is None:
        return ""
    path = out / "last-good.safetensors"
    error.last_good.save(path)
    return f"; they are in {path}"


def _fail(message: str, code: int) -> None:
    typer.echo(f"thalweg: {message}", err=True)
    raise typer.Exit(code)


def main() -> None:
    app(prog_name="thalweg" if not sys.argv[0].endswith("__main__.py") else "python -m thalweg")
