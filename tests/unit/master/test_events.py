"""Which events are believed, and what they say."""

from __future__ import annotations

import pytest

from saltext.jobs.core.ids import is_plain, jid_time
from saltext.jobs.core.master import events
from saltext.jobs.core.master.events import JobPublished, JobReturned, JobStarted, MinionStarted, PresenceChanged

JID = "20260516101112131415"


def test_a_return_states_its_retcode_and_leaves_its_payload_behind():
    data = {"jid": JID, "id": "web1", "fun": "state.apply", "return": {"large": 1}, "retcode": 2}
    assert events.fact_of(f"salt/job/{JID}/ret/web1", data) == JobReturned(JID, "web1", "state.apply", 2)


def test_a_publish_states_its_minions():
    data = {"jid": JID, "fun": "test.ping", "tgt": "*", "tgt_type": "glob", "user": "ann", "minions": ["a", "b"]}
    fact = events.fact_of(f"salt/job/{JID}/new", data)
    assert fact == JobPublished(JID, "test.ping", "*", "glob", "ann", ("a", "b"))


def test_other_events_of_minions():
    assert events.fact_of(f"salt/job/{JID}/start/web1", {"id": "web1"}) == JobStarted(JID, "web1")
    assert events.fact_of("salt/minion/web1/start", {"id": "web1"}) == MinionStarted("web1")
    presence = {"new": ["a"], "lost": ["b", "../x"]}
    assert events.fact_of("salt/presence/change", presence) == PresenceChanged(("a",), ("b",))


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        (f"salt/job/{JID}/ret/web1", {"jid": JID, "id": "web2", "retcode": 0}),
        (f"salt/job/{JID}/ret/web1", {"jid": "other", "id": "web1", "retcode": 0}),
        (f"salt/job/{JID}/ret/web1", {"jid": JID}),
        (f"salt/job/{JID}/ret/web1", "no mapping"),
        (f"salt/job/{JID}/ret/..", {"jid": JID, "id": ".."}),
        (f"salt/job/{JID}/ret/a/b", {"jid": JID, "id": "a/b"}),
        (f"salt/job/{JID}/new", {"jid": "other", "minions": []}),
        ("salt/job/../new", {"jid": "..", "minions": []}),
        (f"salt/job/{JID}/start/web1", {"id": "web2"}),
        ("salt/minion/web1/start", {"id": "web2"}),
        ("salt/minion/web1/start", {}),
        ("salt/batch/x/stop", {"jid": "x"}),
        ("", {}),
    ],
)
def test_an_event_that_contradicts_its_tag_states_nothing(tag, data):
    assert events.fact_of(tag, data) is None


@pytest.mark.parametrize(
    ("ret", "code"),
    [
        ({}, 0),
        ({"retcode": 0, "success": True}, 0),
        ({"retcode": 0, "success": False}, 1),
        ({"retcode": 2}, 2),
        ({"retcode": {"a": 0, "b": 3}}, 3),
        ({"retcode": {"a": 0, "b": -1}}, -1),
        ({"retcode": {}}, 0),
        ({"retcode": "nonsense"}, 1),
        ({"retcode": None}, 0),
        ({"retcode": True}, 1),
    ],
)
def test_one_retcode_stands_for_a_return(ret, code):
    assert events.retcode_of(ret) == code


@pytest.mark.parametrize(
    ("tag", "jid"),
    [(f"salt/job/{JID}/ret/a", JID), ("salt/job/x", None), ("salt/run/x/new", None), ("salt/job//ret/a", "")],
)
def test_the_jid_of_a_tag(tag, jid):
    assert events.job_of(tag) == jid


@pytest.mark.parametrize(
    ("tag", "parts"),
    [
        (f"salt/job/{JID}/new", (JID, "new", "")),
        (f"salt/job/{JID}/ret/web1", (JID, "ret", "web1")),
        ("salt/job/x", ("x", "", "")),
        ("salt/run/x/new", None),
    ],
)
def test_the_parts_of_a_jobs_tag(tag, parts):
    assert events.parts_of_job(tag) == parts


@pytest.mark.parametrize(
    ("tag", "minion"),
    [
        ("salt/beacon/web1/inotify/x", "web1"),
        ("salt/beacon/web1", "web1"),
        ("salt/beacon/../x", None),
        ("salt/beacon/", None),
        ("salt/minion/web1/start", None),
    ],
)
def test_the_minion_of_a_beacons_tag(tag, minion):
    assert events.beacon_of(tag) == minion


@pytest.mark.parametrize("name", ["web1", "web-1.example.org", "20260516-special", "é", "x" * 255, "a b"])
def test_a_plain_name_is_accepted(name):
    assert is_plain(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "x" * 256, "é" * 128, None, 7, "\udc80"]
)
def test_what_could_leave_its_place_is_refused(name):
    assert not is_plain(name)


def test_a_jid_tells_its_time():
    assert jid_time(JID) == 1778926272.131415, "in UTC"
    assert jid_time(f"{JID}_12345") == jid_time(JID)
    assert jid_time("20260516-special") is None
    assert jid_time("") is None
