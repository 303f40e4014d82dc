"""The command line."""

import functools
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from .. import __version__
from ..errors import Diverged, Stalled, Stopped, ThalwegError
from . import paper
from .averaging import barriers, soup
from .bench import bench
from .curves import connect, plane, scan
from .demo import demo
from .ensembles import compare, ensemble, walk
from .networks import align, fit
from .page import page
from .usage import MARKUP, Commands
from .wording import typed

app = typer.Typer(
    name="thalweg",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Find low-loss curves between trained networks, measure and plot the loss along and around them, and build "
        "ensembles."
    ),
    epilog="Start with `thalweg demo`. Every command writes one new folder and lists what it wrote; only `demo` and "
    "`paper` write to theirs again.",
)


SHARED = ("fit", "connect", "scan", "plane", "barriers", "soup", "walk", "ensemble", "compare")


def main() -> None:
    warnings.formatwarning = _as_a_sentence
    try:
        app(prog_name="thalweg" if not sys.argv[0].endswith("__main__.py") else "python -m thalweg")
    except OSError as error:  # in what is printed before any command begins, as to a full disk
        _print_no_more()
        sys.exit(f"thalweg: {error}")
    except SystemExit as end:
        if _several() and isinstance(end.code, int) and end.code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)  # if other ranks left a collective, gloo's threads may abort a process while it exits
        raise


def _print_no_more() -> None:
    """Otherwise Python would try once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _as_a_sentence(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> str:
    """Our own warnings without the line of code that issued them."""
    return f"thalweg: {message}\n" if category.__name__ == "SlowPathWarning" else f"{category.__name__}: {message}\n"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"thalweg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, too.")] = False,
) -> None:
    logging.getLogger("thalweg").setLevel(logging.DEBUG if debug else logging.NOTSET)


def _plainly(command: Callable[..., None]) -> Callable[..., None]:
    """Report errors in one sentence: exit code 2 for bad input, 1 for a run that diverged, 130 for Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            (_with_others if _several() else _perform)(command, kwargs)
        except Stopped as error:
            again = " with --resume" if "resume" in kwargs else ""
            _fail(f"{error.what}: run the same command again{again} to continue", 128 + error.signal)
        except KeyboardInterrupt:
            _fail(f"stopped by Ctrl-C; {_after_interrupt(kwargs)}", 130)
        except Diverged as error:
            _fail(_kept(error, kwargs["out"]), 1, error)
        except BrokenPipeError:  # the reader of our output, such as head, has exited
            _print_no_more()
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except (ThalwegError, OSError) as error:
            _fail(typed(str(error), _options_of_commands()), 2, error)

    return wrapped


def _after_interrupt(given: dict[str, Any]) -> str:
    """What there is after a second Ctrl-C, or one that did not come in a loop that saves its state."""
    from ..store.runs import RECORD

    if "resume" in given and (given["out"] / RECORD).is_file():
        return f"what was finished is saved in {given['out']}: run the same command again with --resume to continue"
    return "nothing that was on disk before has changed"


def _perform(command: Callable[..., None], settings: dict[str, Any]) -> None:
    """Check paths before anything is done; an error in user code becomes one sentence that names the line."""
    from ..store.files import place

    given = [path for value in settings.values() for path in (value if isinstance(value, list) else [value])]
    for path in (path for path in given if isinstance(path, Path)):
        place(path)
    try:
        command(**settings)
    except (ThalwegError, BrokenPipeError, typer.Exit):
        raise
    except Stalled as error:
        raise ThalwegError(f"stopped: {error}") from error
    except Exception as error:
        from ..error_notes import in_a_sentence

        raise ThalwegError(in_a_sentence(error)) from error


def _with_others(command: Callable[..., None], settings: dict[str, Any]) -> None:
    """As one of the processes that torchrun started; only rank 0 writes, and only one rank reports an error."""
    from ..runtime.distributed import distributed

    with distributed() as processes, ExitStack() as stack:
        if not processes.first:
            settings |= {"out": Path(stack.enter_context(TemporaryDirectory())), "quiet": True}
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(warnings.catch_warnings(action="ignore"))
        try:
            if command.__name__ not in SHARED:
                raise ThalwegError(
                    f"{', '.join(SHARED)} run in several processes; '{command.__name__}' does not: start it alone"
                )
            _perform(command, settings)
        except (KeyboardInterrupt, ThalwegError, OSError) as error:
            if processes.first if isinstance(error, Stopped | Diverged) else processes.reports():
                raise
            raise typer.Exit(2) from error


def _kept(error: Diverged, out: Path) -> str:
    """Save the last good weights, and name their file in the message."""
    path = out / "last-good.safetensors"
    try:
        error.last_good.save(path)
    except ThalwegError as problem:
        return f"{error}; {problem}"
    return str(error).replace(".last_good", str(path))


def _fail(message: str, code: int, error: BaseException | None = None) -> None:
    if error is not None and logging.getLogger("thalweg").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    typer.echo(f"thalweg: {message}", err=True)
    raise typer.Exit(code)


def _options_of_commands() -> set[str]:
    known = [*app.registered_commands, *_paper.registered_commands]
    return {name for each in known if each.callback for name in signature(each.callback).parameters}


for _command in (demo, fit, align, connect, scan, plane, barriers, soup, walk, ensemble, compare, page, bench):
    app.command()(_plainly(_command))

_paper = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="Every table and figure of the 2018 paper, one entry each.",
)
_paper.command("list")(_plainly(paper.list_entries))
for _function in (paper.run, paper.show, paper.draw):
    _paper.command()(_plainly(_function))
app.add_typer(_paper, name="paper")
