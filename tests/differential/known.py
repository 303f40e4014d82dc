"""Calls that are wrong so far, by kind: an entry is removed with the fix."""

KNOWN_WRONG: dict[str, str] = {
    "submodule_named_orig_mod": "fit connect scan walk ensemble refresh",
}

KNOWN_WRONG_DATA: dict[str, str] = {}
