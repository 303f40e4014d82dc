"""Resume or start: return the result of a finished call from its run folder, or resume one that was interrupted."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..evaluation.question import Facts, asked
from ..store.runs import Run, opened
from ..training.question import QUESTIONS
from .compute import Call, StoredResult

T = TypeVar("T")


def resumed(
    call: Call,
    run: Run | str | Path | None,
    command: str,
    question: Mapping[str, Any] | Callable[[], Facts],
    result: StoredResult[T],
    make: Callable[[Run | None], T],
) -> T:
    """See `Call.resumed`; without a folder, several processes still agree on the question."""
    describe = question if callable(question) else partial(QUESTIONS[command], processes=call.processes, **question)
    with opened(run, command, asked(run, describe, call.processes), result.file, call.processes) as held:
        if call.processes.once(lambda: held is not None and (held.folder / result.file).is_file()):
            return call.processes.once(lambda: result.load(held.folder))  # type: ignore[union-attr]
        made = make(held)
        if held is not None:
            held.finish(lambda folder: result.save(made, folder))
    return made
