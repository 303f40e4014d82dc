"""How long a scan takes with one process and with several, one thread each.

    python benchmarks/processes.py [--processes 2] [--rounds 3]

The rounds are interleaved. Only the scan is timed, not the start of the processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

import thalweg as tw


def scan_once() -> None:
    torch.set_num_threads(1)
    with tw.distributed() as processes:
        task = tw.classification()
        batches = [(torch.rand(32, 3, 32, 32), torch.randint(10, (32,))) for _ in range(4)]
        a, b = (tw.Weights.of(tw.models.preresnet(20)) for _ in range(2))
        a, b = processes.once(lambda: (a, b))
        batches = processes.once(lambda: batches)
        settings = {"points": 24, "bn_batches": batches, "progress": False}
        tw.scan(tw.models.preresnet(20), tw.Segment(a, b), task, {"test": batches}, **{**settings, "points": 2})
        began = time.perf_counter()
        tw.scan(tw.models.preresnet(20), tw.Segment(a, b), task, {"test": batches}, **settings)
        if processes.first:
            print(time.perf_counter() - began)


def seconds(processes: int) -> float:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *run, __file__, "--once"]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        return scan_once()
    pairs = [(seconds(1), seconds(arguments.processes)) for _ in range(arguments.rounds)]
    one, several = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"one process {one:.2f} s, {arguments.processes} processes {several:.2f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
