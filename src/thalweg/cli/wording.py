"""Messages of the library in the words of the command line."""

import re
import sys
from collections.abc import Collection

CALL = r"\w\((?:[^()]|\([^()]*\))*\)"
ARGUMENT = r"(?<![\w./-])(?<!--set )(\w+)=('[^']*'|[\w.]+)?(?![\w./'])"
KEYS = ("bn_batches", "groups", "optimizer")  # arguments that the task factory returns
RENAMED = {"run": "out", "every": "checkpoint_every"}


def typed(message: str, options: Collection[str]) -> str:
    """A message whose arguments are those of Python, with what one types instead.

    Arguments inside calls are those of user code. What the user has typed, or user code has raised, stays as it is.

    >>> typed("leave groups= out, use by='weights' or align=True, or give Task(f(), by=)", ["align", "by"])
    "leave the factory's `groups` out, use --by weights or --align, or give Task(f(), by=)"
    """
    if "thalweg --debug" in message:  # an error of user code
        return message

    def spelled(found: re.Match[str]) -> str:
        name, value = found[1], (found[2] or "").strip("'")
        if name in KEYS:
            return f"the factory's `{name}`"
        if name not in {*options, *RENAMED} or (value and any(found[0] in word for word in sys.argv)):
            return found[0]
        if name == "align" and value not in ("", "True"):
            return f"--align --by {value}"
        flag = "--" + RENAMED.get(name, name).replace("_", "-")
        return f"{flag} {value}" if value not in ("", "True") else flag

    return re.sub(f"{CALL}|{ARGUMENT}", spelled, message)
