"""What ``salt-run job_cache.*`` shows to people."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.display.page import Page
from saltext.jobs.core.store import tables
from tests.unit.batch.test_tables import JID, NOW, drawn


def job(**more):
    """A job as ``job_cache.search`` returns it."""
    about = {"JID": "20260517044000131415", "Function": "state.apply", "Arguments": [], "Target": "web*"}
    counts = {"Minions": 104, "Returned": 100, "Failed": 2, "Missing": 4}
    return {**about, "Target-type": "glob", "User": "root", "Metadata": {}, **counts, **more}


def found(jobs, then=None):
    page = Page(80, NOW)
    tables.search({"jobs": jobs, "next": then}, page)
    return page.text().split("\n")


def test_a_job_is_one_line():
    assert found([job(), job(Failed=0, Missing=0, Returned=104)]) == [
        "2 jobs, newest first: 1 with failures, 1 with minions that have not returned",
        "JID                   FUNCTION     TARGET  USER  RETURNED  FAILED  AGE",
        "20260517044000131415  state.apply  web*    root   100/104       2  1 h",
        "20260517044000131415  state.apply  web*    root   104/104       0  1 h",
        "Next: salt-run job_cache.outcome JID (or jobs.lookup_jid)",
    ]


def test_a_job_is_reported_with_its_arguments_but_not_with_secrets():
    given = ["nginx", {"__kwarg__": True, "password": "swordfish"}]
    page = Page(120, NOW)
    tables.search({"jobs": [job(Arguments=given)], "next": None}, page)
    assert "  state.apply nginx password=********  " in page.text()
    assert "  state.apply nginx pa…  " in found([job(Arguments=given)])[2]


def test_the_age_of_a_job_is_the_same_whatever_the_zone_of_the_master(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        shown = found([job()])
    time.tzset()
    assert shown[2].endswith("2  1 h")


@pytest.mark.parametrize("jid", ["", "req", "20260599101112131415", "99999999999999999999"])
def test_an_unknown_age_is_a_dash(jid):
    assert found([job(JID=jid)])[2].endswith("2  -")


def test_the_minions_of_a_job_may_not_be_known():
    assert "   100/?  " in found([job(Minions=0)])[2]


def test_a_list_that_has_more_says_how_to_go_on():
    assert found([job()], JID)[-2] == f"There are more: search on with after={JID}"
    assert found([], JID) == ["No job was found.", f"There are more: search on with after={JID}"]


def test_the_outcome_of_a_job_names_missing_and_owed_minions_and_the_reasons():
    group = {"count": 2, "state": "failed", "retcode": 1, "text": "disk full", "minions": ["web1", "web2"]}
    told = {"jid": JID, "fun": "state.apply", "arguments": ["nginx"], "tgt": "web*", "tgt_type": "glob", "user": "anna"}
    counts = {"minions": 9, "returned": 6, "failed": 2, "missing": ["db1"], "owed": {"db2": "pending", "db3": "held"}}
    assert drawn(tables.outcome, {**told, **counts, "groups": [group]}) == [
        f"{JID}  state.apply nginx on web*, by anna",
        "9 minions: 6 returned, 2 of them failed; 1 missing, 2 queued",
        "missing, 1: db1",
        "queued (held), 1: db3",
        "queued (pending), 1: db2",
        "",
        "2 minions, failed (retcode 1): web1, web2",
        "    disk full",
        "",
        f"Next: salt-run job_retry.list jid={JID} (or jobs.lookup_jid)",
    ]
    line = "9 minions: 6 returned, 2 of them failed; 1 missing, - queued, 2 lost"
    lost = [{**group, "state": "lost"}, {**group, "state": "returned"}]
    assert drawn(tables.outcome, {**told, **counts, "owed": None, "groups": lost})[1] == line


def test_each_running_job_is_a_line_with_the_command_that_kills_it_below():
    job = {"fun": "cmd.run", "arguments": ["x"], "tgt": "*", "tgt_type": "glob", "user": "root", "state": "running"}
    rows = [
        {**job, "jid": JID, "kind": "batch", "since": NOW - 90, "minions": ["a", "b"], "kill": f"stop {JID}"},
        {**job, "jid": JID, "kind": "job", "since": None, "minions": ["a"], "user": None, "kill": f"kill {JID}"},
    ]
    assert drawn(tables.running, {"jobs": rows, "asked": 9, "silent": ["db1"]}) == [
        "2 jobs: 2 running; 9 minions asked",
        "JID                   KIND   STATE    ON  SINCE  FUNCTION   TARGET  USER",
        f"{JID}  batch  running   2  1 min  cmd.run x  *       root",
        f"{JID}  job    running   1  -      cmd.run x  *       -",
        "did not answer, so it is not known what they run, 1: db1",
        "To kill one: stop JID",
        "To kill one: kill JID",
        "Next: salt-run job_cache.outcome JID (or batch.list_active)",
    ]
    assert drawn(tables.running, {"jobs": [], "asked": 9, "silent": []})[0] == "0 jobs; 9 minions asked"


def test_the_last_results_that_need_an_operator_come_first():
    def one(outcome, at=None, **more):
        nothing = dict.fromkeys(("jid", "fun", "arguments", "retcode", "missed", "missed_state"))
        about = {"jid": JID, "fun": "state.apply", "arguments": []} if outcome else {}
        return {**nothing, **about, "outcome": outcome, "at": at, **more}

    found = {
        "a": one("succeeded", NOW - 60),
        "b": one(None, missed=JID, missed_state="pending"),
        "c": one("failed", NOW - 60),
        "d": one("succeeded", NOW - 7200),
    }
    lines = drawn(tables.minions, found)
    assert lines[0] == "4 minions: 1 never, 1 failed, 2 succeeded"
    assert [line.split()[:2] for line in lines[2:6]] == [
        *(["b", "never"], ["c", "failed"]),
        *(["d", "succeeded"], ["a", "succeeded"]),
    ]
    assert lines[2].split()[-2:] == [JID, "pending"], "the batch has not sent to it"
    assert drawn(tables.minions, {}) == ["No minion matches."]
