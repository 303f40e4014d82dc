"""Every Python block of the README and the docs runs, every command in them exists, and the pages hold together."""

import re
import shlex
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from typer.main import get_command

import thalweg as tw
from thalweg.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@every_page
def test_docs_code_runs(page, tmp_path, monkeypatch):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)
    plt.close("all")


@every_page
def test_docs_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def check_thalweg(words):
    command = get_command(app)
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, name
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.split("=")[0] for word in words if word.startswith("-")}
    assert used <= known, f"{command.name}: {used - known}"


def check_make(words):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


def check_python(words):
    assert words[0] == "-m" or (ROOT / words[0]).is_file(), words[0]


def check_torchrun(words):
    check_thalweg(words[words.index("thalweg") + 1 :])


OTHERS = {"git", "pip"}
CHECKS = {
    "thalweg": check_thalweg,
    "torchrun": check_torchrun,
    "make": check_make,
    "python": check_python,
    **dict.fromkeys(OTHERS, lambda words: None),
}


@every_page
def test_docs_commands_exist(page):
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (.+)", block, re.MULTILINE):
            program, *words = shlex.split(line.split(" && ")[0], comments=True)
            CHECKS[program](words)


def test_docs_check_notices_an_unknown_command():
    with pytest.raises(AssertionError, match="--bend"):
        check_thalweg(shlex.split("connect a b --task mine:circle --bend 2"))
    with pytest.raises(AssertionError, match="draws"):
        check_thalweg(["paper", "draws"])


def test_docs_pages_are_in_the_nav():
    nav = re.findall(r"^  - .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("module", [tw, tw.figures, tw.data, tw.models], ids=lambda module: module.__name__)
def test_docs_api_page_has_every_public_name(module):
    page = (DOCS / "api.md").read_text()
    documented = set(re.findall(rf"^::: {re.escape(module.__name__)}\.(?:\w+\.)?(\w+)$", page, re.MULTILINE))
    if module is not tw:
        [members] = re.findall(
            rf"^::: {re.escape(module.__name__)}\n(?:.*\n)*?\s+members: \[(.*)\]", page, re.MULTILINE
        )
        documented |= set(members.split(", "))
    assert set(module.__all__) - {"data", "figures", "models"} <= documented
