"""What a command line that cannot be understood is answered, in one sentence."""

from difflib import get_close_matches
from shutil import get_terminal_size
from typing import Any

import typer
from typer.core import TyperGroup

RULES = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
}  # what pydantic, by which typer reads values, found wrong -> what is right
MARKUP: Any = "markdown" if get_terminal_size().columns >= 100 else None  # of help, in columns if there is room
UsageError: Any = typer.BadParameter.__base__  # which typer does not export


class Commands(TyperGroup):
    """A group of commands that answers in the words of this library, not in those of typer's."""

    def make_context(self, *words: Any, **settings: Any) -> Any:
        """Read the options before the command."""
        return _explained(super().make_context, *words, **settings)

    def invoke(self, context: Any) -> Any:
        """Perform the command."""
        return _explained(super().invoke, context)

    def format_help(self, context: Any, formatter: Any) -> None:
        """A list of commands has room for columns on any terminal."""
        self.rich_markup_mode = "markdown"
        super().format_help(context, formatter)

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """Find a command by its name, the first of the words."""
        name, known = args[0], self.list_commands(context)
        if context.resilient_parsing or name in known or name.startswith("-"):  # as in completion by a shell
            return super().resolve_command(context, args)
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]}?" if near else f"commands are {', '.join(known)}"
        raise refused(f"there is no command '{name}': {advice}")


def _explained(work: Any, *words: Any, **settings: Any) -> Any:
    """Do this work; what is wrong with the words of the command line is said in one sentence."""
    try:
        return work(*words, **settings)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # not an error, but the help of a group without a command
            raise
        raise refused(usage_error(error)) from error


def refused(message: str) -> typer.Exit:
    """Print an error; what ends the program."""
    typer.echo(f"thalweg: {message}", err=True)
    return typer.Exit(2)


def usage_error(error: Any) -> str:
    """What is wrong, and what to do."""
    if isinstance(error, typer.BadParameter) and error.message:
        return value_error(error)
    said = (error.message or error.format_message()).rstrip(".")
    near = getattr(error, "possibilities", None)
    advice = f"did you mean {' or '.join(near)}?" if near else "add -h to see what the command takes"
    return f"{said[0].lower()}{said[1:]}; {advice}"


def value_error(error: Any) -> str:
    """The option, what its value may be, and what came."""
    option = max(error.param.opts, key=len) if error.param else "the value"
    problem = next(iter(getattr(error.__cause__, "errors", list)()), None)
    given, one_of, choices = error.message.removeprefix("Value error, ").partition(" is not one of ")
    if one_of:
        return f"{option} is {choices.rstrip('.').replace(', ', ' or ')}; got {given}"
    if problem is None or problem["type"] not in RULES:
        return f"{option}: {error.message}"
    return f"{option} is {RULES[problem['type']].format(**problem.get('ctx', {}))}; got {problem['input']!r}"
