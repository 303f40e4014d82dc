"""Kill commands with SIGKILL, again and again, resume them, and compare every file with those of a run that was left
alone.

    python tests/kills.py 1000

Half of the kills come at a random time, half at a moment of writing: before, in the middle of or after a call that
opens, writes, syncs, renames or deletes a file. Each process is forked from one that has imported everything, so that a
trial takes no longer than the command itself.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import safetensors.torch
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader

import thalweg as tw
from thalweg import cli, demo
from thalweg.store import runs

EPOCHS = ["--checkpoint-every", "0m", "--quiet"]
RARE = ["--cycle", "1", "--checkpoint-every", "2", "--quiet"]
COMMANDS = {
    "fit": ["fit", "--task", "kills:small", "--epochs", "3", "--keep", "2", *EPOCHS],
    "fit with workers": ["fit", "--task", "kills:workers", "--epochs", "2", *EPOCHS],
    "fit --runs 2": ["fit", "--task", "kills:small", "--epochs", "2", "--runs", "2", *EPOCHS],
    "connect": ["connect", "../ends/seed-0", "../ends/seed-1", "--task", "kills:small", "--epochs", "3", *EPOCHS],
    "walk": ["walk", "--task", "kills:small", "--epochs", "2", "--cycle", "1", "--start", "../ends/seed-0", *EPOCHS],
    "scan": ["scan", "../ends/seed-0", "../ends/seed-1", "--task", "kills:small", "--points", "7", "--quiet"],
    "plane": ["plane", *(f"../ends/seed-{k}" for k in range(3)), "--task", "kills:small", "--grid", "3", "--quiet"],
    "barriers": [
        "barriers",
        *(f"../ends/seed-{k}" for k in range(3)),
        "--align",
        "--task",
        "kills:small",
        "--points",
        "4",
        "--quiet",
    ],
    "soup": ["soup", *(f"../ends/seed-{k}" for k in range(3)), "--task", "kills:small", "--quiet"],
    "ensemble": ["ensemble", "../ends/seed-0", "../ends/seed-1", "--task", "kills:small", "--quiet"],
    "compare": [
        "compare",
        "--task",
        "kills:small",
        "--methods",
        "ind,fge",
        "--budget",
        "8",
        "--seeds",
        "1",
        "--cycle",
        "1",
        *RARE,
    ],
    "demo": ["demo", "--quiet"],
    "paper run": ["paper", "run", "trivial", "--scale", "smoke", "--device", "cpu", "--quiet"],
}
ANEW = ("demo", "paper")  # without --resume: the first starts afresh in its folder, the second always goes on
ENDS = ["fit", "--task", "kills:small", "--epochs", "1", "--runs", "3", *EPOCHS]
TIMES = {"started", "finished", "seconds", "argv", "code", "seconds of training", "date", "milliseconds"}


def small(seed, **loading):
    """A network with batch norm and dropout, and data shuffled by a generator of their own."""
    torch.manual_seed(7)
    x, y = torch.randn(24, 5), torch.randint(3, (24,))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    examples, held = list(zip(x, y, strict=True)), [(x, y)]
    train = DataLoader(examples, 6, shuffle=True, generator=torch.Generator(), **loading)
    return {"model": model, "task": tw.classification(), "train": train, "bn_batches": held, "data": {"test": held}}


def workers(seed):
    return small(seed, num_workers=1)


def shrink_the_demo():
    """All of its lines on a few images, in half a second."""
    digits = tw.data.digits

    def few():
        return tuple((x[:60], y[:60]) for x, y in digits())

    def coarse(module, target, *rest, points=None, **settings):
        where = (
            {"grid": (3, 3)} if isinstance(target, tw.Plane) else {"points": 5} if isinstance(target, tw.Curve) else {}
        )
        return tw.scan(module, target, *rest, **where, **settings)

    names = {name: getattr(tw, name) for name in tw.__all__}
    demo.tw = SimpleNamespace(**{**names, "scan": coarse, "data": SimpleNamespace(**{**vars(tw.data), "digits": few})})
    demo.FIT["epochs"] = demo.CONNECT["epochs"] = 1
    demo.BUDGET = 16


class Aimed:
    """Counts the calls that touch files, and kills its process at one of them: 0 before, 1 in the middle of, 2 after
    it.
    """

    def __init__(self, at, when):
        self.at, self.when, self.calls, self.process = at, when, 0, os.getpid()

    def wrap(self, owner, name, half=None):
        real = getattr(owner, name)

        def wrapped(*args, **settings):
            self.calls += os.getpid() == self.process  # not in workers
            here = self.calls == self.at and os.getpid() == self.process
            if here and self.when == 0:
                os.kill(self.process, signal.SIGKILL)
            if here and self.when == 1 and half is not None:
                half(real, *args, **settings)
                os.kill(self.process, signal.SIGKILL)
            result = real(*args, **settings)
            if here:
                os.kill(self.process, signal.SIGKILL)
            return result

        setattr(owner, name, wrapped)

    def install(self):
        for name in ("replace", "open", "unlink", "chmod", "mkdir", "rmdir"):
            self.wrap(os, name)
        self.wrap(os, "fsync", half=cut_short)
        self.wrap(Path, "unlink")
        self.wrap(Path, "write_text", half=half_a_text)
        self.wrap(safetensors.torch, "save_file", half=half_a_file)


def cut_short(real, descriptor):
    """As if the last bytes had not reached the file."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 20))


