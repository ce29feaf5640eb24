"""What ``salt-run batch.*`` shows to people."""

from __future__ import annotations

import datetime
import re

import pytest

from saltext.jobs.core.batch import summary, tables
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.display.page import Page
from saltext.jobs.core.display.text import width_of
from tests.unit.batch.bench import spec

NOW = 1_779_000_000.0  # 2026-05-17 06:40:00 UTC
JID = "20260516101112131415"


def standing(**more):
    """A summary as ``batch.status`` returns it: with the keys of the real one."""
    about = {"jid": JID, "fun": "state.apply", "tgt": "web*", "tgt_type": "glob", "user": "root", "state": "running"}
    counts = {"total": 104, "completed": 38, "active": 10, "pending": 50, "failed": 2, "offline": 4}
    counts |= dict.fromkeys(("lost", "killed", "timed_out"), 0) | dict.fromkeys(("paused_by", "paused_reason"))
    times = {"created": NOW - 200, "last_progress": NOW - 4, "rate": 12.0, "eta_seconds": 300.0, "finished": None}
    known = {**about, **counts, **times, "batch_size": 10, "stage": 2, "stages": 3, "publishes": 2, "options": {}}
    found = summary.summary(Batch(spec(), NOW), NOW)
    assert known.keys() <= found.keys()
    return {**found, **known, "engine": True, **more}


def drawn(draw, data, width=80, chosen=False):
    page = Page(width, NOW, datetime.timezone.utc, chosen=chosen)
    draw(data, page)
    lines = page.text().split("\n")
    assert all(width_of(line) <= width and line.isprintable() for line in lines)
    return lines


def minions(**states):
    """``failed=3`` makes failed0, failed1 and failed2."""
    return {
        f"{state}{number}": {"state": state, "since": NOW - 60, "retcode": 1 if state == "failed" else None}
        for state, count in states.items()
        for number in range(count)
    }


# -- many batches -------------------------------------------------------------------------------------------------------


def test_a_batch_is_one_line():
    assert drawn(
        tables.listed, [standing(), standing(state="complete", failed=0, success=True, created=NOW - 86400 * 3)]
    ) == [
        "2 batches: 1 running, 1 succeeded",
        "JID                   STATE        DONE  FAILED  FUNCTION     TARGET  AGE",
        "20260516101112131415  running    38/104       2  state.apply  web*    3 min",
        "20260516101112131415  succeeded  38/104       0  state.apply  web*    3 d",
        "Next: salt-run batch.failures JID (or status, watch, minions, stop)",
    ]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"state": "complete", "success": True}, "succeeded"),
        ({"state": "complete", "success": False}, "unsuccessful"),
        ({"state": "halted", "success": False}, "halted"),
        ({"state": "paused", "paused_by": "operator"}, "paused"),
        ({"state": "paused", "paused_by": "publish"}, "paused"),
        ({"state": "paused", "paused_by": "window"}, "waiting"),
        ({"state": "paused", "paused_by": "approval"}, "waiting"),
        ({"state": "paused", "paused_by": "start"}, "scheduled"),
        ({"blocked_reason": "waits for room", "active": 0}, "waiting"),
        ({"blocked_reason": "waits for room", "active": 3}, "running"),
        ({"state": "stopping"}, "stopping"),
    ],
)
def test_one_word_says_whether_all_went_well_and_whether_an_operator_has_to_act(more, word):
    batch = standing(**more)
    assert summary.word(batch) == word
    assert drawn(tables.standing, batch)[0].startswith(f"{JID}  {word}  ")
    assert drawn(tables.listed, [batch])[0] == f"1 batch: 1 {word}"


@pytest.mark.parametrize(
    ("more", "colours"), [({"success": True}, {"[32m"}), ({}, {"[31m"}), ({"retries": ["2"], "unmended": {}}, set())]
)
def test_a_batch_that_has_not_succeeded_is_never_green_and_red_until_it_is_mended(more, colours):
    page = Page(80, NOW, datetime.timezone.utc, colours=True)
    tables.listed([standing(**{"state": "complete", "success": False, **more})], page)
    assert set(re.findall(r"\x1b(\[3.m)", page.text())) == colours


def test_a_list_says_what_each_batch_waits_for():
    rows = [
        standing(state="paused", paused_by="approval", paused_reason="waits for approval"),
        standing(
            active=0, blocked_reason="waits for room: 4 of 4 minions are in flight over all batches, 0 of them of this"
        ),
        standing(blocked_reason="waits for batch 7 on 1 minion: a"),
        standing(),
        standing(state="complete", blocked_reason="waits for room", paused_reason="waits for approval"),
    ]
    assert drawn(tables.listed, rows)[7:-1] == [
        f"{JID}: waits for approval",
        f"{JID}: waits for room: 4 of 4 minions are in flight over all",
        "  batches, 0 of them of this",
        f"{JID}: waits for batch 7 on 1 minion: a",
    ]
    assert drawn(tables.listed, rows[:1] * 30)[-2] == "… and 20 more that wait or were retried; --out=json shows all"


