"""thalweg fit and align: networks, and their hidden units renumbered to match those of another."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import thalweg as tw

from . import options
from .curves import PERMUTATION, Ends, joining, two_networks


def fit(
    task: options.Task,
    out: options.Out,
    epochs: options.Epochs = 30,
    lr: options.OwnRate = None,
    optimizer: options.Optimizer = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = 0.0,
    momentum: options.Momentum = 0.9,
    weight_decay: options.Decay = 0.0,
    clip: options.Clip = None,
    accumulate: options.Accumulate = 1,
    keep: Annotated[
        list[int] | None,
        typer.Option(help="An epoch to keep with the optimizer's state, for `thalweg walk --start`; may be repeated."),
    ] = None,
    seed: options.TrainingSeed = 0,
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
    stop_if_stalled: options.StopIfStalled = False,
    resume: options.Resume = False,
    every: options.Every = "1m",
    quiet: options.Quiet = False,
) -> None:
    """Train one network, or several interleaved: the ends of a curve.

    Prints loss and error, and writes `weights.safetensors`; of several networks into one folder each, `seed-0` and so
    on.
    """
    given = {**locals()}
    from ..runtime.interleave import at_once
    from ..store.runs import check_no_run

    if runs > 1:
        options.once(partial(check_no_run, out))
    folders = {seed: out} if runs == 1 else {number: out / f"seed-{number}" for number in range(seed, seed + runs)}
    each = [options.Arguments("fit", {**given, "seed": number, "out": folder}) for number, folder in folders.items()]
    inputs = [own.inputs for own in each]
    jobs = [
        partial(tw.fit, made.model, made.task, made.train, keep=keep or (), **own.training, **own.rates)
        for own, made in zip(each, inputs, strict=True)
    ]
    trained = at_once(jobs, next(inputs[0].model.parameters()).device)
    for number, made, weights in zip(folders, inputs, trained, strict=True):
        scan = tw.scan(
            made.model,
            [weights],
            made.task,
            made.data,
            weight_decay=each[0].penalty,
            progress=options.progress(quiet),
        )
        typer.echo(replace(scan, name=f"seed {number}").table())
    options.done(out, _after_fit(given, list(folders.values())))


def _after_fit(given: dict[str, Any], networks: list[Path]) -> str:
    """A curve, if there are two networks of one task; the second network, if there is one."""
    seed = given["seed"]
    ends = networks[:2] if len(networks) > 1 else [*_other_network(networks[0], given["task"], seed), *networks]
    if len(ends) == 1:
        return options.following(fit, {**given, "seed": seed + 1}, out=str(networks[0]))
    return joining(given, *ends)


def _other_network(out: Path, task: str, seed: int) -> list[Path]:
    """A network next to this one, trained on the same task from another seed, if there is one."""
    from ..store.files import WEIGHTS, load_json
    from ..store.runs import RECORD

    for record in sorted(out.parent.glob(f"*/{RECORD}")):
        with suppress(tw.ThalwegError):
            settings = load_json(record, "run")["settings"]
            if settings.get("task") == task and settings.get("seed") != seed and (record.parent / WEIGHTS).is_file():
                return [record.parent]
    return []


def align(
    ends: Ends,
    task: options.Task,
    out: options.Out,
    by: Annotated[
        Literal["weights", "activations"],
        typer.Option(
            help="What is matched: the weights of units, or their activations on the training data.",
            case_sensitive=False,
        ),
    ] = "weights",
    key: options.Key = None,
    seed: Annotated[
        int, typer.Option(help="Passed to the factory; also the seed of the order in which units are matched.")
    ] = 0,
    device: options.Device = None,
) -> None:
    """Renumber the hidden units of END to match those of START: the function stays the same, the distance
    becomes smaller.

    Prints which units can be renumbered, and writes `weights.safetensors` and `permutation.safetensors`.
    """
    own = options.Arguments("align", locals())
    from ..store.runs import Run, start_run

    a, b = two_networks(own, "align takes two networks")
    inputs = own.inputs
    aligned = tw.align(inputs.model, a, b, inputs.task, inputs.train, by=by, seed=seed, groups=inputs.groups)
    start_run(out, "align", own.settings)
    aligned.permutation.save(out / PERMUTATION)
    Run(out).finish(lambda folder: aligned.save(folder / "weights.safetensors"))
    typer.echo(f"{aligned.symmetries}\n{aligned}")
    options.done(out, joining({**own.given, "key": own.keys[ends[0]]}, ends[0], out))  # OUT holds one network
