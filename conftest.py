"""Every test begins with the same random numbers, whichever tests ran before it, and tries the same examples at any
load.
"""

import random

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Before any fixture, also those that a whole module shares."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
