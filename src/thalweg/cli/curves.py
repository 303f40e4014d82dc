"""thalweg connect, scan and plane: curves between networks, and the loss along and around them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import thalweg as tw

from . import options
from .page import page

PERMUTATION = "permutation.safetensors"
Ends = Annotated[
    list[Path],
    typer.Argument(metavar="START END", help="Folders of `thalweg fit`, or checkpoints: .safetensors, .pt, .ckpt."),
]


def connect(
    ends: Ends,
    task: options.Task,
    out: options.Out,
    align: Annotated[
        bool, typer.Option("--align", help="First renumber the hidden units of END to match START: `thalweg align`.")
    ] = False,
    by: options.By = None,
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
    lr: options.OwnRate = None,
    optimizer: options.Optimizer = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = 0.0,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    accumulate: options.Accumulate = 1,
    key: options.Key = None,
    seed: Annotated[
        int, typer.Option(help="Passed to the factory; also the seed of shuffling, dropout, t and --align.")
    ] = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    points: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Then measure this many points along the curve, and a third of them, but not fewer than 9, on the "
            "straight line, and draw them, into OUT/scan: `thalweg scan`.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep the curve on the CPU and only one network on the GPU, to save GPU memory."),
    ] = False,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train a curve of low loss between two trained networks, START and END.

    Writes `curve.safetensors`, and `permutation.safetensors` if units of END could be renumbered.
    """
    by = options.matched_by(align, by)
    own = options.Arguments("connect", {name: value for name, value in locals().items() if name != "points"})
    inputs = own.inputs
    a, b = two_networks(own, "a curve joins two networks")
    if points is not None and a.layout.statistics and inputs.bn_batches is None:  # an error now, not after training
        raise tw.ThalwegError(
            f"batch norm ('{a.layout.statistics[0]}') needs statistics at each point that --points measures: set "
            "bn_batches= to the training batches, or leave --points out"
        )
    if by:
        b = aligned = tw.align(inputs.model, a, b, inputs.task, inputs.train, by=by, seed=seed, groups=inputs.groups)
        typer.echo(f"aligned: {aligned}")
    a, b = (weights.to("cpu") if stream else weights for weights in (a, b))
    fresh = tw.Bezier(a, b, bends) if curve == "bezier" else tw.PolyChain(a, b, bends)
    if a.distance(b) == 0:
        raise tw.ThalwegError(f"a curve joins two networks, and {ends[0]} and {ends[1]} are the same: give another end")
    found = tw.connect(
        inputs.model, fresh, inputs.task, inputs.train, loss=loss, same_t=same_t, **own.training, **own.rates
    )
    if by and aligned.symmetries.groups:
        aligned.permutation.save(out / PERMUTATION)
    typer.echo(f"{type(found).__name__}, length ratio {found.length_ratio():.2f}")
    measured = {**own.given, "weight_decay": own.penalty}
    if points is None:
        return options.done(out, options.following(scan, measured, out, out="scan"))
    options.done(out, None)
    known = {name: measured.get(name, parameter.default) for name, parameter in signature(scan).parameters.items()}
    known |= {"what": [out], "out": out / "scan", "points": str(points)}
    on_lines = max(points // 3, min(points, 9)) | 1  # odd, with the middle
    _scan(options.Arguments("scan", known, inputs), on_lines)


def _permutation(path: Path) -> Path | None:
    """The file with the permutation of an aligned curve, in its folder or next to its file; None for other curves."""
    from ..store.files import CURVE

    folder = path.parent if path.name == CURVE and path.is_file() else path
    return folder / PERMUTATION if (folder / PERMUTATION).is_file() else None


def joining(given: Mapping[str, Any], start: Path, end: Path) -> str:
    """The command that trains a curve, with the learning rate and whatever else `thalweg fit` recorded for START."""
    from ..store.files import load_json
    from ..store.runs import RECORD

    known: dict[str, Any] = {}
    with suppress(tw.ThalwegError):
        known = load_json(start / RECORD, "run")["settings"]
    kept = {name: value for name, value in {**known, **given}.items() if name != "epochs"}  # which are a network's
    return options.following(connect, kept, start, end, out="curve")


def two_networks(own: options.Arguments, rule: str) -> "list[tw.Weights]":
    ends = own.given["ends"]
    loaded = [tw.Weights.load(path, own.inputs.model, own.keys[path]) for path in ends]
    if len(loaded) != 2:
        raise tw.ThalwegError(f"{rule}; got {' '.join(map(str, ends))}: give START and END")
    return loaded


def scan(
    what: Annotated[
        list[Path],
        typer.Argument(
            help="A curve (a folder of `thalweg connect` or its file), or two to compare, such as an aligned one and a "
            "plain one; or two networks, for the straight line."
        ),
    ],
    task: options.Task,
    out: options.Out,
    points: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|adaptive",
            help="Number of equally spaced values of t, with the ends; or adaptive: points where the loss bends.",
        ),
    ] = "61",
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
    of the straight line between its ends, into the folder `line`, and both into one profile; of an aligned curve also
    the line between its ends as they were before, into the folder `unaligned`; of a second curve, into `other`.
    """
    _scan(options.Arguments("scan", locals()))


def _scan(own: options.Arguments, on_lines: int | None = None) -> None:
    what, out, points, line = (own.given[name] for name in ("what", "out", "points", "line"))
    if points != "adaptive" and not points.isdecimal():
        raise tw.ThalwegError(f"--points is a whole number, or adaptive; got {points}")
    wanted = int(points) if points.isdecimal() else points
    given = _curves(own)
    curves: dict[str, tw.Curve] = dict(zip(("", "other"), given.values(), strict=False))
    (path, *_), target = given, curves[""]
    if line and target.bends and target.start.distance(target.end) > 0:
        curves["line"] = tw.Segment(target.start, target.end)
        if _permutation(path):
            curves["unaligned"] = tw.Segment(target.start, _end(path, target))
    results: dict[Path, tw.Scan] = {}
    for folder, curve in curves.items():
        number = wanted if curve.bends or not folder else on_lines or wanted
        run = {"run": own.run.child(folder)} if folder else {}
        results = {out / folder: _measured(own, curve, points=number, **run), **results}
    for folder, name in _names(curves, [*given]).items():
        if results[out / folder].name != name:
            results[out / folder] = replace(results[out / folder], name=name)
            results[out / folder].save(out / folder / "scan.json")
    _write_scans(results)
    if len(target.bends) == 1:
        options.done(out, options.following(plane, own.given, *what, out="plane"))
    elif len(what) == 2:
        options.done(out, joining(own.given, *what))
    else:
        options.done(out, options.following(page, own.given, out, out="page.html"))


def plane(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Any number of curves, networks, walks and ensembles. A folder of `thalweg fit` with two --keep or "
            "more is a whole training run, unless there are just three networks.",
        ),
    ],
    task: options.Task,
    out: options.Out,
    grid: Annotated[int, typer.Option(help="Number of points along each axis.")] = 21,
    adaptive: Annotated[
        bool,
        typer.Option("--adaptive", help="Measure only where contours crowd; interpolate other points."),
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(
            help="How far to go beyond the networks, as a fraction of their extent. [default: 0.2; around one, 0]",
            show_default=False,
        ),
    ] = None,
    weight_decay: options.Decay = 0.0,
    key: options.Key = None,
    seed: Annotated[
        int, typer.Option(help="Passed to the factory; also the seed of the random directions around one network.")
    ] = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    graph: options.Graph = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure loss and error over a plane: through three networks, or a curve's ends and its bend; of the two main
    directions of more networks; or of two random directions around a single one.

    Curves and the networks of each folder are drawn in it. Writes `scan.json`, `scan.csv` and the surface as PNG and
    PDF.
    """
    own = options.Arguments("scan", locals())
    items = _curves_and_members(own)
    networks = {
        point.bare().digest(): point
        for item in items.values()
        for point in ([item.start, item.end, *item.bends] if isinstance(item, tw.Curve) else item)
    }
    target = _plane_of(
        list(networks.values()),
        all(isinstance(item, tw.Curve) or len(item) == 1 for item in items.values()),
        what,
        seed,
    )
    overlay = {
        type(item).__name__ if len(items) == 1 and isinstance(item, tw.Curve) else str(path): item
        for path, item in items.items()
    }
    overlay |= {
        f"bend of {name}": [*item.bends]
        for name, item in overlay.items()
        if target.shares is None and isinstance(item, tw.Curve) and item.bends
    }
    where = {"grid": (grid, grid), "margin": margin, "points": "adaptive" if adaptive else None}
    _write_scans({out: _measured(own, target, overlay=overlay, **where)})
    options.done(out, options.following(page, own.given, out, out="page.html"))


