"""thalweg: low-loss curves between trained networks, what lies along them, and the ensembles they give.

>>> import torch, thalweg as tw
>>> models = [torch.nn.Linear(4, 3) for _ in range(2)]
>>> a, b = (tw.Weights.of(model) for model in models)
>>> train = [(torch.randn(32, 4), torch.randint(3, (32,))) for _ in range(4)]
>>> curve = tw.connect(models[0], tw.Bezier(a, b), tw.classification(), train, epochs=2, lr=0.1)
>>> scan = tw.scan(models[0], curve, tw.classification(), {"train": train}, points=11)
>>> sorted(scan.summary()["train"]["loss"])
['barrier', 'int', 'max', 'mean', 'min']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data, models
    from .errors import Diverged, ThalwegError
    from .evaluation.scan import Scan, scan
    from .reporting import figures
    from .tasks import Task, classification, language_modelling, regression
    from .training.connect import connect
    from .training.fit import fit
    from .weightspace.batchnorm import refresh
    from .weightspace.curves import Bezier, Curve, PolyChain, Segment
    from .weightspace.planes import Plane
    from .weightspace.weights import Layout, Weights, average

__version__ = "0.1.0"

_HOMES = {
    "errors": ("Diverged", "ThalwegError"),
    "evaluation.scan": ("Scan", "scan"),
    "tasks": ("Task", "classification", "language_modelling", "regression"),
    "training.connect": ("connect",),
    "training.fit": ("fit",),
    "weightspace.batchnorm": ("refresh",),
    "weightspace.curves": ("Bezier", "Curve", "PolyChain", "Segment"),
    "weightspace.planes": ("Plane",),
    "weightspace.weights": ("Layout", "Weights", "average"),
}
_MODULES = {"data": "data", "figures": "reporting.figures", "models": "models"}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Bezier",
    "Curve",
    "Diverged",
    "Layout",
    "Plane",
    "PolyChain",
    "Scan",
    "Segment",
    "Task",
    "ThalwegError",
    "Weights",
    "average",
    "classification",
    "connect",
    "data",
    "figures",
    "fit",
    "language_modelling",
    "models",
    "refresh",
    "regression",
    "scan",
]


def __getattr__(name: str) -> Any:
    """Names are imported when first used, so that the command line answers before torch has loaded."""
    if name in _MODULES:
        return import_module(f".{_MODULES[name]}", __name__)
    if name in _NAMES:
        return getattr(import_module(f".{_NAMES[name]}", __name__), name)
    raise AttributeError(f"module 'thalweg' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
