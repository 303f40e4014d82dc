"""thalweg page."""

from pathlib import Path
from typing import Annotated

import typer


def page(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders written by commands, or folders that contain such folders."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page, a file that ends in .html.")
    ] = Path("page.html"),
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file if there is one already.")] = False,
) -> None:
    """Show runs on one interactive page: tables, profiles, planes, surfaces and ensembles in a single HTML file.

    The file is self-contained and works offline. The page names what the folders lack.
    """
    from ..reporting.page import write

    typer.echo(f"wrote {write(out, runs, replace=replace)}: open it in a browser")