def _curves_and_members(own: options.Arguments) -> "dict[Path, tw.Curve | list[tw.Weights]]":
    """By path; of three networks the last epochs alone, since these make a plane."""
    from ..loading import is_curve, load_curve, load_members, load_training

    what, model = own.given["what"], own.inputs.model
    found = {
        path: load_curve(path, model) if is_curve(path) else load_members(path, model, own.keys[path]) for path in what
    }
    if len(found) != 3 or any(isinstance(item, tw.Curve) or len(item) > 1 for item in found.values()):
        found = {path: load_training(path, model) or item for path, item in found.items()}
    device = next(model.parameters()).device
    return {
        path: item if isinstance(item, tw.Curve) else [each.to(device) for each in item] for path, item in found.items()
    }


def _plane_of(points: "list[tw.Weights]", single: bool, what: list[Path], seed: int) -> "tw.Plane":
    if len(points) == 1:
        return tw.Plane.around(points[0], seed=seed)
    if len(points) == 2:
        raise tw.ThalwegError(
            f"a plane needs one network, or at least three; {' '.join(map(str, what))} hold two different ones, which "
            "lie on a line: give a third, or scan the line"
        )
    return tw.Plane(*points) if len(points) == 3 and single else tw.Plane.fit(points)


def _curves(own: options.Arguments) -> "dict[Path, tw.Curve]":
    """The curves that were given, an aligned one first, or the straight line between two networks."""
    from ..loading import is_curve, load_curve

    what, model = own.given["what"], own.inputs.model
    if len(what) == 1 or (len(what) == 2 and all(map(is_curve, what))):
        return {path: load_curve(path, model) for path in sorted(what, key=lambda path: _permutation(path) is None)}
    if len(what) != 2 or any(map(is_curve, what)):
        raise tw.ThalwegError(
            f"give one curve or two networks to scan, or two curves to compare; got {' '.join(map(str, what))}"
        )
    return {what[0]: tw.Segment(*(tw.Weights.load(path, model, own.keys[path]) for path in what))}


