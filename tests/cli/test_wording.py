"""What the library says, in the words of the command line."""

import re
import sys
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from thalweg.cli import _options_of_commands, app
from thalweg.cli.usage import value_error
from thalweg.cli.wording import typed


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("use same_t=True, or accumulate=1", "use --same-t, or --accumulate 1"),
        ("choose another folder (run=)", "choose another folder (--out)"),
        ("use align='weights' or align=True", "use --align --by weights or --align"),
        ("got weight_decay=1e-05, and every= is long", "got --weight-decay 1e-05, and --checkpoint-every is long"),
        ("set bn_batches= to batches", "set the factory's `bn_batches` to batches"),
        *((same, same) for same in (
            "give Task(size=batch -> count) or FGE(cycle=2.0, lr_min=0.1, starts=(0.6, 0.78))",
            "in Python with skip=['member.safetensors']",
            "as in --set weight_decay=0.0005",
            "runs/lr=0.1/run.json and lr=0.1/run.json and ./lr=0.1 and lr=0.2 are damaged",
            "the task factory failed with ValueError: give lr=0.1; the traceback is shown by thalweg --debug ...",
        )),
    ],
)  # fmt: skip
def test_arguments_are_shown_as_options(message, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["thalweg", "scan", "lr=0.2"])
    assert typed(message, _options_of_commands()) == said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("'spline' is not one of 'bezier', 'polychain'.", "--out is 'bezier' or 'polychain'; got 'spline'"),
        ("'one' is not a valid integer.", "--out: 'one' is not a valid integer."),
    ],
)
def test_values_are_refused_by_typer_without_pydantic_too(message, said):
    assert value_error(typer.BadParameter(message, param=SimpleNamespace(opts=["-o", "--out"]))) == said


@pytest.mark.parametrize("words", [["--verson"], ["--verson", "fit"], ["paper", "--verson"], ["fit", "--verson"]])
def test_unknown_options_are_refused_alike_before_and_after_a_command(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert re.fullmatch(r"thalweg: no such option: --verson; (did you mean --.*\?|add -h .*)\n", result.output)


@pytest.mark.parametrize("words", [[], ["paper"]])
def test_group_without_a_command_shows_its_help(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "Usage: " in result.output


def test_completion_by_a_shell_passes_over_unknown_commands(capsys):
    group = typer.main.get_command(app)
    context = group.make_context("thalweg", ["frobnicate"], resilient_parsing=True)
    assert group.resolve_command(context, ["frobnicate"])[1] is None
    assert capsys.readouterr().err == ""
