"""How a batch is waited for and shown."""

from __future__ import annotations

import io
import os
import signal
import threading

import pytest

from saltext.jobs.core.batch.watch import Display, follow, progress_line
from saltext.jobs.core.errors import Refused

SUMMARY = {
    "total": 5000,
    "completed": 1200,
    "failed": 17,
    "lost": 3,
    "offline": 250,
    "killed": 0,
    "active": 250,
    "pending": 3280,
    "state": "running",
    "rate": 1234.56,
    "eta_seconds": 98765.0,
    "engine": True,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", range(10, 200))
def test_a_line_is_never_wider_than_it_may_be(width):
    line = progress_line(SUMMARY, width)
    assert len(line) <= width
    assert line.lstrip("[# ]").startswith("1470/5000"[: width - 3])


def test_on_80_columns_nothing_that_matters_is_missing():
    line = progress_line(SUMMARY, 79)
    for part in ("1470/5000 running", "17 failed", "3 lost", "250 offline"):
        assert part in line


def test_what_is_short_has_its_whole_bar():
    assert progress_line({**SUMMARY, "rate": None, "eta_seconds": None}, 200) == progress_line(
        {**SUMMARY, "rate": None, "eta_seconds": None}
    )


def test_a_terminal_of_80_columns_is_redrawn_and_does_not_scroll(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    display = Display(stream)
    for completed in range(1200, 1300):
        display.show({**SUMMARY, "completed": completed}, {})
    display.end()
    drawn = stream.getvalue()
    assert drawn.count("\n") == 1
    assert all(len(line) < 80 for line in drawn.rstrip("\n").split("\r\x1b[K"))


def test_elsewhere_there_are_lines_and_each_failure_comes_once():
    stream = io.StringIO()
    display = Display(stream)
    minions = {"a": {"state": "failed", "retcode": 2}, "b": {"state": "active"}}
    for _ in range(3):
        display.show(SUMMARY, minions)
    display.end()
    assert stream.getvalue().splitlines()[0] == "a: failed (retcode 2)"
    assert len(stream.getvalue().splitlines()) == 2


def test_that_no_engine_is_there_is_said():
    assert "(no engine)" in progress_line({**SUMMARY, "engine": False}, 79)
    assert "no engine" not in progress_line(SUMMARY, 79)
    assert "no engine" not in progress_line({**SUMMARY, "engine": None}, 79)


def answers(*summaries):
    left = list(summaries)
    return lambda: ((left.pop(0) if len(left) > 1 else left[0]), {})


def quickly(*summaries, timeout=None, display=None, **more):
    """Follow a batch that stands as these say, one after the other."""
    return follow("1", answers(*summaries), ("complete",), timeout, display, poll=0.01, **more)


def test_a_batch_is_followed_to_its_end():
    over = {**SUMMARY, "state": "complete"}
    assert quickly(SUMMARY, SUMMARY, over) == over


def test_the_wait_ends_when_its_time_is_up():
    with pytest.raises(Refused, match=r"has not ended within 0\.05 s; it goes on"):
        quickly(SUMMARY, timeout=0.05)


def test_nobody_waits_for_ever_for_an_engine_that_is_gone():
    with pytest.raises(Refused, match="No engine drives batch 1"):
        quickly({**SUMMARY, "engine": False}, engine_patience=0.05)


def test_an_engine_that_comes_back_in_time_ends_no_wait():
    over = {**SUMMARY, "state": "complete"}
    away = {**SUMMARY, "engine": False}
    assert quickly(away, SUMMARY, away, over, engine_patience=0.5) == over


def test_ctrl_c_says_that_the_batch_goes_on_and_leaves_the_signal_as_it_was(capsys):
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(Refused, match="Batch 1 goes on"):
        quickly(SUMMARY, timeout=10, display=Display(Terminal()))
    timer.join()
    assert signal.getsignal(signal.SIGINT) is before
