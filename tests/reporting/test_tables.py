"""The table of curves, laid out as the paper's."""

import numpy as np

import thalweg as tw
from thalweg.reporting import tables


def scan(name, loss, error, ratio):
    values = {key: {"loss": np.array(loss), "error": np.array(error)} for key in ("train", "test")}
    t = np.linspace(0, 1, len(loss))
    return tw.Scan(name, "curve" if ratio else "points", values, t=t if ratio else None, length=t, length_ratio=ratio)


def test_table_of_curves():
    single = scan("Single", [0.1, 0.2], [0.01, 0.02], None)
    bezier = scan("Bezier", [0.1, 0.5, 0.2], [0.01, 0.1, 0.02], 1.5)
    assert tables.curves({"Single": single, "Bezier": bezier}).split("\n") == [
        "                train loss                  train error %      test error %",
        "        length    min    int   mean    max   min   int    max   min   int    max",
        "--------------------------------------------------------------------------------",
        "Single       -  0.100      -  0.150  0.200  1.00     -   2.00  1.00     -   2.00",
        "Bezier    1.50  0.100  0.325  0.325  0.500  1.00  5.75  10.00  1.00  5.75  10.00",
    ]
