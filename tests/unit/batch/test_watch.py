"""How a batch is waited for and shown."""

from __future__ import annotations

import io
import signal

import pytest

from saltext.jobs.core.batch.catalog import Found
from saltext.jobs.core.batch.watch import Display, follow, progress_line
from saltext.jobs.core.display.text import width_of
from saltext.jobs.core.errors import JobCacheError, Refused, SiteAway
from tests.interrupted import FORK, interrupted
from tests.unit.display.test_text import HARMFUL

COUNTS = {"total": 5000, "completed": 1200, "failed": 17, "lost": 3, "offline": 250, "active": 250, "pending": 3280}
SUMMARY = {**COUNTS, "killed": 0, "state": "running", "rate": 1234.56, "eta_seconds": 98765.0, "engine": True}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", range(10, 200))
def test_a_line_is_never_wider_than_it_may_be(width):
    wide = {"group": "服务器\x1b[2J", "group_number": 2, "groups": 5}
    assert width_of(progress_line({**SUMMARY, **wide}, width)) <= width
    line = progress_line(SUMMARY, width)
    assert len(line) <= width
    assert line.lstrip("#. ").startswith("1,470 of 5,000"[: width * 3 // 4 - 2])
    assert width < 79 or "1,470 of 5,000 running; 17 failed, 3 lost, 250 offline" in line


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


def test_beside_a_failure_is_its_reason_and_beside_the_counts_how_long_it_has_run():
    stream = io.StringIO()
    display = Display(stream, lambda names: ((name, {"return": "disk full\nin /var"}) for name in names))
    since = {"created": 1000.0, "last_progress": 1100.0}
    for age in (20.0, 80.0):
        display.show({**SUMMARY, **since, "age_seconds": age}, {"a": {"state": "failed", "retcode": 2}})
    told = stream.getvalue().splitlines()
    assert told[0] == "a: failed (retcode 2): disk full in /var"
    assert told[1].endswith("1,200 completed after 2 min") and len(told) == 2, told
    assert "after" not in progress_line({**SUMMARY, **since, "first_sent": None})
    line = progress_line({**SUMMARY, **since, "age_seconds": 20.0}, 160)
    assert "1,470 of 5,000 running after 2 min" in line and "left" in line


def lines_of(*looks, stream=None, returns=None):
    """What a display writes that is shown these, one after the other."""
    stream = stream or io.StringIO()
    display = Display(stream, returns)
    for summary, minions in looks:
        display.show(summary, minions)
    display.end()
    return stream.getvalue().splitlines()


def test_a_batch_that_waits_for_others_says_why_and_stops_saying_it_when_it_sends():
    told = "waits for room: 5 of 5 minions are in flight over all batches, {} of them of this"
    looks = [({**SUMMARY, "active": active, "blocked_reason": told.format(active)}, {}) for active in (3, 2, 0, 0)]
    assert [line for line in lines_of(*looks) if "room" in line] == [f"waiting: {told.format(0)}"]


def test_the_first_of_many_absent_minions_are_named():
    away = {f"m{number}": {"state": "offline"} for number in range(5000)}
    lines = lines_of((SUMMARY, away), (SUMMARY, {**away, "late": {"state": "offline"}}))
    assert lines[0] == "m0: offline"
    assert lines[9] == "and 4,991 more: offline"
    assert lines[10].startswith("#")
    assert lines[11:] == ["late: offline"]


def test_the_reason_for_a_wait_is_shown_once_with_what_to_do():
    waits = {**SUMMARY, "jid": "1", "state": "paused", "paused_reason": "waits for approval", "approve": 0}
    told = "paused: waits for approval; salt-run batch.approve 1 lets it go on"
    lines = lines_of((waits, {}), (waits, {}), ({**waits, "completed": 1300}, {}))
    assert [line == told for line in lines] == [True, False, False]
    window = {**waits, "paused_reason": "its window is shut", "approve": None, "opens_at": 90_000.0}
    assert lines_of((window, {}))[0].startswith("paused: its window is shut; opens 1970-01-0")
    assert len(lines_of(({**window, "state": "halted"}, {}))) == 1


def test_an_engine_that_does_not_answer_is_named_once_with_where_to_look():
    gone = [({**SUMMARY, "engine": False}, {}), *(({**SUMMARY, "engine_silent_seconds": 40 + n}, {}) for n in range(3))]
    told = "running: no batch_manager engine answers, so nothing goes on; see jobs_doctor.run"
    assert [line for line in lines_of(*gone, (SUMMARY, {})) if "engine" in line] == [told]


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_no_name_of_a_minion_acts_on_the_terminal(harmful):
    summary = {**SUMMARY, "jid": "1", "group": harmful, "group_number": 1, "groups": 2, "paused_reason": harmful}
    lines = lines_of((summary, {f"web{harmful}": {"state": "failed", "retcode": harmful}}))
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def answers(*summaries):
    left = list(summaries)
    return lambda: Found(left.pop(0) if len(left) > 1 else left[0], None, {}, dict)


def quickly(*summaries, timeout=None, display=None, **more):
    """Follow a batch that stands as these say, one after the other."""
    return follow("1", answers(*summaries), timeout, display, poll=0.01, **more)


def test_the_wait_ends_when_its_time_is_up_and_no_command_waits_for_ever_for_an_engine_that_is_gone():
    with pytest.raises(Refused, match=r"has not ended within 0\.05 s; that ends the waiting only"):
        quickly(SUMMARY, timeout=0.05)
    with pytest.raises(Refused, match="No engine drives batch 1"):
        quickly({**SUMMARY, "engine": False}, engine_patience=0.05)


def test_a_wait_outlives_a_database_and_a_job_cache_that_are_away_for_a_moment():
    def gone(_names=()):
        raise (SiteAway if not _names else JobCacheError)("the server is away")

    stream, looks = io.StringIO(), [gone, gone, answers({**SUMMARY, "state": "complete"})]
    found = follow("1", lambda: looks.pop(0)(), None, Display(stream, gone), poll=0.01)
    assert found["state"] == "complete"
    lines = lines_of((SUMMARY, {"a": {"state": "failed"}}), stream=stream, returns=gone)
    assert "a: failed" in lines
    with pytest.raises(Refused, match="the server is away"):
        follow("1", gone, None, None, poll=0.01, engine_patience=0.05)


def test_ctrl_c_says_that_only_the_waiting_ends_and_leaves_the_signal_as_it_was():
    shown = FORK.Event()

    class Telling(Terminal):
        def write(self, text):
            shown.set()
            return super().write(text)

    def follow_it():
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(Refused, match=r"ends the waiting only; .* 1 shows the batch again"):
            quickly(SUMMARY, timeout=300, display=Display(Telling()))
        return signal.getsignal(signal.SIGINT) is before

    assert interrupted(follow_it, shown.is_set) == "True"
