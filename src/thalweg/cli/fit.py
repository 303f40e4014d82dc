"""thalweg fit."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import thalweg as tw

from ..errors import ThalwegError
from . import options
from .connect import connect
from .options import bar, done, following, plain


def fit(
    task: options.Task,
    out: options.Out,
    epochs: options.Epochs = 30,
    lr: options.Rate = 0.05,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    keep: Annotated[
        list[int] | None,
        typer.Option(help="An epoch to keep with the optimizer's state, for `thalweg walk --start`; may be repeated."),
    ] = None,
    seed: options.Seed = 0,
    runs: Annotated[
        int,
        typer.Option(
            min=1, help="How many networks, with the seeds --seed, --seed + 1 and so on; on a GPU three at a time."
        ),
    ] = 1,
    device: options.Device = None,
    precision: options.Precision = "fp32",
    compile: options.Compile = None,
    graph: options.Graph = None,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train one network, or several interleaved: the ends of a curve.

    Prints loss and error, and writes `weights.safetensors`; of several networks into one folder each, `seed-0` and so
    on.
    """
    given, settings = {**locals()}, plain(locals())
    from ..loading import load_inputs
    from ..runtime.interleave import at_once
    from ..store.runs import Run

    each, compute = [load_inputs(task, seed + k, device) for k in range(runs)], tw.Compute(precision, compile, graph)
    common: Any = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip": clip}

    def job(number: int) -> Any:
        folder, inputs = out if runs == 1 else out / f"seed-{number}", each[number - seed]
        run = Run(folder, every=every, resume=resume, note={**settings, "seed": number})
        told: Any = {"keep": keep or (), "compute": compute, "run": run, "progress": bar(quiet)}
        return lambda: tw.fit(inputs.model, inputs.task, inputs.train, seed=number, **told, **common)

    trained = at_once([job(seed + k) for k in range(runs)], next(each[0].model.parameters()).device)
    for number, (inputs, weights) in enumerate(zip(each, trained, strict=True), start=seed):
        alone = tw.scan(
            inputs.model, [weights], inputs.task, inputs.data, weight_decay=weight_decay, progress=bar(quiet)
        )
        typer.echo(alone.table() if runs == 1 else f"seed {number}: {alone.table()}")
    done(out, _after_fit(given))


def _after_fit(given: dict[str, Any]) -> str:
    """A curve, if there are two networks of one task; the second network, if there is one."""
    out, seed = given["out"], given["seed"]
    if given["runs"] > 1:
        ends = [out / f"seed-{seed}", out / f"seed-{seed + 1}"]
    elif other := _other_network(out, given["task"], seed):
        ends = [other, out]
    else:
        return following(fit, {**given, "seed": seed + 1}, out=str(out))
    kept = {key: value for key, value in given.items() if key != "epochs"}  # those of a network do not apply to a curve
    return following(connect, kept, *ends, out="curve")


def _other_network(out: Path, task: str, seed: int) -> Path | None:
    """A network next to this one, trained on the same task from another seed."""
    from ..store.files import WEIGHTS, load_json
    from ..store.runs import RECORD

    for record in sorted(out.parent.glob(f"*/{RECORD}")):
        with suppress(ThalwegError):
            settings = load_json(record, "run")["settings"]
            if settings.get("task") == task and settings.get("seed") != seed and (record.parent / WEIGHTS).is_file():
                return record.parent
    return None
