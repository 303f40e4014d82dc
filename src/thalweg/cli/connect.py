"""thalweg connect."""

from typing import Annotated, Any, Literal

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .options import bar, done, following, plain
from .scan import scan


def connect(
    ends: options.Networks,
    task: options.Task,
    out: options.Out,
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
    lr: options.Rate = 0.05,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    key: options.Key = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep the curve on the CPU and only one network on the GPU, to save GPU memory."),
    ] = False,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train a curve of low loss between two trained networks, START and END.

    Writes `curve.safetensors`.
    """
    given, settings = {**locals()}, plain(locals())
    from ..loading import load_inputs, load_weights
    from ..store.runs import Run

    inputs = load_inputs(task, seed, device)
    kind = tw.Bezier if curve == "bezier" else tw.PolyChain
    loaded = [load_weights(path, inputs.model, key) for path in ends]
    if len(loaded) != 2:
        raise ThalwegError(f"a curve joins two networks; got {' '.join(map(str, ends))}: give START and END")
    a, b = loaded
    fresh = kind(a.to("cpu"), b.to("cpu"), bends) if stream else kind(a, b, bends)
    if a.distance(b) == 0:
        raise ThalwegError(f"a curve joins two networks, and {ends[0]} and {ends[1]} are the same: give another end")
    run = Run(out, every=every, resume=resume, note=settings)
    rest: Any = {
        "epochs": epochs,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "clip": clip,
        "seed": seed,
    }
    how = tw.Compute(precision, compile, graph, stream)
    told: Any = {"loss": loss, "same_t": same_t, "compute": how, "run": run, "progress": bar(quiet)}
    found = tw.connect(inputs.model, fresh, inputs.task, inputs.train, **told, **rest)
    typer.echo(f"{type(found).__name__}, length ratio {found.length_ratio():.2f}")
    done(out, following(scan, given, out, out="scan"))
