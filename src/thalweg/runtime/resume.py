"""Resume or start: a run folder gives the result of a call that has finished, and goes on with one that has not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..evaluation.question import asked
from ..store.runs import Run, opened
from ..training.question import QUESTIONS
from .compute import Call, StoredResult

T = TypeVar("T")


def resumed(
    call: Call,
    run: Run | str | Path | None,
    command: str,
    arguments: Mapping[str, Any],
    result: StoredResult[T],
    make: Callable[[Run | None], T],
) -> T:
    """See `Call.resumed`; without a folder, several processes still agree on the question."""
    question = asked(run, lambda: QUESTIONS[command](processes=call.processes, **arguments), call.processes)
    with opened(run, command, question, result.file, call.processes) as held:
        if call.processes.once(lambda: held is not None and (held.folder / result.file).is_file()):
            return call.processes.once(lambda: result.load(held.folder))  # type: ignore[union-attr]
        made = make(held)
        if held is not None:
            held.finish(lambda folder: result.save(made, folder))
    return made