def half_a_text(real, path, data, *rest, **settings):
    real(path, data[: len(data) // 2], *rest, **settings)


def half_a_file(real, tensors, path, metadata=None):
    real(tensors, path, metadata=metadata)
    os.truncate(path, path.stat().st_size // 2)


def start(command, folder, aim):
    """Run a command in a process of its own, in a folder of its own."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(folder)
        with open("said.txt", "a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = ["thalweg", *command]
        aim.process = os.getpid()
        aim.install()
        try:
            cli.app(command)
        except SystemExit as end:
            code = end.code or 0
        Path("calls").write_text(str(aim.calls))
    finally:
        os._exit(code if isinstance(code, int) else 71)


def ended(process, limit):
    """How a process ended, killed when its time is over."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def warm_up(command, folder):
    """Once in this process, so that those forked from it have everything imported."""
    folder.mkdir()
    here = os.getcwd()
    os.chdir(folder)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
        cli.app([*command, "--out", "out"])
    os.chdir(here)


def undisturbed(command, folder):
    """What a run leaves that nobody kills, how many calls it makes, and how long it takes."""
    folder.mkdir()
    began = time.monotonic()
    code = ended(start([*command, "--out", "out"], folder, Aimed(0, 0)), 120)
    assert code == 0, f"{command} failed with {code}:\n{(folder / 'said.txt').read_text()}"
    return contents(folder / "out"), int((folder / "calls").read_text()), time.monotonic() - began


def kill_and_resume(command, folder, dice, most, calls, seconds, done):
    """Kill a command up to `most` times, then let it finish; counts the kills by time and by aim, evenly."""
    folder.mkdir()
    for trial in itertools.count():
        aimed, share = done[1] <= done[0], dice.random() ** 2  # more often early, since a resumed run is shorter
        at = 1 + int(share * calls) if trial < most and aimed else 0
        limit = share * seconds if trial < most and not aimed else 120
        resumed = trial and command[0] not in ANEW
        again = [*command, "--out", "out", *(["--resume"] if resumed else [])]
        code = ended(start(again, folder, Aimed(at, dice.randrange(3))), limit)
        if code == 0:
            return
        assert code == -signal.SIGKILL, f"{again} ended with {code}:\n{(folder / 'said.txt').read_text()}"
        assert trial < most, f"{again} did not end within two minutes"
        done[aimed] += 1


def contents(folder):
    """Every file but the lock, without the times."""
    return {
        str(path.relative_to(folder)): content(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def content(path):
    if path.name in ("run.json", "result.json", "timing.json", "budget.json", "comparison.json"):
        found = json.loads(path.read_text())["content"]
        return without_times({**found, "about": without_times(found.get("about", {}))})
    if path.name == "log.jsonl":
        return [without_times(json.loads(line)["entry"]) for line in path.read_text().splitlines()]
    if path.name == "page.html":
        return re.sub(rb"\d{4}-\d\d-\d\d([T ][\d:]+([+-]\d{4})?)?", b"", path.read_bytes()).replace(
            bytes(path.parent), b""
        )
    return path.read_bytes()


def without_times(entry):
    return {key: value for key, value in entry.items() if key not in TIMES}


def check(found, whole, folder):
    assert found.keys() == whole.keys(), f"{folder} has {sorted(found.keys() ^ whole.keys())} too many or too few"
    other = [name for name in whole if found[name] != whole[name]]
    assert not other, f"{folder} differs in {other}"


def main(kills, only=None):
    """Spread the kills evenly over the commands; print what was done."""
    torch.set_num_threads(1)
    shrink_the_demo()
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    runs._code = lambda: None  # the state of the current folder's git, which takes a while to ask for
    # its writing matters here, not its drawing
    Figure.savefig = lambda self, path, **settings: Path(path).write_text("a figure")
    # where syncing takes no time, which is nothing to a kill
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base, began = Path(tempfile.mkdtemp(prefix="kills-", dir=memory)), time.monotonic()
    undisturbed(ENDS, base / "making")
    (base / "making" / "out").rename(base / "ends")
    chosen = {name: command for name, command in COMMANDS.items() if only is None or name in only.split(",")}
    totals = [0, 0]
    for number, (name, command) in enumerate(chosen.items()):
        dice = random.Random(number)
        warm_up(command, base / f"{number}-warm")
        whole, calls, seconds = undisturbed(command, base / f"{number}-whole")
        check(undisturbed(command, base / f"{number}-again")[0], whole, name)
        done, folders, since = [0, 0], 0, time.monotonic()
        while sum(done) < -(-kills // len(chosen)):
            folder = base / f"{number}-{folders}"
            left = -(-kills // len(chosen)) - sum(done)
            kill_and_resume(command, folder, dice, min(left, 8), calls, seconds, done)
            check(contents(folder / "out"), whole, folder / "out")
            shutil.rmtree(folder)
            folders += 1
        totals = [a + b for a, b in zip(totals, done, strict=True)]
        summary = f"{done[0]} kills at random, {done[1]} while writing, {time.monotonic() - since:.0f} s"
        print(f"{name}: {summary}, {folders} folders, each the same, bit for bit", flush=True)
    shutil.rmtree(base)
    elapsed = time.monotonic() - began
    print(
        f"{sum(totals)} kills, {totals[0]} at random and {totals[1]} while writing, in {elapsed:.0f} s: all resumed, "
        "none differs"
    )


if __name__ == "__main__":
    sys.modules["kills"] = sys.modules["__main__"]
    main(int(sys.argv[1]), *sys.argv[2:])