def test_a_list_says_what_the_retries_of_a_batch_have_left_and_a_mended_one_calls_for_nothing():
    ended = standing(state="halted", retries=["2", "3"], unmended={"failed": 1, "active": 2})
    assert drawn(tables.listed, [ended])[-2] == f"{JID}: retried by 2, 3; left: 1 failed, 2 active"
    lines = drawn(tables.listed, [{**ended, "unmended": {}}])
    assert [lines[0], *lines[-2:]] == [
        *("1 batch: 1 mended", f"{JID}: mended by 2, 3"),
        "Next: salt-run batch.status JID (or minions)",
    ]


def test_a_batch_is_shown_with_the_name_that_an_operator_gave_it_whoever_looks():
    named = spec(options={"metadata": {"name": "Upgrade", "ticket": "OPS-7", "note": "for ops only"}})
    seen = standing(options=summary.summary(Batch(named, NOW), NOW, is_seen=False)["options"])
    assert drawn(tables.standing, seen)[0] == f"{JID}  running  Upgrade, OPS-7: state.apply on web*, by root"
    assert "for ops only" not in str(seen)


def test_a_highstate_is_distinguished_from_the_run_of_one_formula():
    found = drawn(tables.listed, [standing(), standing(arguments=["nginx"]), standing(arguments=["x" * 500])])
    assert [line.split()[4:-2] for line in found[2:-1]] == [
        *(["state.apply", "web*"], ["state.apply", "nginx", "web*"]),
        ["state.apply", f"{5 * 'x'}…", "web*"],
    ]


# -- one batch ----------------------------------------------------------------------------------------------------------


