"""timm without torchvision, of which no build imports beside a CPU torch on every machine.

timm imports torchvision when it is imported itself, for image transforms, data sets and one layer, none of which its
networks need here. Where torchvision is missing, empty stand-ins take its place for the length of that import, and only
for it: other libraries look for torchvision too, and must not find these.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from unittest.mock import MagicMock

from torch import nn

PARTS = ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")


def import_timm() -> ModuleType:
    parts = {} if find_spec("torchvision") else {f"torchvision{part}": MagicMock() for part in PARTS}
    if parts:
        parts["torchvision.ops.misc"].FrozenBatchNorm2d = type("FrozenBatchNorm2d", (nn.Module,), {})
    sys.modules.update(parts)
    try:
        return import_module("timm")
    finally:
        for part in parts:
            del sys.modules[part]
