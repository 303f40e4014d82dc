"""Progress: where there is no terminal a line a minute, and nothing for what is shorter; on a terminal a bar."""

import re

import pytest
import torch
from torch import nn

import thalweg as tw
from thalweg.runtime import progress
from thalweg.runtime.compute import Context
from thalweg.runtime.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def work(clock, steps, seconds, show=None, before=0):
    with Progress("training", steps, show, Context()) as bar:
        bar.done = before
        for step in range(before, steps):
            clock[0] += seconds
            bar.advance(f"loss {step}")


def test_progress_lines_come_once_a_minute_off_a_terminal(clock, capsys):
    work(clock, 10, 20.0)
    assert capsys.readouterr().err.splitlines() == [
        "training 3/10, loss 2, 0:01:00 elapsed, 0:02:20 left",
        "training 6/10, loss 5, 0:02:00 elapsed, 0:01:20 left",
        "training 9/10, loss 8, 0:03:00 elapsed, 0:00:20 left",
    ]


def test_progress_of_less_than_a_minute_prints_nothing(clock, capsys):
    work(clock, 59, 1.0)
    assert capsys.readouterr() == ("", "")


def test_progress_quiet_prints_no_lines(clock, capsys):
    work(clock, 10, 100.0, show=False)
    assert capsys.readouterr() == ("", "")


def test_progress_remaining_time_of_a_resumed_run_counts_only_its_own_steps(clock, capsys):
    work(clock, 100, 60.0, before=97)
    assert capsys.readouterr().err.splitlines()[0] == "training 98/100, loss 97, 0:01:00 elapsed, 0:02:00 left"


def test_progress_of_training_and_scans_prints_lines_off_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PACE", 0.0)
    batches = [(torch.randn(4, 2), torch.randint(2, (4,)))]
    net = nn.Linear(2, 2)
    weights = tw.fit(net, tw.classification(), batches, epochs=2, lr=0.1)
    assert re.match(r"training 1/2, loss \d\.\d+, 0:0\d:\d\d elapsed, 0:0\d:\d\d left\n", capsys.readouterr().err)
    tw.scan(net, [weights, weights], tw.classification(), {"train": batches})
    assert re.search(r"scanning Weights 2/2, 0:0\d:\d\d elapsed", capsys.readouterr().err)
    tw.fit(net, tw.classification(), batches, epochs=2, lr=0.1, progress=False)
    assert capsys.readouterr().err == ""


@pytest.fixture
def terminal(monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def plain(text):
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_progress_bar_appears_on_a_terminal_after_a_second(clock, capsys, terminal):
    work(clock, 1, 0.9, show=True)
    assert capsys.readouterr() == ("", "")
    work(clock, 8, 0.5, show=True)
    out, err = capsys.readouterr()
    assert out == ""
    last = plain(err).splitlines()[-1]
    assert re.match(r"training .*8/8 loss 7 0:00:0\d left 0:00:00", last)
    assert "loss 0" not in err  # of the first half second


def test_progress_bars_of_work_within_other_work_are_rows_of_one(clock, capsys, terminal):
    context = Context()
    with Progress("comparing", 2, True, context) as outer:
        clock[0] += 2.0
        outer.advance()
        with Progress("training", 3, True, context) as inner:
            clock[0] += 2.0
            inner.advance("loss 1")
            clock[0] += 2.0
            inner.advance("loss 2")
        assert len(context.bars) == 1
        clock[0] += 2.0
        outer.advance()
    assert context.bars == []
    rows = plain(capsys.readouterr().err).splitlines()[-2:]
    assert [row.split()[0] for row in rows] == ["comparing", "training"]
    assert "2/2" in rows[0]
    assert "2/3 loss 2" in rows[1]


def stopped_after_one_step(clock):
    with Progress("training", 5, True, Context()) as bar:
        clock[0] += 2.0
        bar.advance()
        raise ValueError("of the user")


def test_progress_bar_gives_the_terminal_back_after_an_error(clock, capsys, terminal):
    with pytest.raises(ValueError, match="of the user") as raised:
        stopped_after_one_step(clock)
    assert raised.value.__notes__ == ["thalweg was training (1 of 5 done)"]
    shown = capsys.readouterr().err
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor, hidden and shown again