def test_the_status_of_a_batch_takes_a_few_lines():
    assert drawn(tables.standing, standing()) == [
        f"{JID}  running  state.apply on web*, by root",
        "########............ 44 of 104: 2 failed, 4 offline, 10 active, 38 completed,",
        "  50 pending",
        "  stage 2 of 3, 10 at a time; 12 a minute, about 5 min left",
        "  started 2026-05-17 06:36:40 (3 min ago), last progress 4 s ago",
        f"Next: salt-run batch.watch {JID} (or minions, pause, stop)",
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"state": "halted", "halted_reason": "check a.b: 3 alarms"}, "  halted: check a.b: 3 alarms"),
        ({"state": "halted", "halted_reason": "stop", "stopped_by": "anna"}, "  halted: stopped by anna"),
        ({"halted_reason": "stop", "killing": True}, "  halted: stopped by batch.stop with kill=True"),
        ({"state": "halted", "halted_reason": "max_failures", "stopped_by": "anna"}, "  stopped by: anna"),
        (
            {"state": "halted", "halted_reason": "max_failures in group eu"},
            "  halted: more minions failed than max_failures allows in group eu",
        ),
        ({"state": "paused", "paused_reason": "waits for approval", "approve": 0}, "  paused: waits for approval"),
        (
            {"state": "paused", "paused_reason": "its window is shut", "opens_at": NOW + 7200},
            "  paused: its window is shut; opens 2026-05-17 08:40:00 (in 2 h)",
        ),
        ({"engine": False}, "  engine: no batch_manager engine answers, so nothing goes on; see"),
        ({"check": True}, "  a check: is under way"),
        (
            {"group": "r2", "group_number": 2, "groups": 5, "by": "grains:rack"},
            "  group r2 (2 of 5, by grains:rack), stage 2 of 3, 10 at a time; 12 a minute,",
        ),
        (
            {"publishes": 0, "active": 0, "rate": 0.0, "eta_seconds": None, "options": {"presence": "ping"}},
            "  stage 2 of 3, 10 at a time; minions are pinged first",
        ),
        ({"publishes": 0}, "  asked for 2026-05-17 06:36:40 (3 min ago)"),
        ({"publishes": 0, "finished": NOW - 9}, "  asked for 2026-05-17 06:36:40, ended 2026-05-17 06:39:51 (9 s ago)"),
        ({"engine_silent_seconds": 60.0}, "  engine: no batch_manager engine answers, so nothing goes on; see"),
        ({"engine_silent_seconds": 60.0}, "  stage 2 of 3, 10 at a time"),
        ({"survivors": ["web1", "web2"]}, "  still run it after a kill: web1, web2"),
        ({"parent": "1"}, "  retry of: 1"),
        ({"blocked_reason": "waits for room: 2 of 2"}, "  running: waits for room: 2 of 2"),
        (
            {"options": {"by": "grains:dc", "check": "approve", "approve_by": ["anna", "%ops"], "ret_config": "audit"}},
            "  options: by=grains:dc, check=approve, approve_by=anna,%ops, ret_config=audit",
        ),
        ({"driver": "master"}, "  driven by: Salt itself, not by the batch_manager engine"),
        (
            {"state": "complete", "created": NOW - 9000, "first_sent": NOW - 200, "finished": NOW - 10},
            "  started 2026-05-17 06:36:40, ended 2026-05-17 06:39:50 (10 s ago)",
        ),
        ({"arguments": ["nginx", "test=True"]}, f"{JID}  running  state.apply nginx test=True on web*, by root"),
        (
            {"options": {"max_failures": 0, "max_runtime": 3600.0, "batch_wait": 1.5, "offline": "queue"}},
            "  options: max_failures=0, max_runtime=1h, batch_wait=1.5s, offline=queue",
        ),
        ({"verdict": "Batch 1: 2 of 2 minions completed"}, "Batch 1: 2 of 2 minions completed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_thing_to_say_about_a_batch_is_a_line(more, told):
    assert told in drawn(tables.standing, standing(**more))


#: A batch that has ended, with nothing to see to.
WELL = {"state": "complete", "failed": 0, "pending": 0, "offline": 0}


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({"state": "paused", "approve": 1}, f"batch.approve {JID} (or minions, stop)"),
        (
            {"state": "paused", "approve": 1, "options": {"approve_by": "a"}},
            f"batch.watch {JID} (or approve, minions, stop)",
        ),
        ({"state": "paused", "paused_by": "window"}, f"batch.watch {JID} (or minions, stop)"),
        ({"state": "paused", "paused_by": "publish"}, f"batch.resume {JID} (or minions, stop)"),
        ({"state": "paused", "paused_by": "permission"}, f"batch.stop {JID} (or resume, minions)"),
        ({"state": "stopping"}, f"batch.watch {JID} (or minions, stop kill=True)"),
        ({"state": "stopping", "killing": True}, f"batch.watch {JID} (or minions)"),
        ({"state": "halted"}, f"batch.failures {JID} (or retry which=all, minions)"),
        ({"state": "complete", "pending": 0}, f"batch.failures {JID} (or retry, minions)"),
        ({**WELL, "offline": 1, "timed_out": 1}, f"batch.failures {JID} (or retry which=all, minions)"),
        ({"state": "complete", "retries": ["1", "2"], "unmended": {}}, "batch.status 2"),
        ({"state": "complete", "retries": ["1"], "unmended": {"failed": 4}}, f"batch.retry {JID} (or minions)"),
        ({**WELL, "retries": ["1"], "unmended": {"lost": 1, "failed": 1}}, f"batch.minions {JID} (or retry)"),
        ({"state": "halted", "lost": 3}, f"batch.failures {JID} (or retry which=failed,offline,pending, minions)"),
        ({**WELL, "pending": 1, "halted_reason": "check a.b: no"}, f"batch.minions {JID} (or retry which=pending)"),
        ({"state": "complete", "failed": 0, "pending": 0}, f"batch.retry {JID} which=offline (or minions)"),
        ({**WELL, "queued": 4}, f"job_retry.list jid={JID} (or batch.minions)"),
        ({"state": "halted", "failed": 0}, f"batch.retry {JID} which=all (or minions)"),
        ({**WELL, "lost": 1}, f"batch.minions {JID}"),
        ({**WELL, "state": "halted", "killed": 1}, f"batch.retry {JID} which=killed (or minions)"),
        (WELL, f"jobs.lookup_jid {JID} (or batch.minions)"),
        ({"state": "running", "driver": "master"}, f"batch.minions {JID} (or stop)"),
    ],
)
def test_the_last_line_is_what_to_call_next(more, command):
    assert drawn(tables.standing, standing(**more), 120)[-1] == f"Next: salt-run {command}"


def test_a_preview_has_no_line_for_what_was_not_asked_for():
    lines = drawn(tables.standing, summary.preview(spec("abc", max_failures=0), None, 86400.0))
    assert [line for line in lines if line.endswith("-")] == []
    assert {"minions: a, b, c", "options: max_failures=0, presence=none", "sizes: 2"} <= set(lines)
    grouped = summary.preview(spec("abc", groups=(("eu", 1), ("us", 2))), None, 86400.0)
    assert not [line for line in drawn(tables.standing, grouped) if line.startswith("sizes")]  # of the first group


# -- the minions of a batch ---------------------------------------------------------------------------------------------


