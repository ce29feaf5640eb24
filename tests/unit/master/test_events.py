"""Which events are believed, and what they say."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ids import is_plain, jid_time
from saltext.jobs.core.master import events
from saltext.jobs.core.master.events import JobReturned, JobStarted, MinionStarted, PresenceChanged

JID = "20260516101112131415"


def test_a_return_states_its_retcode_and_leaves_its_payload_behind():
    data = {"jid": JID, "id": "web1", "fun": "state.apply", "return": {"large": 1}, "retcode": 2}
    assert events.fact_of(f"salt/job/{JID}/ret/web1", data) == JobReturned(JID, "web1", "state.apply", 2)


def test_other_events_of_minions():
    assert events.fact_of(f"salt/job/{JID}/start/web1", {"id": "web1"}) == JobStarted(JID, "web1")
    assert events.fact_of("salt/minion/web1/start", {"id": "web1"}) == MinionStarted("web1")
    presence = {"new": ["a", "../x"], "lost": ["b"]}
    assert events.fact_of("salt/presence/change", presence) == PresenceChanged(("a",))


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        (f"salt/job/{JID}/ret/web1", {"jid": JID, "id": "web2", "retcode": 0}),
        (f"salt/job/{JID}/ret/web1", {"jid": "other", "id": "web1", "retcode": 0}),
        (f"salt/job/{JID}/ret/web1", {"jid": JID}),
        (f"salt/job/{JID}/ret/web1", "no mapping"),
        (f"salt/job/{JID}/ret/..", {"jid": JID, "id": ".."}),
        (f"salt/job/{JID}/ret/a/b", {"jid": JID, "id": "a/b"}),
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
        ({"retcode": 0, "success": False}, 1),
        ({"retcode": 2}, 2),
        ({"retcode": {"a": 0, "b": 3}}, 3),
        ({"retcode": "nonsense"}, 1),
        ({"retcode": None}, 0),
        ({"retcode": True}, 1),
        ({"retcode": 2.0}, 2),
        ({"retcode": 0.5}, 1),
        ({"retcode": "2"}, 2),
        ({"retcode": "-1"}, -1),
        ({"retcode": "\u0662"}, 1),  # a digit of another script
        ({"retcode": 10**30}, 1),
        ({"retcode": 2**31 - 1}, 2**31 - 1),
        ({"retcode": -(2**31)}, -(2**31)),
        ({"retcode": float("inf")}, 1),
        ({"retcode": float("nan")}, 1),
        ({"retcode": [0, 0], "success": [True, True]}, 0),  # ``multifunc_ordered``
        ({"retcode": [0, 3, -1]}, 3),
        ({"retcode": b"0"}, 1),
        ({"retcode": {"a": {"b": 0}}}, 1),
        ({"retcode": {"a": float("nan"), "b": -7}}, -7),
    ],
)
def test_one_retcode_stands_for_a_return(ret, code):
    assert retcode_of(ret) == code


@pytest.mark.parametrize("name", ["web1", "web-1.example.org", "20260516-special", "é", "x" * 255, "a b"])
def test_a_plain_name_is_accepted(name):
    assert is_plain(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "x" * 256, "é" * 128, None, 7, "\udc80"]
)
def test_a_name_that_could_lead_out_of_its_folder_is_refused(name):
    assert not is_plain(name)


def test_a_jid_has_a_time():
    assert jid_time(JID) == 1778926272.131415, "in UTC"
    assert jid_time(f"{JID}_12345") == jid_time(JID)
    for other in ("", "20260516-special", "1781234567", "20260516101112"):
        assert jid_time(other) is None


@pytest.mark.parametrize("jid", ["２０２６０５１６１０１１１２１３１４１５", "٢٠٢٦٠٥١٦١٠١١١٢١٣١٤١٥"])
def test_digits_of_other_scripts_make_no_time(jid):
    assert jid_time(jid) is None


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        ("test.ping", "test.ping"),
        (["test.ping", "cmd.run"], "test.ping,cmd.run"),
        (None, ""),
        (["test.ping", 7], ""),
        ({"a": 1}, ""),
        ("x" * 1001, ""),
        (b"test.ping", ""),
    ],
)
def test_an_invalid_name_of_a_function_names_none(fun, name):
    assert events.fact_of(f"salt/job/{JID}/ret/a", {"jid": JID, "id": "a", "fun": fun}).fun == name


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(JID) | st.just("a"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
    max_leaves=8,
)
FIELDS = ("jid", "id", "fun", "retcode", "success", "return", "new", "lost")
TAGS = st.sampled_from(
    [f"salt/job/{JID}/ret/a", f"salt/job/{JID}/new", f"salt/job/{JID}/start/a", "salt/minion/a/start", events.PRESENCE]
)


def is_sound(fact):
    checks = {
        "jid": is_plain,
        "minion": is_plain,
        "fun": lambda value: isinstance(value, str),
        "retcode": lambda value: type(value) is int and -(2**31) <= value < 2**31,
        "new": lambda value: isinstance(value, tuple) and all(map(is_plain, value)),
        "lost": lambda value: isinstance(value, tuple) and all(map(is_plain, value)),
    }
    return all(check(getattr(fact, name)) for name, check in checks.items() if hasattr(fact, name))


@given(TAGS, st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_whatever_an_event_carries_it_makes_a_sound_fact_or_none(tag, fields):
    for data in (fields, {"jid": JID, "id": "a", **fields}, {**fields, "jid": JID, "id": "a"}):
        fact = events.fact_of(tag, data)
        assert fact is None or is_sound(fact)


@given(st.text() | st.lists(st.text(), max_size=6).map("/".join), VALUES)
def test_whatever_a_tag_is_it_makes_a_sound_fact_or_none(tag, data):
    assert events.parts_of_job(tag) is None or tag.startswith(events.JOB)
    events.beacon_of(tag)
    fact = events.fact_of(tag, data)
    assert fact is None or is_sound(fact)
