"""Every kind of batches times every call: the plain-torch result in float64, or a refusal in a sentence."""

import pytest
from differential import data  # noqa: F401
from differential.checks import agrees
from differential.kind import BATCHES, CALLS
from differential.known import KNOWN_WRONG_DATA


def cases() -> list[object]:
    mark = pytest.mark.xfail(strict=True, reason="known to be wrong")
    wrong = {name: calls.split() for name, calls in KNOWN_WRONG_DATA.items()}
    pairs = [(name, call) for name in BATCHES for call in CALLS]
    return [pytest.param(name, call, marks=[mark] if call in wrong.get(name, ()) else []) for name, call in pairs]


@pytest.mark.parametrize(("name", "call"), cases())
def test_calls_with_every_kind_of_batches(name: str, call: str) -> None:
    agrees(BATCHES[name], call)
