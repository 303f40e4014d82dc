"""Resume or start: return the result of a finished call from its run folder, or resume one that was interrupted."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..evaluation.question import Facts, asked
from ..store.runs import Run
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
    facts, folder, held = asked(run, describe, call.processes), Run.of(run), list[Run]()
    with ExitStack() as stack:
        if folder is not None:  # rank 0 alone holds it open
            call.processes.once(lambda: held.append(stack.enter_context(folder.opened(command, facts, result.file))))
        if call.processes.once(lambda: bool(held) and (held[0].folder / result.file).is_file()):
            return call.processes.once(lambda: result.load(held[0].folder))
        made = make(held[0] if held else None)
        if held:
            held[0].finish(lambda folder: result.save(made, folder))
    return made
