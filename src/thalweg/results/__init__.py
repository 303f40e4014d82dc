"""Results: small frozen dataclasses of NumPy arrays and plain values, all that tables and figures need."""

from .barriers import Barriers
from .comparison import Comparison, equivalent
from .ensembles import CurveEnsemble, Report
from .saved import UNITS, Saved, Values, csv_text, grid, known_score, plain, shown, titled
from .scan import Scan, corrections
from .walk import Trace, Walk

__all__ = [
    "UNITS", "Barriers", "Comparison", "CurveEnsemble", "Report", "Saved", "Scan", "Trace", "Values", "Walk",
    "corrections", "csv_text", "equivalent", "grid", "known_score", "plain", "shown", "titled",
]  # fmt: skip
