"""thalweg bench."""

from typing import Annotated

import typer

from .options import Arguments, Compile, Device, Graph, Out, Precision, Seed, Task, done


def bench(
    out: Out,
    task: Task = "thalweg.bench:vgg16",
    rounds: Annotated[int, typer.Option(min=2, help="How often each part is timed.")] = 15,
    together: Annotated[int, typer.Option(help="Also train this many networks interleaved, on a GPU; 0 for none.")] = 3,
    seed: Seed = 0,
    device: Device = None,
    precision: Precision = "fp32",
    compile: Compile = None,
    graph: Graph = None,
) -> None:
    """Time your network on this machine: training steps, a scanned point, the data, a checkpoint.

    Prints a table of medians and writes `bench.json`. `thalweg.bench:vgg16`, `:preresnet164` and `:wrn28_10` are
    networks of the paper on random images.
    """
    own = Arguments("bench", locals())
    from ..bench import Bench, machine, ratios, table
    from ..store.files import save_json
    from ..store.runs import Run, start_run

    timer = Bench(own.inputs, own.compute, rounds)
    start_run(out, "bench", own.settings)
    timings = timer.run(together if timer.device.type == "cuda" else 0)
    here = machine(timer.device)
    found = {
        "machine": here,
        "task": task,
        "compute": vars(timer.compute),
        "batch": timer.size,
        "timings": {name: timing.to_dict() for name, timing in timings.items()},
        "ratios": ratios(timings),
    }
    Run(out).finish(lambda folder: save_json(folder / "bench.json", "bench", found))
    typer.echo(f"{task} on {here['device']}, batches of {timer.size}, {timer.compute}\n{table(timings)}")
    typer.echo("\n".join(f"{name}: {value:.3f}" for name, value in ratios(timings).items()))
    done(out, None)
