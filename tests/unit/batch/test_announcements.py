"""What a batch announces on the bus: the fields that the reference names, and no others."""

from __future__ import annotations

import re

import pytest

from docs import generated
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.summary import announcement, summary
from tests.unit.batch.bench import BEGIN, Bench

FUNCTION = {"kind": "function", "fun": "service.status", "arg": ["nginx"], "kwargs": {}}
APPROVE = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}
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


def announced(bench):
    """What a batch has announced until now: (kind, payload)."""
    told = [effect for effect in bench.effects if isinstance(effect, facts.Announce)]
    return [(effect.kind, announcement(bench.batch, effect)) for effect in [*told, facts.Announce("progress")]]


def opened_and_checked():
    """Waits for its window, is checked, paused and resumed, and completes."""
    bench = Bench("ab", "1,1", check=FUNCTION, window="02:00-05:00", user="ann")
    bench.tell(facts.OpeningFound(BEGIN + 100, None))
    bench.wait(101)
    bench.tell(facts.OpeningFound(BEGIN, None))
    bench.sent()
    bench.returns("a")
    bench.tell(facts.PauseRequested("bob"))
    bench.tell(facts.ResumeRequested("bob"))
    bench.tell(facts.Checked(0, True))
    bench.sent()
    bench.returns("b")
    return bench


def approved_and_stopped():
    """In groups, approved, and stopped."""
    bench = Bench("ab", "1", groups=(("x", 1), ("y", 1)), check=APPROVE, user="ann")
    bench.sent()
    bench.returns("a")
    bench.tell(facts.Approved(0, "bob"))
    bench.tell(facts.StopRequested(kill=False, user="bob"))
    return bench


@pytest.fixture(scope="module")
def payloads():
    """All that two batches have announced, by its kind."""
    by_kind = {}
    for bench in (opened_and_checked(), approved_and_stopped()):
        for kind, payload in announced(bench):
            by_kind.setdefault(kind, []).append(payload)
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


def test_no_event_nor_summary_shows_a_secret_among_the_arguments_of_a_check():
    typed = {"kind": "runner", "fun": "survey.healthy", "arg": ["{jid}", "password=swordfish"], "kwargs": {}}
    called = {"kind": "function", "fun": "http.query", "arg": ["x"], "kwargs": {"auth": ["anna", "swordfish"]}}
    for check in (typed, called):
        bench = Bench("ab", "1,1", check=check)
        bench.sent()
        bench.returns("a")
        bench.tell(facts.Checked(0, True))
        told = [*announced(bench), summary(bench.batch, BEGIN)]
        assert "********" in str(told) and "swordfish" not in str(told)
        assert {kind for kind, _ in told[:-1]} >= {"check", "checked"}


def test_the_events_of_a_resume_and_an_approval_name_the_user_who_did_it(payloads):
    users = {(kind, each["user"]) for kind, found in payloads.items() for each in found}
    assert {kind for kind, user in users if user == "bob"} == {"resumed", "checked"}
    assert {each.get("reason", each["user"]) for each in payloads["resumed"]} == {"its window is open", "bob"}


def test_a_check_names_its_own_function_in_the_place_of_the_job_s(payloads):
    assert {each["fun"] for each in payloads["check"]} == {"service.status", ""}
    assert {each["fun"] for each in payloads["halted"]} == {"test.ping"}
