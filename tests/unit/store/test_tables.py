"""What ``salt-run job_cache.*`` shows to people."""

from __future__ import annotations

import datetime

import pytest

from saltext.jobs.core.display.page import Page
from saltext.jobs.core.store import tables
from tests.unit.batch.test_tables import JID, NOW, drawn
from tests.unit.display.test_text import HARMFUL


def job(**more):
    """A job as ``job_cache.search`` returns it."""
    return {
        "JID": JID,
        "Function": "state.apply",
        "Arguments": [],
        "Target": "web*",
        "Target-type": "glob",
        "User": "root",
        "StartTime": "2026, May 17 04:40:00.131415",
        "Metadata": {},
        "Minions": 104,
        "Returned": 100,
        "Failed": 2,
        "Missing": 4,
        **more,
    }


def found(jobs, then=None, jid_tz=datetime.timezone.utc):
    page = Page(80, NOW, jid_tz=jid_tz)
    tables.search({"jobs": jobs, "next": then}, page)
    return page.text().split("\n")


def test_a_job_is_one_line():
    assert found([job(), job(Failed=0, Missing=0, Returned=104)]) == [
        "2 jobs, newest first: 1 with failures, 1 with minions that have not returned",
        "JID                   FUNCTION     TARGET  USER  RETURNED  FAILED  AGE",
        "20260516101112131415  state.apply  web*    root   100/104       2  2 h",
        "20260516101112131415  state.apply  web*    root   104/104       0  2 h",
        "Next: salt-run job_cache.outcome JID (or jobs.lookup_jid)",
    ]


def test_the_age_of_a_job_goes_by_the_zone_of_the_jids():
    assert found([job()], jid_tz=datetime.timezone(datetime.timedelta(hours=-2)))[2].endswith("2  now")


@pytest.mark.parametrize(
    "start", ["", None, "2026", "2026, Foo 17 04:40:00.131415", "2026, May 17", "2026, May 99 04:40:00.1"]
)
def test_an_age_that_nobody_knows_is_a_dash(start):
    assert found([job(StartTime=start)])[2].endswith("2  -")


def test_for_whom_a_job_was_may_not_be_known():
    assert "   100/?  " in found([job(Minions=0)])[2]


def test_where_there_are_more_it_is_said_how_to_go_on():
    assert found([job()], JID)[-2] == f"There are more: search on with after={JID}"
    assert found([], JID) == ["No job was found.", f"There are more: search on with after={JID}"]


def test_what_verification_finds_is_a_line_each_and_what_is_repaired_comes_last():
    problem = {"jid": JID, "problem": "no-load", "minion": None, "detail": "", "repaired": True}
    problems = [problem, {**problem, "problem": "unreadable-return", "minion": "web1", "repaired": False}]
    assert drawn(tables.verification, {"jobs": 3, "returns": 1, "problems": problems}) == [
        "3 jobs and 1 return were looked at.",
        "2 problems: 1 no-load, 1 unreadable-return",
        "JID                   PROBLEM            MINION  REPAIRED  DETAIL",
        "20260516101112131415  unreadable-return  web1    no",
        "20260516101112131415  no-load            -       yes",
        "Next: salt-run job_cache.verify repair=True",
    ]


def test_verification_that_finds_nothing_says_so():
    assert drawn(tables.verification, {"jobs": 3, "returns": 1, "problems": []})[-1] == "Nothing is wrong with them."


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_what_would_act_on_the_terminal_does_not(harmful):
    bad = job(JID=harmful, Function=harmful, Target=[harmful], User=harmful, StartTime=harmful)
    drawn(tables.search, {"jobs": [bad], "next": harmful})
    wrong = {"jid": harmful, "problem": harmful, "minion": harmful, "detail": harmful, "repaired": False}
    drawn(tables.verification, {"jobs": 1, "returns": 1, "problems": [wrong]})
