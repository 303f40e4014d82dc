"""Redraw every result under docs/paper; make docs/gallery.md and part of docs/results.md from them (`make gallery`)."""

import re
import tomllib
from pathlib import Path
from typing import Any

from thalweg.errors import ThalwegError
from thalweg.paper.drawing import draw
from thalweg.paper.entries import ENTRIES
from thalweg.reporting.result import FILE, Claim, Result

DOCS = Path(__file__).parent
HEAD = """# Gallery

The figures of [the paper's entries](paper-again.md), made by `make gallery` from the result files under `docs/paper`;
the demo's are as it drew them. Numbers, claims, machines and commands are in [Results](results.md#the-paper-again).

## The demo

![Train loss in three planes](images/planes.png)

![Loss and error along the segment and the curves](images/profile.png)

Train loss around networks trained on handwritten digits, and loss and error along the curves between two of them.

```console
$ thalweg demo --out demo
```
"""
PLAIN = "\nWithout a figure, in [Results](results.md#the-paper-again) alone: {}.\n"
ABSENT = "\nThose of the paper that are not here follow when they have been run at full length: {}.\n"
BEGIN, END = "<!-- made by `make gallery` -->\n", "<!-- up to here -->\n"
LONG = 15  # rows of a table from which on it is left to its file
Found = list[tuple[Path, Result]]


def results(docs: Path) -> dict[str, Found]:
    """What is kept below `docs`, by entry."""
    found = [(path.parent, Result.load(path)) for path in sorted((docs / "paper").rglob(FILE))]
    for folder, result in found:
        if result.about["scale"] != "full":
            raise ThalwegError(
                f"the gallery shows full runs, and {folder} is at scale {result.about['scale']}: remove it"
            )
    return {name: [each for each in found if each[1].entry == name] for name in ENTRIES}


def reasons(docs: Path) -> dict[str, dict[str, str]]:
    """By folder below `docs/paper` and claim: the likely reason why it does not hold, as people wrote it."""
    file = docs / "paper" / "reasons.toml"
    return tomllib.loads(file.read_text()) if file.is_file() else {}


def page(docs: Path) -> str:
    """The gallery as Markdown: all figures."""
    found = results(docs)
    drawn = {name: [(path, result) for path, result in each if _figures(path)] for name, each in found.items()}
    sections = [_section(name, each, docs) for name, each in drawn.items() if each]
    plain = ", ".join(f"`{name}`" for name, each in found.items() if each and not drawn[name])
    return "".join([HEAD, *sections, PLAIN.format(plain) if plain else "", _absent(found)])


def numbers(docs: Path) -> str:
    """What was found, as Markdown: tables, claims, and where they come from."""
    found = results(docs)
    parts = [_numbers(folder, result, docs) for each in found.values() for folder, result in each]
    return "".join([*parts, _absent(found)])


def with_numbers(text: str, docs: Path) -> str:
    """A page with the part between two marks made anew."""
    return re.sub(f"(?s)(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", lambda _: numbers(docs), text)


def _absent(found: dict[str, Found]) -> str:
    absent = ", ".join(f"`{name}`" for name, each in found.items() if not each)
    return ABSENT.format(absent) if absent else ""


def _figures(folder: Path) -> list[Path]:
    # train first, as in the paper
    return sorted(folder.glob("*.png"), key=lambda path: ("test" in path.stem, path.stem))


def _section(name: str, found: Found, docs: Path) -> str:
    shows, where = ENTRIES[name].shows, ENTRIES[name].where
    place = where if where.startswith("not in") else f"in the paper: {where}"
    parts = [f"\n## {name}\n\n{shows[0].upper()}{shows[1:]} ({place}).\n"]
    for folder, result in found:
        here = folder.relative_to(docs).as_posix()
        shown = [f"\n![{_alternative(path, result)}]({here}/{path.name})\n" for path in _figures(folder)]
        parts += [f"\n### {result.of}\n", *shown]
    return "".join(parts)


def _alternative(path: Path, result: Result) -> str:
    what = path.stem.removeprefix(result.entry).replace("-", " ").strip()
    return f"{result.entry}{what and f', {what}'}: {result.of}"


def _numbers(folder: Path, result: Result, docs: Path) -> str:
    here = folder.relative_to(docs).as_posix()
    why = reasons(docs).get(here.removeprefix("paper/"), {})
    long = f"A table of {len(result.rows)} rows, in the file; drawn in the [Gallery](gallery.md#{result.entry})."
    parts = [
        f"### {result.entry}: {result.of}",
        f"```text\n{result.table()}\n```" if len(result.rows) <= LONG else long,
        "\n".join(_claim(claim, why.get(claim.says, "")) for claim in result.claims),
        f"{_origin(result.about)} Files: [{FILE}]({here}/{FILE}) and the files next to it.",
        f"```console\n$ {_command(result)}\n```",
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def _claim(claim: Claim, reason: str) -> str:
    before = f"; earlier: {claim.earlier}" if claim.earlier else ""
    line = f"- **{'Holds' if claim.holds else 'Does not hold'}**: {claim.says} ({claim.measured}{before})."
    return f"{line} *Likely reason*: {' '.join(reason.split())}" if reason else line


def _origin(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    spent = (
        f"{_duration(about['seconds of training'])} of training in all; this entry took {_duration(about['seconds'])}"
    )
    return f"{about['machine']}, {about['precision']}, {versions}, {about['date']}; {spent}."


def _duration(seconds: float) -> str:
    if seconds > 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"


def _command(result: Result) -> str:
    recipe, seeds = result.about["recipe"], result.about["seeds"]
    changes = "".join(f" --set {change}" for change in recipe.get("changes", ()))
    listed = ",".join(map(str, seeds)) + "," * (len(seeds) == 1) if isinstance(seeds, list) else seeds
    chosen = f"--data-set {recipe['data']} --model {recipe['model']}{changes} --seeds {listed}"
    return f"thalweg paper run {result.entry} {chosen} --data ~/data --out paper"


if __name__ == "__main__":
    for path in sorted((DOCS / "paper").rglob(FILE)):
        draw(path.parent)
    (DOCS / "gallery.md").write_text(page(DOCS))
    file = DOCS / "results.md"
    file.write_text(with_numbers(file.read_text(), DOCS))
