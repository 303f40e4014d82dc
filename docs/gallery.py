"""Draw every result under docs/paper again and write docs/gallery.md from them: `make gallery`."""

from pathlib import Path
from typing import Any

from thalweg.errors import ThalwegError
from thalweg.paper.drawing import draw
from thalweg.paper.entries import ENTRIES, Entry
from thalweg.paper.result import FILE, Claim, Result

DOCS = Path(__file__).parent
HEAD = """# Gallery

Entries of [the paper](paper-again.md), each with its figures, its numbers and its claims, are made by `make gallery`
from the files of results under `docs/paper` alone. In tables, the paper's numbers stand in round brackets and those of its public
code in square ones.

## The demo

![Train loss in three planes](images/planes.png)

![Loss and error along the segment and the curves](images/profile.png)

Train loss around networks trained on handwritten digits, and loss and error along the curves between two of them.
The numbers are in [Results](results.md).

```console
$ thalweg demo --out demo
```
"""
ABSENT = "\nThose of the paper that are not here follow when they have been run at full length: {}.\n"
Found = tuple[Path, Result]


def page(docs: Path) -> str:
    """The gallery as Markdown, from the results below `docs`."""
    results = [(path.parent, Result.load(path)) for path in sorted((docs / "paper").rglob(FILE))]
    for folder, result in results:
        if result.about["scale"] != "full":
            raise ThalwegError(f"the gallery shows full runs, and {folder} is at scale {result.about['scale']}: remove it")
    shown = {name: [found for found in results if found[1].entry == name] for name in ENTRIES}
    sections = [_section(ENTRIES[name], found, docs) for name, found in shown.items() if found]
    absent = ", ".join(f"`{name}`" for name, found in shown.items() if not found)
    return "".join([HEAD, *sections, ABSENT.format(absent) if absent else ""])


def _section(entry: Entry, found: list[Found], docs: Path) -> str:
    intro = f"\n## {entry.name}\n\n{entry.shows[0].upper()}{entry.shows[1:]} (in the paper: {entry.where}).\n"
    return intro + "".join(_result(folder, result, docs) for folder, result in found)


def _result(folder: Path, result: Result, docs: Path) -> str:
    here = folder.relative_to(docs).as_posix()
    figures = [f"![{result.entry}: {result.of}]({here}/{path.name})" for path in sorted(folder.glob("*.png"))]
    parts = [
        f"### {result.of}",
        *figures,
        f"```text\n{result.table()}\n```",
        "\n".join(map(_claim, result.claims)),
        f"{_origin(result.about)} Files: [{FILE}]({here}/{FILE}) and what lies beside it.",
        f"```console\n$ {_command(result)}\n```",
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def _claim(claim: Claim) -> str:
    return f"- **{'Holds' if claim.holds else 'Does not hold'}**: {claim.says} ({claim.measured})."


def _origin(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    spent = f"{_duration(about['seconds of training'])} of training in all; this entry took {_duration(about['seconds'])}"
    return f"{about['machine']}, {about['precision']}, {versions}, {about['date']}; {spent}."


def _duration(seconds: float) -> str:
    if seconds > 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"


def _command(result: Result) -> str:
    recipe, seeds = result.about["recipe"], result.about["seeds"]
    chosen = f"--data-set {recipe['data']} --model {recipe['model']} --seeds {seeds}"
    return f"thalweg paper run {result.entry} {chosen} --data ~/data --out paper"


if __name__ == "__main__":
    for path in sorted((DOCS / "paper").rglob(FILE)):
        draw(path.parent)
    (DOCS / "gallery.md").write_text(page(DOCS))
