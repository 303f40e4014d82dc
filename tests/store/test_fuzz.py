"""A share of the mutations that `make fuzz` tries; in a process of its own, since it forks and limits memory."""

import os
import subprocess
import sys
from pathlib import Path


def test_mutated_files_are_refused_or_harmless():
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), "600"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    refused, *_ = done.stdout.split()
    assert int(refused) > 300, done.stdout
