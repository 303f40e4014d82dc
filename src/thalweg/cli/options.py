"""Options that several commands share, and how a command starts and ends."""

import json
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from inspect import signature
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import typer

import thalweg as tw

if TYPE_CHECKING:
    from ..loading import Inputs
    from ..store.runs import Run
    from ..training import sgd, walk_methods

RATE, SMALL_RATE = 0.05, 0.001  # default learning rates, of SGD and of Adam
MANY = 30  # with more files, only those at the top level are listed
CARRIED = (  # options to pass on to the next command, which would otherwise compute something else
    "task", "key", "align", "epochs", "lr", "optimizer", "schedule", "warmup", "momentum", "weight_decay", "clip",
    "accumulate", "keep", "seed", "device", "precision",
    "compile", "graph", "stop_if_stalled",
)  # fmt: skip
WITHOUT_EFFECT = (  # options that change no result
    "out", "quiet", "resume", "every", "device", "compile", "graph", "stream", "runs", "line", "stop_if_stalled",
)  # fmt: skip
Task = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="FILE.py:FACTORY",
        help="Your network and data: `factory(seed)` returns a dict: `model`, `task`, `train`, maybe `bn_batches` "
        "(batches as in training, for batch norm), `data` (name -> batches to measure on), `optimizer`, "
        "`schedule` and `groups` (as `thalweg.align` takes them). "
        "Or `package.module:factory`; `thalweg.demo:digits` is one to try.",
    ),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder for everything this command writes.")
]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate: constant for half the epochs, then down to 1 %.")]
OwnRate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        help="Learning rate. [default: that of the factory's `optimizer`, 0.001 with adam and adamw, or 0.05]",
        show_default=False,
    ),
]
Optimizer = Annotated[
    Literal["sgd", "adam", "adamw"] | None,
    typer.Option(
        help="The optimizer. The weight decay of adamw is decoupled, and leaves out biases, norms and other vectors. "
        "[default: the factory's `optimizer`, or sgd]",
        case_sensitive=False,
        show_default=False,
    ),
]
Schedule = Annotated[
    Literal["decay", "cosine", "constant"] | None,
    typer.Option(
        help="The learning rate over the run: constant for half the epochs, then down to 1 % (decay), a cosine, or "
        "constant. [default: the factory's `schedule`; constant with its `optimizer` and no --lr; or decay]",
        case_sensitive=False,
        show_default=False,
    ),
]
Warmup = Annotated[float, typer.Option(help="Epochs of linear warm-up before the cosine.")]
Accumulate = Annotated[int, typer.Option(help="Batches per update, whose gradients are averaged.")]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.")]
Decay = Annotated[
    float,
    typer.Option(
        "--weight-decay",
        help="Weight decay: half of it times the squared norm is part of the loss; that of adamw is decoupled.",
    ),
]
Clip = Annotated[
    float | None, typer.Option(help="Clip the gradient to this norm. [default: no limit]", show_default=False)
]
Seed = Annotated[int, typer.Option(help="Passed to the factory.")]
TrainingSeed = Annotated[int, typer.Option(help="Passed to the factory; also the seed of shuffling and dropout.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="The device to compute on, such as cpu or cuda:1. [default: cuda if there is one]", show_default=False
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, neither a bar on a terminal nor a line a minute elsewhere.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in the folder, or start it if there is none.")]
Every = Annotated[
    str,
    typer.Option(
        "--checkpoint-every", help="How often to save a checkpoint: a number of epochs (5), or of minutes (10m)."
    ),
]
Precision = Annotated[
    Literal["fp32", "bf16"],
    typer.Option(
        help="Compute in the network's own precision, or in bfloat16 with weights kept in float32.",
        case_sensitive=False,
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Use torch.compile. [default: for long training runs on a GPU]",
        show_default=False,
    ),
]
Graph = Annotated[
    bool | None,
    typer.Option(
        "--graph/--no-graph", help="Capture steps as CUDA graphs. [default: wherever it is safe]", show_default=False
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        help="Which weights to take from a checkpoint that holds several, such as ema or state_dict.",
        show_default=False,
    ),
]
Matched = Literal["weights", "activations"]
By = Annotated[
    Matched | None,
    typer.Option(
        help="What --align matches: the weights of units, or their activations on the task's train data; `barriers` "
        "takes the first of `data`. [default: weights]",
        case_sensitive=False,
        show_default=False,
    ),
]
StopIfStalled = Annotated[
    bool,
    typer.Option(
        "--stop-if-stalled",
        help="Stop, instead of warning, if the network has not begun to learn after a tenth of the training.",
    ),
]
Cycle = Annotated[
    float, typer.Option(help="FGE and SWA: the length of a cycle in epochs; of FGE an even number of iterations.")
]
Cycles = Annotated[int, typer.Option(help="Snapshot: how many cycles in the whole run.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Which of the factory's data to score on. [default: the last that is not --held-out]", show_default=False
    ),
]


class RunArguments(TypedDict):
    """Arguments of every long call in Python."""

    compute: "tw.Compute"
    run: "Run"
    progress: bool | None


class TrainingArguments(RunArguments):
    """Arguments of `fit`, `connect` and `walk`."""

    epochs: int
    momentum: float
    weight_decay: float
    optimizer: "sgd.OptimizerFactory | None"
    clip: float | None
    accumulate: int
    seed: int


class ScheduleArguments(TypedDict):
    """Arguments of `fit` and `connect`."""

    lr: float | None
    schedule: "sgd.Schedule | walk_methods.Method | None"


class Arguments:
    """The arguments of a command, and what every command derives from them.

    Args:
        call: The Python call that the command makes, which its folder is a run of.
        given: The arguments by name.
        inputs: The network and data, if another command has loaded them.
    """

    def __init__(self, call: str, given: Mapping[str, Any], inputs: "Inputs | None" = None):
        self.call, self.given = call, dict(given)
        if inputs is not None:
            self.inputs = inputs
        if self.given.get("stop_if_stalled"):
            warnings.simplefilter("error", tw.Stalled)
        self._check_out()

    def _check_out(self) -> None:
        """Refuse a folder that exists before any work is done."""
        from ..store.runs import check_free

        resumable, out = "resume" in self.given, self.given["out"]
        check = partial(self.run.check_new, self.call) if resumable else partial(check_free, out)
        once(check)

    @cached_property
    def inputs(self) -> "Inputs":
        """The network and data of the task."""
        from ..loading import load_inputs

        return load_inputs(self.given["task"], self.given.get("seed", 0), self.given["device"])

    @cached_property
    def keys(self) -> "dict[Path, str | None]":
        """--key, for each of the files that it applies to."""
        from ..loading import keys_of

        return keys_of([*chain(*(self.given.get(name) or [] for name in ("what", "ends", "start")))], self.given["key"])

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that determine the results, as JSON."""
        return json.loads(json.dumps({k: v for k, v in self.given.items() if k not in WITHOUT_EFFECT}, default=str))

    @cached_property
    def run(self) -> "Run":
        """The folder to write to."""
        from ..store.runs import Run

        every, resume = self.given.get("every", "1m"), self.given["resume"]
        return Run(self.given["out"], every=every, resume=resume, note=self.settings)

    @property
    def compute(self) -> "tw.Compute":
        names = [name for name in ("precision", "compile", "graph", "stream") if name in self.given]
        return tw.Compute(**{name: self.given[name] for name in names})

    @property
    def running(self) -> RunArguments:
        return {"compute": self.compute, "run": self.run, "progress": progress(self.given["quiet"])}

    @property
    def training(self) -> TrainingArguments:
        return {
            **self.running,
            "epochs": self.given["epochs"],
            "momentum": self.given["momentum"],
            "weight_decay": self.penalty,
            "optimizer": self._optimizer(),
            "clip": self.given["clip"],
            "accumulate": self.given["accumulate"],
            "seed": self.given["seed"],
        }

    @property
    def penalty(self) -> float:
        """The weight decay that is part of the loss, which that of AdamW is not."""
        return 0.0 if self.given.get("optimizer") == "adamw" else self.given["weight_decay"]

    def _optimizer(self) -> "sgd.OptimizerFactory | None":
        """The optimizer chosen, or the factory's."""
        from ..training.optimizers import named_optimizer

        chosen, decay, lr = self.given["optimizer"], self.given["weight_decay"], self.given.get("lr")
        made = named_optimizer(chosen, decay) if chosen else self.inputs.optimizer
        if lr is not None and isinstance(made, partial) and "lr" in made.keywords:
            made = partial(made, lr=lr)  # a rate on the command line replaces that of the factory's partial
        return made

    @property
    def rates(self) -> ScheduleArguments:
        """The learning rate and the schedule chosen, or the factory's."""
        lr, schedule, warmup = (self.given[name] for name in ("lr", "schedule", "warmup"))
        if warmup and schedule != "cosine":
            raise tw.ThalwegError(f"a warm-up comes before a cosine; got --warmup {warmup:g} without --schedule cosine")
        if schedule is None and self.inputs.schedule is not None:
            return {"lr": lr, "schedule": self.inputs.schedule}
        if lr is None and schedule in (None, "constant") and self._factory_optimizes:
            return {"lr": None, "schedule": None}  # the optimizer's own
        rate = self._default_rate() if lr is None else lr
        if schedule in ("cosine", "constant"):
            return {"lr": None, "schedule": tw.WarmupCosine(rate, warmup) if schedule == "cosine" else lambda i: rate}
        return {"lr": rate, "schedule": None}

    @property
    def _factory_optimizes(self) -> bool:
        return self.given["optimizer"] is None and self.inputs.optimizer is not None

    def _default_rate(self) -> float:
        """The learning rate if none is given: that of the factory's optimizer, or the default of the one chosen."""
        if self._factory_optimizes:
            from ..training.optimizers import user_rate

            return user_rate(self.inputs.model, self.inputs.optimizer)
        return SMALL_RATE if self.given["optimizer"] in ("adam", "adamw") else RATE


def matched_by(align: bool, by: Matched | None) -> Matched | None:
    """What --align matches; None without it."""
    if by and not align:
        raise tw.ThalwegError(f"--by says what --align matches; got --by {by} alone: add --align, or leave --by out")
    return by or "weights" if align else None


def once(check: Callable[[], None]) -> None:
    """Check on rank 0 alone, from which all ranks learn of an error."""
    from ..runtime.compute import present

    present.get().processes.once(check)


def progress(quiet: bool) -> bool | None:
    """The argument of long calls."""
    return False if quiet else None


def following(command: Callable[..., None], given: Mapping[str, Any], *words: str | Path, out: str) -> str:
    """The suggested next command, with the options of this one that it accepts and that are not its defaults."""
    known = {name: parameter.default for name, parameter in signature(command).parameters.items() if name in CARRIED}
    flags = [_flag(name, given[name]) for name in known if name in given and given[name] != known[name]]
    named = [f"./{word}" if isinstance(word, Path) and str(word)[0] == "-" else str(word) for word in words]
    return shlex.join([*program(), command.__name__, *named, *chain(*flags), "--out", _free(out)])


def program() -> list[str]:
    """How this program was started, as the shell would find it again."""
    path = Path(sys.argv[0])
    if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        return ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "thalweg"]
    if path.parts[-2:] == ("thalweg", "__main__.py"):
        return [sys.executable, "-m", "thalweg"]
    return ["thalweg" if path.name != "thalweg" or shutil.which("thalweg") == str(path) else str(path)]


def done(out: Path, following: str | None) -> None:
    """Print what was written, and the suggested next command."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name[0] != "."]
    top = [path for path in files if len(path.relative_to(out).parts) == 1] if len(files) > MANY else files
    below = f"\n      and {len(files) - len(top)} files in folders below" if len(files) > len(top) else ""
    typer.echo("wrote " + "\n      ".join(map(str, top)) + below)
    if following:
        typer.echo(f"next: {following}")


def _flag(name: str, value: Any) -> list[str]:
    """
    >>> _flag("weight_decay", 1e-4), _flag("graph", False), _flag("keep", [2, 3])
    (['--weight-decay', '0.0001'], ['--no-graph'], ['--keep', '2', '--keep', '3'])
    """
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (f"--{dashed}", str(each))]


def _free(name: str) -> str:
    """A file or folder of that name, or with a number where there is one already."""
    path = Path(name if Path(name).name else os.path.abspath(name))  # "." has no name to number
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return str(next(free for free in chain([path], numbered) if not os.path.lexists(free)))
