"""Calls that are wrong so far, by kind: an entry is removed with the fix."""

KNOWN_WRONG: dict[str, str] = {}

KNOWN_WRONG_DATA: dict[str, str] = {}
