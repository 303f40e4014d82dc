"""Every test begins with the same random numbers, whichever tests ran before it, and tries the same examples at any
load.
"""

import gc
import random
from itertools import accumulate

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


@pytest.fixture
def peak_bytes():
    """The most bytes of tensors that a call needs at once beyond what was there before, as torch's profiler sees it."""

    def peak(call):
        gc.collect()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
        found = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        found.sort(key=lambda event: event.start_ns())
        return max(accumulate(event.nbytes() for event in found))

    return peak
