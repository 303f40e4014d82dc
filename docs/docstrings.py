"""Docstrings of this code as Markdown: examples as code, and `name: what it means` as a list. Used by mkdocs.yml."""

import re
from typing import Any

import griffe

MEANING = re.compile(r"(?:^|(?<=\. ))(\w+(?:, \w+)*): ")


class AsMarkdown(griffe.Extension):
    """Rewrites each docstring before its page is made."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            blocks = re.split(r"\n\s*\n", obj.docstring.value.strip())
            obj.docstring.value = "\n\n".join(map(_as_markdown, blocks))


def _as_markdown(block: str) -> str:
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    return "\n".join(map(_as_list, _whole_lines(block))) if MEANING.match(block) else block


def _whole_lines(block: str) -> list[str]:
    """A line that begins with a space or a small letter goes on with the one before, unless it explains a name."""
    lines: list[str] = []
    for line in block.split("\n"):
        if lines and not MEANING.match(line) and (line[0] == " " or line[0].islower()):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def _as_list(line: str) -> str:
    _, *parts = MEANING.split(line)
    items = [f"- **{name}**: {meaning.strip()}" for name, meaning in zip(parts[::2], parts[1::2], strict=True)]
    return "\n".join(items) or f"\n{line}"
