"""Calls in several threads take turns: each seeds global generators and changes global settings while it runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

_taken: list[Lock] = [Lock()]
_inside: ContextVar[bool] = ContextVar("thalweg-inside", default=False)


@contextmanager
def own_turn() -> Iterator[None]:
    """Wait until no other thread is inside; what is called inside goes ahead, also in threads that got the context."""
    if _inside.get():
        yield
        return
    with _taken[0]:
        before = _inside.set(True)
        try:
            yield
        finally:
            _inside.reset(before)


def _forget() -> None:
    """In a forked process the thread whose turn it was does not exist."""
    _taken[0] = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
