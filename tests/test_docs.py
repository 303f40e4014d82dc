"""Every Python block of the README and the docs runs, in the order in which it is read."""

import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page, tmp_path, monkeypatch):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(page), "exec"), names)
    plt.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_commands_of_the_readme_exist():
    from typer.main import get_command

    from thalweg.cli import app

    used = set(re.findall(r"^\$ thalweg (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert used
    assert used <= set(get_command(app).commands)
