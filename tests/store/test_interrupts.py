"""Signals that arrive while something is written or trained."""

import signal

import pytest

from thalweg.store import interrupts


def test_second_sigterm_within_a_second_is_the_first_again(monkeypatch):
    """As timeout(1) sends it, to the process and to its group."""
    monkeypatch.setattr(interrupts, "SAME_SIGNAL", 3600.0)
    with interrupts.Interrupts() as found:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert found.requested == signal.SIGTERM
        monkeypatch.setattr(interrupts, "SAME_SIGNAL", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_second_ctrl_c_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with interrupts.Interrupts() as found:
        signal.raise_signal(signal.SIGINT)
        assert found.requested == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
