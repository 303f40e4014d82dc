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

from typing import TYPE_CHECKING, Any

from .arguments import checked

if TYPE_CHECKING:
    from .alignment.align import align
    from .alignment.permutation import Permutation
    from .alignment.symmetries import symmetries
    from .errors import Diverged, Stalled, ThalwegError
    from .evaluation.barriers import barriers
    from .evaluation.curve_ensemble import curve_ensemble
    from .evaluation.ensemble import Ensemble
    from .evaluation.scan import scan
    from .evaluation.soup import soup
    from .paper import data, models
    from .reporting import figures, page
    from .results import Barriers, Comparison, CurveEnsemble, Report, Scan, Trace, Walk
    from .runtime.compute import Compute, SlowPathWarning
    from .runtime.distributed import distributed
    from .runtime.interleave import together
    from .runtime.sharded import sharded
    from .tasks import Task, classification, language_modelling, regression
    from .training.compare import Independent, compare
    from .training.connect import connect
    from .training.fit import fit
    from .training.walk import walk
    from .training.walk_methods import FGE, SWA, Iterations, Snapshot, WarmupCosine
    from .training.walk_scheduler import Collector, WalkScheduler
    from .weightspace.batchnorm import update_bn
    from .weightspace.curves import Bezier, Curve, PolyChain, Segment
    from .weightspace.planes import Plane
    from .weightspace.swag import SWAG
    from .weightspace.weights import Weights, average

__version__ = "0.2.0"

_HOMES = {
    "alignment.align": ("align",),
    "alignment.permutation": ("Permutation",),
    "alignment.symmetries": ("symmetries",),
    "errors": ("Diverged", "Stalled", "ThalwegError"),
    "evaluation.barriers": ("barriers",),
    "evaluation.curve_ensemble": ("curve_ensemble",),
    "evaluation.ensemble": ("Ensemble",),
    "evaluation.scan": ("scan",),
    "evaluation.soup": ("soup",),
    "results.barriers": ("Barriers",),
    "results.comparison": ("Comparison",),
    "results.ensembles": ("CurveEnsemble", "Report"),
    "results.scan": ("Scan",),
    "results.walk": ("Trace", "Walk"),
    "runtime.compute": ("Compute", "SlowPathWarning"),
    "runtime.distributed": ("distributed",),
    "runtime.interleave": ("together",),
    "runtime.sharded": ("sharded",),
    "tasks": ("Task", "classification", "language_modelling", "regression"),
    "training.compare": ("Independent", "compare"),
    "training.connect": ("connect",),
    "training.fit": ("fit",),
    "training.walk_methods": ("FGE", "SWA", "Iterations", "Snapshot", "WarmupCosine"),
    "training.walk_scheduler": ("Collector", "WalkScheduler"),
    "training.walk": ("walk",),
    "weightspace.batchnorm": ("update_bn",),
    "weightspace.curves": ("Bezier", "Curve", "PolyChain", "Segment"),
    "weightspace.planes": ("Plane",),
    "weightspace.swag": ("SWAG",),
    "weightspace.weights": ("Weights", "average"),
}
_MODULES = {"data": "paper.data", "figures": "reporting.figures", "models": "paper.models", "page": "reporting.page"}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Barriers", "Bezier", "Collector", "Comparison", "Compute", "Curve", "CurveEnsemble", "Diverged", "Ensemble", "FGE",
    "Independent", "Iterations", "Permutation", "Plane", "PolyChain", "Report", "SWA", "SWAG", "Scan", "Segment",
    "SlowPathWarning", "Snapshot", "Stalled", "Task", "ThalwegError", "Trace", "Walk", "WalkScheduler", "WarmupCosine",
    "Weights", "align", "average", "barriers", "classification", "compare", "connect", "curve_ensemble", "data",
    "distributed", "figures", "fit", "language_modelling", "models", "page", "regression", "scan", "sharded", "soup",
    "symmetries", "together", "update_bn", "walk",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported when first used, so that the command line answers before torch has loaded."""
    if name in _MODULES:
        return checked(f"{__name__}.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(checked(f"{__name__}.{_NAMES[name]}", *__all__), name)
    raise AttributeError(f"module 'thalweg' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