def _end(path: Path, curve: "tw.Curve") -> "tw.Weights":
    """The second network that a curve joins, as it was before alignment."""
    order = _permutation(path)
    return tw.Permutation.load(order).inverse().apply(curve.end) if order else curve.end


def _names(curves: "Mapping[str, tw.Curve]", paths: Sequence[Path]) -> dict[str, str]:
    """What the curves in each folder are called in tables and figures, no two alike."""
    names = {folder: type(curve).__name__ for folder, curve in curves.items()}
    given = dict(zip(("", "other"), paths, strict=False))
    if "unaligned" in curves:
        aligned = [folder for folder, path in given.items() if _permutation(path)]
        names |= {folder: f"aligned {names[folder]}" for folder in (*aligned, "line")}
    if len(set(names.values())) < len(names):
        names |= {folder: f"{names[folder]}, {path}" for folder, path in given.items()}
    ends = {(curves[k].start.bare().digest(), _end(path, curves[k]).bare().digest()) for k, path in given.items()}
    if len(ends) > 1:  # lines are those of the first
        names |= {folder: f"{names[folder]}, {paths[0]}" for folder in ("line", "unaligned") if folder in curves}
    return names


def _measured(own: options.Arguments, target: "tw.Curve | tw.Plane", **where: Any) -> "tw.Scan":
    inputs = own.inputs
    return tw.scan(
        inputs.model,
        target,
        inputs.task,
        inputs.data,
        weight_decay=own.given["weight_decay"],
        bn_batches=inputs.bn_batches,
        **{**own.running, **where},
    )


def _write_scans(results: Mapping[Path, "tw.Scan"]) -> None:
    """Scans by folder as text and CSV, and in the last folder one figure of all, with a row per data set: its loss, and
    its error where there is one.
    """
    from ..reporting.axes import drawn_height
    from ..store.files import write_text

    *_, (last, result) = results.items()
    name, height, layout = "profile", 4.0, "constrained"
    draw: Any = partial(tw.figures.profile, {each.name: each for each in results.values()})
    if result.kind == "plane":
        name, draw, layout = "surface", partial(tw.figures.surface, result), "compressed"
        height = min(8.0, max(3.0, 1.0 + 4.0 * drawn_height(result)))
    columns = [quantity for quantity in ("loss", "error") if all(quantity in entry for entry in result.values.values())]

    def plot(axes: Any) -> None:
        for ax, (data, quantity) in zip(axes.flat, product(result.values, columns), strict=True):
            draw(data, quantity, ax)

    rows = len(result.values)
    figure = tw.figures.panels(plot, (5.5 * len(columns), height * rows), rows, len(columns), layout, squeeze=False)
    tw.figures.save(figure, last / name)
    for folder, each in results.items():
        write_text(folder / "scan.csv", each.to_csv())
        # what both say about the ends, only once
        typer.echo((each if folder == last else replace(each, stored={})).table())
