"""Which jobs a load ends, and which parts of a publish or a return get into the log."""

from __future__ import annotations

import pytest

from saltext.jobs.core.ledger.records import EVERY_JOB, ended_by, packed, publish_of, read, return_of

JID = "20261123000000000000"


@pytest.mark.parametrize(
    ("fun", "arg", "ended"),
    [
        ("saltutil.kill_job", [JID], [JID]),
        ("saltutil.term_job", [int(JID)], [JID]),
        ("saltutil.signal_job", [JID, 9], [JID]),
        ("saltutil.signal_job", [{"jid": JID, "sig": 9, "__kwarg__": True}], [JID]),
        ("saltutil.signal_job", [{"sig": 9, "__kwarg__": True}, {"jid": JID, "__kwarg__": True}], [JID]),
        ("saltutil.signal_job", ["sig=9", f"jid={JID}"], [JID]),
        ("saltutil.signal_job", [JID, 10], []),
        ("saltutil.signal_job", [JID, {"sig": 18, "__kwarg__": True}], []),
        ("saltutil.signal_job", [{"jid": JID, "sig": 19, "__kwarg__": True}], []),
        ("saltutil.kill_all_jobs", [], [EVERY_JOB]),
        (["test.ping", "saltutil.kill_job"], [[], [JID]], []),
        ("saltutil.kill_job", [], []),
        ("saltutil.kill_job", ["../x"], []),
        ("saltutil.kill_job", [EVERY_JOB], []),
        ("saltutil.signal_job", [{"jid": EVERY_JOB, "sig": 9, "__kwarg__": True}], []),
        (["test.echo", ["saltutil.kill_job"]], [[JID], [JID]], []),
        (None, None, []),
        ({"a": 1}, 3, []),
    ],
)
def test_a_signal_names_the_jobs_that_it_ends_wherever_its_arguments_hold_them(fun, arg, ended):
    assert ended_by({"fun": fun, "arg": arg}) == ended


def test_fields_from_a_minion_are_checked_before_they_are_written():
    said = {"fun": ["a.b", "c.d"], "retcode": {"a.b": 0, "c.d": 2}, "success": "no"}
    assert return_of(JID, "web1", said)[:4] == (JID, "web1", "a.b,c.d", 2)
    odd = return_of(JID, "web1", {"fun": {"x": 1}, "retcode": float("inf")})
    assert odd[2:4] == ("", 1)
    assert read(JID, "web1", packed(odd)) == odd


def test_what_a_minion_returns_is_in_the_log_only_if_it_was_asked():
    said = {"fun": "saltutil.find_job", "return": {"jid": JID}, "retcode": 0}
    assert return_of(JID, "web1", said, asked=True).answer() == {"jid": JID}
    assert return_of(JID, "web1", said).value == b""


@pytest.mark.parametrize(
    "load",
    [
        {},
        {"fun": 3, "arg": 4, "kwargs": 5, "user": 6},
        {"fun": "\ud800", "user": "\ud800"},
        {"kwargs": {"saltext_jobs": 1}},
        {"fun": "test.echo", "arg": [object()]},
    ],
)
def test_no_load_keeps_a_publish_from_being_written(load):
    assert packed(publish_of(JID, load, ["web1"]))
