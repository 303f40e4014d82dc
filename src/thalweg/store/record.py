"""`run.json`, the description of the run in a run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .files import check_fields


@dataclass(frozen=True)
class _Record:
    command: str
    settings: dict[str, Any]
    versions: dict[str, Any]
    code: dict[str, Any] | None
    started: str
    argv: list[str]


def check_record(record: Mapping[str, Any]) -> None:
    """Raise unless `run.json` held what we write there."""
    check_fields(_Record(**{one.name: record[one.name] for one in fields(_Record)}))
