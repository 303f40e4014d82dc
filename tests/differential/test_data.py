"""Every kind of batches times every call: the plain-torch result in float64, or a refusal in a sentence."""

import pytest
from differential import data  # noqa: F401
from differential.checks import agrees
from differential.kind import BATCHES, CALLS


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", BATCHES)
def test_calls_with_every_kind_of_batches(name: str, call: str) -> None:
    agrees(BATCHES[name], call)
