"""Whatever is logged is one line of a bounded length."""

from __future__ import annotations

import logging
import re

import pytest

from saltext.jobs.core.lines import LONGEST, TRACED, logger

log = logger("test.lines")


@pytest.fixture
def logged(caplog):
    """What the log has of the lines of the test, as a handler writes it."""
    caplog.set_level(logging.DEBUG, logger=log.name)
    formatter = logging.Formatter("%(levelname)s %(message)s")
    return lambda: [formatter.format(record) for record in caplog.records if record.name == log.name]


@pytest.mark.parametrize(
    "value", ["x" * 10**6, {str(number): number for number in range(50_000)}, ValueError("y" * 10**6), ["z" * 10**6]]
)
def test_a_long_value_is_cut_and_its_length_is_reported(logged, value):
    log.error("It has sent %s", value)
    (line,) = logged()
    assert re.search(r"… \(\d{4,7} characters more\)$", line)
    assert len(line) < LONGEST + 60


@pytest.mark.parametrize(
    "odd", ["\n", "\r", "\x1b[2J", "\x00", "\u2028", "\x85", "\udc80", "\u202e", "\u2066", "\u200f"]
)
def test_a_value_writes_no_line_of_its_own_and_nothing_that_acts_on_a_terminal(logged, odd):
    log.warning("Refusing the id %s", f"m1{odd}2026-11-23 [CRITICAL] all is lost")
    (line,) = logged()
    assert line.isprintable()
    assert line.encode()
    assert len(line.splitlines()) == 1
    assert "\\" in line


def test_a_traceback_keeps_its_lines_and_none_is_long(logged):
    def fail(depth):
        if depth:
            fail(depth - 1)
        raise RuntimeError("a" * 10**6 + "\n" * 500)

    try:
        fail(200)
    except RuntimeError:
        log.error("It failed", exc_info=True)
    (line,) = logged()
    assert line.startswith("ERROR It failed\nTraceback (most recent call last):\n")
    assert max(map(len, line.split("\n"))) < LONGEST + 60
    assert line.count("\n") <= TRACED + 2