def test_minions_are_shown_by_state_and_those_that_need_an_operator_come_first():
    lines = drawn(tables.minions, minions(completed=3, failed=2, offline=1, active=1, pending=2))
    assert lines == [
        "9 minions: 2 failed, 1 offline, 1 active, 2 pending, 3 completed",
        "failed (retcode 1), 2: failed0, failed1",
        "offline (no answer), 1: offline0",
        "active (sent to, or running it, the first for 1 min), 1: active0",
        "pending (not sent to), 2: pending0, pending1",
        "completed, 3: completed0, completed1, completed2",
        "Next: salt-run batch.failures JID (or retry, jobs.lookup_jid)",
    ]


def test_a_retry_that_is_proposed_beside_minions_finds_some_and_runs_no_job_twice():
    for states, which in (({"offline": 2}, "offline"), ({"lost": 1, "timed_out": 1, "killed": 1}, "timed_out,killed")):
        assert drawn(tables.minions, minions(**states), 100)[-1].endswith(f"(or retry which={which}, jobs.lookup_jid)")
    assert drawn(tables.minions, minions(lost=1))[-1].endswith("jobs.lookup_jid JID (or batch.retry which=lost)")
    away = {"a": {**minions(offline=1)["offline0"], "open": True}}  # the batch may send to it yet
    assert drawn(tables.minions, away)[-1] == "Next: salt-run batch.status JID (or jobs.lookup_jid)"


def test_where_a_retry_has_mended_a_minion_that_is_said_and_no_further_retry_is_proposed():
    found = minions(failed=2)
    found["failed0"] |= {"retry": "2", "retry_state": "completed"}
    assert drawn(tables.minions, found)[1] == "failed (retcode 1, completed in the retry 2), 1: failed0"
    assert drawn(tables.minions, found)[-1].startswith("Next: salt-run batch.failures JID (or retry, ")
    del found["failed1"]
    assert drawn(tables.minions, found)[-1] == "Next: salt-run batch.status JID (or jobs.lookup_jid)"


def test_failures_with_different_exit_codes_are_distinguished():
    found = minions(failed=12)
    found["failed0"]["since"] = NOW  # they are sorted by name, whichever ended first
    for number, record in enumerate(found.values()):
        record["retcode"] = number // 2 if number < 4 else number
    lines = drawn(tables.minions, found)
    assert lines[2] == "failed (retcode 1), 2: failed2, failed3"
    assert {"failed, 2: failed0, failed1", "failed (retcode 7), 1: failed7"} <= {*lines}


@pytest.mark.parametrize("count", [104, 50_000])
def test_many_minions_take_no_more_than_a_screen(count):
    found = minions(failed=count // 4, offline=count // 4, completed=count // 2)
    lines = drawn(tables.minions, found)
    assert len(lines) <= 16
    assert sum("more" in line for line in lines) == (3 if count > 104 else 1)


# -- what one minion has returned, and what a step of an orchestration shows --------------------------------------------


def test_a_run_of_states_is_a_table_with_failed_ones_first_why_they_failed_and_what_changed():
    ran = {
        "file_|-site_|-/etc/site_|-managed": {"result": True, "changes": {"diff": "-a\n+b"}, "duration": 471.9},
        "test_|-same_|-same_|-nop": {"result": True, "changes": {}, "duration": 12.0, "__run_num__": 2},
        "cmd_|-room_|-df_|-run": {"result": False, "comment": "disk is full", "duration": 2100, "__run_num__": 1},
    }
    lines = drawn(tables.returned, {"state": "failed", "since": NOW - 60, "retcode": 2, "return": ran})
    assert lines[3:] == [
        "",
        "3 states: 1 failed, 1 changed, 1 unchanged",
        "RESULT     STATE  FUNCTION       TOOK",
        "failed     room   cmd.run       2.1 s",
        "changed    site   file.managed  0.5 s",
        "unchanged  same   test.nop      0.0 s",
        "",
        "why: room (cmd.run): disk is full",
        "changes:",
        "  site:",
        "    diff:",
        "      -a",
        "      +b",
    ]


def test_what_a_command_has_printed_keeps_its_lines():
    assert drawn(tables.returned, {"state": "completed", "return": "one\n  two"})[1:] == ["return:", "  one", "    two"]


def test_a_step_names_failed_minions_with_their_reasons_and_nothing_that_is_empty():
    found = standing(state="complete", total=30, completed=5, failed=25, active=0, pending=0, offline=0)
    names = [f"m{number}" for number in range(25)]
    group = {"count": 25, "state": "failed", "retcode": 1, "text": "disk is full", "minions": names}
    told = tables.step({**found, "retcode": 1, "verdict": "25 failed", "Error": "25 failed"}, [group])
    ((who, why),) = told.pop("failures").items()
    assert (who[:38], who[-10:], why) == ("25 minions, failed (retcode 1): m0, m1", "and 5 more", "disk is full")
    counts = {"total": 30, "completed": 5, "failed": 25, "retcode": 1}
    assert told == {"jid": JID, "state": "complete", **counts, "Error": "25 failed"}
