"""Every kind of module times every call: the plain-torch result in float64, or a refusal in a sentence, and never a trace."""

import importlib

import pytest
from differential.checks import agrees
from differential.kind import KINDS
from differential.known import KNOWN_WRONG

for family in ("layers", "weights", "references", "stateful", "strange", "wrapped"):
    importlib.import_module(f"differential.{family}")


def cases(call: str) -> list[object]:
    wrong = {name for name, calls in KNOWN_WRONG.items() if call in calls.split()}
    mark = pytest.mark.xfail(strict=True, reason="known to be wrong")
    return [pytest.param(name, marks=[mark] if name in wrong else []) for name in KINDS]


@pytest.mark.parametrize("name", cases("fit"))
def test_fit_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "fit")


@pytest.mark.parametrize("name", cases("connect"))
def test_connect_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "connect")


@pytest.mark.parametrize("name", cases("scan"))
def test_scan_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "scan")


@pytest.mark.parametrize("name", cases("walk"))
def test_walk_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "walk")


@pytest.mark.parametrize("name", cases("ensemble"))
def test_ensemble_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "ensemble")


@pytest.mark.parametrize("name", cases("refresh"))
def test_refresh_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "refresh")
