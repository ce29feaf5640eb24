"""Lines that anyone can trigger at will are bounded in number."""

from __future__ import annotations

import logging

import pytest

from saltext.jobs.core.lines import Quiet

log = logging.getLogger("test.quiet")


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger=log.name)
    return lambda: [record.getMessage() for record in caplog.records if record.name == log.name]


def test_the_first_of_many_is_reported_and_then_their_number(steady, lines):
    quiet = Quiet(log, steady)
    for _ in range(5000):
        quiet.warning("m1", "A return of %s is odd", "m1")
    assert lines() == ["A return of m1 is odd"]
    steady.seconds += 61
    quiet.warning("m1", "A return of %s is odd", "m1")
    assert lines()[1:] == ["The same 4999 times more in the last 61 s (m1)", "A return of m1 is odd"]


def test_each_subject_has_its_line(steady, lines):
    quiet = Quiet(log, steady)
    for minion in ("a", "b", "a", "b"):
        quiet.warning(minion, "odd: %s", minion)
    assert lines() == ["odd: a", "odd: b"]


def test_more_may_be_logged_while_a_minute_begins(steady, lines, monkeypatch):
    def meanwhile(record):  # as another thread may do
        if "times more" in record.getMessage():
            quiet.warning("c", "odd: c")
        return True

    quiet = Quiet(log, steady)
    for minion in ("a", "a", "b", "b"):
        quiet.warning(minion, "odd: %s", minion)
    steady.seconds += 61
    monkeypatch.setattr(log, "filters", [meanwhile])
    quiet.warning("a", "odd: a")
    assert lines().count("odd: a") == 2 and "odd: c" in lines()


def test_made_up_subjects_share_one_line(steady, lines):
    quiet = Quiet(log, steady)
    for minute in range(3):
        for number in range(2000):
            quiet.warning(f"forged-{minute}-{number}", "odd: %d", number)
        steady.seconds += 60
    assert len(lines()) <= 3 * 22
    assert "The same 1979 times more in the last 60 s (others)" in lines()
