"""Every kind of module times every call: the plain-torch result in float64, or a refusal in a sentence, and never a
trace.
"""

import importlib

import pytest
from differential.checks import agrees
from differential.kind import KINDS

for family in ("layers", "weights", "references", "stateful", "strange", "outside", "wrapped"):
    importlib.import_module(f"differential.{family}")


@pytest.mark.parametrize("name", KINDS)
def test_fit_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "fit")


@pytest.mark.parametrize("name", KINDS)
def test_connect_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "connect")


@pytest.mark.parametrize("name", KINDS)
def test_scan_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "scan")


@pytest.mark.parametrize("name", KINDS)
def test_walk_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "walk")


@pytest.mark.parametrize("name", KINDS)
def test_ensemble_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "ensemble")


@pytest.mark.parametrize("name", KINDS)
def test_update_bn_of_every_kind(name: str) -> None:
    agrees(KINDS[name], "bn_batches")
