"""What runs at this moment, as the minions say."""

from __future__ import annotations

import pytest

from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.master.jobs import running

JID, OTHER = "20260516101112131415", "20260516101112131416"


def job(jid=JID, fun="cmd.run", **more):
    about = {
        "arg": ["sleep 9", {"__kwarg__": True, "password": "swordfish"}],
        "tgt": "*",
        "tgt_type": "glob",
        "user": "root",
    }
    return {"jid": jid, "fun": fun, "pid": 7, "ret": "", **about, **more}


def test_a_job_is_reported_once_with_all_minions_that_run_it():
    assert running({"b": [job()], "a": [job(), job()]}, {}, {}) == [
        {
            "jid": JID,
            "kind": "job",
            "fun": "cmd.run",
            "arguments": ["sleep 9", "password=********"],
            "tgt": "*",
            "tgt_type": "glob",
            "user": "root",
            "state": "running",
            "since": jid_time(JID),
            "minions": ["a", "b"],
            "kill": f"salt '*' saltutil.kill_job {JID}",
        }
    ]


def test_a_batch_and_a_replay_are_shown_as_such():
    batch = {
        "fun": "cmd.run",
        "arguments": [],
        "tgt": "*",
        "tgt_type": "glob",
        "user": "anna",
        "state": "waiting",
        "since": 5.0,
    }
    found = running({"a": [job(), job(OTHER)]}, {JID: batch}, {OTHER: {"kind": "replay", "since": 7.0}})
    assert [(row["kind"], row["since"], row["state"], row["minions"]) for row in found] == [
        ("batch", 5.0, "waiting", ["a"]),
        ("replay", 7.0, "running", ["a"]),
    ]
    assert (found[0]["user"], found[0]["kill"]) == ("anna", f"salt-run batch.stop {JID} kill=True")


def test_what_one_minion_says_of_a_job_is_shown_of_that_minion_alone():
    liar = job(fun="test.harmless", user="nobody")
    found = running({"liar": [liar], "a": [job()], "b": [job()]}, {}, {})
    assert [(row["fun"], row["user"], row["minions"]) for row in found] == [
        ("cmd.run", "root", ["a", "b"]),
        ("test.harmless", "nobody", ["liar"]),
    ]


def test_the_command_that_kills_a_job_is_safe_to_be_copied_whatever_its_jid_is():
    (row,) = running({"a": [job("1; reboot #")]}, {}, {})
    assert row["kill"] == "salt '*' saltutil.kill_job '1; reboot #'"


def test_a_minion_that_claims_very_many_jobs_does_not_fill_the_page():
    assert len(running({"a": [job(str(number)) for number in range(100_000)]}, {}, {})) <= 200


def test_jobs_that_only_look_are_left_out():
    assert running({"a": [job(fun="saltutil.running"), job(OTHER, "test.ping")]}, {}, {}) == []


@pytest.mark.parametrize(
    "said",
    [None, 7, "x", {}, {"jid": "../x", "fun": "a.b"}, {"jid": JID}, {"jid": JID, "fun": 7}, {"jid": [], "fun": "a.b"}],
)
def test_entries_without_the_form_of_a_job_are_passed_over(said):
    assert [row["jid"] for row in running({"a": [said, job(OTHER)]}, {}, {})] == [OTHER]
