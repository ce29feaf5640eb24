"""What a batch announces on the bus: the fields that the reference names, and no others."""

from __future__ import annotations

import re

import pytest

from docs import generated
from saltext.jobs.core.batch.summary import summary
from tests.unit.batch.bench import BEGIN
from tests.unit.batch.shell_bench import JID, ShellBench
from tests.unit.batch.test_shell_rollout import APPROVE, HOUR, utc

CHECK = {"kind": "runner", "fun": "survey.healthy", "arg": ["{jid}", "password=swordfish"], "kwargs": {}}
#: Only a batch with groups has it.
GROUP = {"group"}


def reference():
    """The fields of each kind of event, as the reference has them; those of all under ``*``."""
    rows = re.findall(r"^\| (`salt/batch/.+?) \| (.+) \|$", generated.events(), re.MULTILINE)
    named = {}
    for tags, fields in rows:
        for kind in re.findall(r"`(?:salt/batch/<jid>/)?([*\w]+)`", tags):
            named[kind] = set(re.findall(r"`(\w+)`", fields))
    return named


def announced(root, **more):
    """Let a batch of two minions live through all that it can announce: what it has announced, (kind, payload)."""
    with ShellBench(root, "ab") as bench:
        bench.runners["survey.healthy"] = (True, True)
        for minion in bench.master.minions.values():
            minion.answers["http.query"] = (True, 0)
            minion.seconds = 5.0
        bench.begin("ab", "1,100%" if "groups" not in more else "1", timeout=600.0, user="ann", **more)
        bench.run(1000.0, lambda: bench.times())
        bench.reply("pause", user="bob")
        bench.run(10.0)
        bench.reply("resume", user="bob")
        bench.run(10.0)
        if more["check"] is APPROVE:
            bench.reply("approve", stage=1, user="bob")
            bench.run(1.0)
            bench.reply("stop", user="bob")
        batch = bench.end()
        told = [(tag.rsplit("/", 1)[1], payload) for tag, payload in bench.bus.fired]
        return [*told, ("summary", summary(batch, BEGIN))]


@pytest.fixture(scope="module")
def payloads(tmp_path_factory):
    """All that two batches have announced, by its kind: one of windows and a runner's check, one of groups and approvals."""
    by_kind = {}
    checked = {"check": CHECK, "window": f"{utc(600)}-{utc(HOUR)}", "timezone": "UTC"}
    for more in (checked, {"check": APPROVE, "groups": (("x", 1), ("y", 1))}):
        for kind, payload in announced(tmp_path_factory.mktemp("bench"), **more):
            by_kind.setdefault(kind, []).append(payload)
    del by_kind["summary"]
    return by_kind


def test_the_reference_has_every_kind_that_a_batch_announces_and_no_other(payloads):
    assert set(payloads) == set(reference()) - {"*"}


def test_every_payload_has_the_fields_that_all_events_have(payloads):
    common = reference()["*"]
    assert [kind for kind, found in payloads.items() for each in found if common - GROUP - each.keys()] == []
    groups = {"group" in each for found in payloads.values() for each in found}
    assert groups == {True, False}


def test_the_payloads_of_a_kind_have_the_fields_that_the_reference_names_and_no_others(payloads):
    named = reference()
    sent = {kind: set().union(*found) for kind, found in payloads.items()}
    assert {kind: fields | GROUP for kind, fields in sent.items()} == {
        kind: fields | named["*"] for kind, fields in named.items() if kind != "*"
    }


def test_no_event_nor_summary_shows_a_secret_among_the_arguments_of_a_check(tmp_path):
    called = {"kind": "function", "fun": "http.query", "arg": ["x"], "kwargs": {"auth": ["anna", "swordfish"]}}
    for number, check in enumerate((CHECK, called)):
        told = announced(tmp_path / str(number), check=check)
        assert "********" in str(told) and "swordfish" not in str(told)
        assert {kind for kind, _ in told} >= {"check", "checked", "summary"}


def test_who_hears_that_a_batch_waits_for_an_approval_finds_that_in_its_rows(tmp_path):
    with ShellBench(tmp_path, "ab") as bench:
        found = {}
        bench.bus.fire = lambda tag, data: found.setdefault(tag, bench.reader.read(data["jid"]).state)
        bench.begin("ab", "1,100%", check=APPROVE)
        bench.run(10)
        assert found[f"salt/batch/{JID}/check"] == "paused"


def test_the_events_of_a_resume_and_an_approval_name_the_user_who_did_it(payloads):
    users = {(kind, each["user"]) for kind, found in payloads.items() for each in found}
    assert {kind for kind, user in users if user == "bob"} == {"resumed", "checked"}
    assert {each.get("reason", each["user"]) for each in payloads["resumed"]} == {"its window is open", "bob"}


def test_a_check_names_its_own_function_in_the_place_of_the_job_s(payloads):
    assert {each["fun"] for each in payloads["check"]} == {"survey.healthy", ""}
    assert {each["fun"] for each in payloads["halted"]} == {"state.apply"}
