"""Whether the owner of a batch may still run it: when that is asked, and what becomes of the batch."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.gates import ASK_AGAIN, FRESH
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import BEGIN, Bench, published

OWNER = {"kind": "token", "name": "anna", "backends": ["file"], "at": BEGIN}
ROOT = {"owner": {"kind": "master", "name": "root", "backends": [], "at": BEGIN}, "on_behalf": {}}
BERT = {
    "owner": {"kind": "password", "name": "bert", "backends": ["file"], "at": BEGIN},
    "on_behalf": {"name": "bert", "grants": ["test.*"], "account": "bert", "eauth": "file"},
}
LOST = "anna may not publish test.ping to 2 of its minions any more"


def limited(*args, **more):
    return Bench(*args, owner=OWNER, on_behalf={"name": "anna", "grants": ["test.*"]}, **more)


def asked(effects):
    """The minions of the question among some effects; None if there is none."""
    found = [effect for effect in effects if isinstance(effect, facts.CheckRights)]
    assert len(found) <= 1
    return "".join(found[0].minions) if found else None


def tell(bench, reason="", trouble=""):
    return bench.tell(facts.RightsChecked(bench.batch.rights.question, reason, trouble))


@pytest.mark.parametrize("owner", [{}, {**OWNER, "kind": "master"}])
def test_the_rights_of_an_owner_without_limits_or_of_an_unknown_one_are_not_checked(owner):
    bench = Bench("abcd", "2", owner=owner)
    assert published(bench.effects) == ["ab"]
    assert asked(bench.effects) is None


def test_nothing_is_pinged_or_sent_before_the_rights_of_the_owner_are_confirmed():
    bench = limited("abcd", "2", presence="ping")
    assert asked(bench.effects) == "abcd"
    assert not any(isinstance(effect, facts.Ping) for effect in bench.effects)
    assert any(isinstance(effect, facts.Ping) for effect in tell(bench))


def test_an_answer_counts_for_a_while():
    bench = limited("abcdef", "1")
    assert published(tell(bench)) == ["a"]
    bench.sent()
    assert published(bench.tell(facts.Returned("a", 0), after=FRESH - 1)) == ["b"]
    bench.sent()
    effects = bench.tell(facts.Returned("b", 0), after=2)
    assert (published(effects), asked(effects)) == ([], "cdef")
    assert published(tell(bench)) == ["c"]


def test_a_batch_whose_owner_may_not_run_it_any_more_pauses_and_what_runs_goes_on():
    bench = limited("abcd", "2")
    tell(bench)
    bench.sent()
    effects = bench.tell(facts.Returned("a", 0), after=FRESH + 1)
    assert asked(effects) == "cd"
    effects = tell(bench, LOST)
    assert facts.Announce("paused", {"reason": LOST, "paused_by": "permission"}) in effects
    assert (bench.batch.state, bench.batch.paused.reason, bench.batch.halted) == ("paused", LOST, None)
    bench.returns("b")
    assert bench.states() == {"a": "completed", "b": "completed", "c": "pending", "d": "pending"}
    assert bench.wait(10 * FRESH) == []


def test_a_start_time_is_waited_for_before_it_is_asked():
    bench = limited("abcd", "2", start_at=BEGIN + 1000)
    assert asked(bench.effects) is None
    bench.tell(facts.OpeningFound(BEGIN + 1000))
    effects = bench.wait(1001)
    assert asked(effects) is None
    effects = bench.tell(facts.OpeningFound(BEGIN + 1000))
    assert asked(effects) == "abcd"
    assert tell(bench, LOST)
    assert bench.batch.paused.reason == LOST


def test_rights_are_checked_again_at_each_stage_and_before_its_check():
    bench = limited("abcd", "1,1,2", check={"kind": "runner", "fun": "x.y", "arg": [], "kwargs": {}})
    tell(bench)
    bench.sent()
    effects = bench.returns("a")
    assert asked(effects) == "bcd"
    assert not any(isinstance(effect, facts.Check) for effect in effects)
    effects = tell(bench)
    assert any(isinstance(effect, facts.Check) for effect in effects)
    assert published(bench.tell(facts.Checked(0, True))) == ["b"]
    bench.sent()
    assert asked(bench.returns("b")) == "cd"
    assert not any(isinstance(effect, facts.Check) for effect in tell(bench, LOST))


def test_rights_are_checked_again_at_each_group():
    bench = limited("abcd", "2", groups=(("1", 2), ("2", 2)))
    assert published(tell(bench)) == ["ab"]
    bench.sent()
    assert asked(bench.returns("a", "b")) == "cd"
    assert published(tell(bench)) == ["cd"]


def test_rights_are_checked_again_after_an_approval():
    bench = limited("abcd", "1,3", check={"kind": "approve", "fun": "", "arg": [], "kwargs": {}})
    tell(bench)
    bench.sent()
    bench.returns("a")
    tell(bench)
    effects = bench.tell(facts.Approved(0, "root"))
    assert (published(effects), asked(effects)) == ([], "bcd")
    assert published(tell(bench)) == ["bcd"]


def test_a_user_who_resumes_a_batch_that_was_paused_by_hand_does_not_take_it_over():
    bench = limited("abcd", "2")
    bench.tell(facts.PauseRequested("root"))
    effects = bench.tell(facts.ResumeRequested("root", ROOT))
    assert asked(effects) == "abcd"
    tell(bench, LOST)
    assert bench.batch.paused.reason == LOST
    assert bench.batch.rights.owner == OWNER


def test_a_user_who_resumes_a_batch_that_lacks_rights_takes_it_over():
    bench = limited("abcd", "2")
    tell(bench, LOST)
    effects = bench.tell(facts.ResumeRequested("root", ROOT))
    assert (published(effects), asked(effects)) == (["ab"], None)
    assert bench.batch.rights.taken_over["user"] == "root"
    assert bench.batch.rights.on_behalf == {}


def test_the_rights_of_a_user_who_has_taken_a_batch_over_are_checked_likewise():
    bench = limited("abcd", "2")
    tell(bench, LOST)
    assert asked(bench.tell(facts.ResumeRequested("bert", BERT))) == "abcd"
    assert (bench.batch.rights.owner, bench.batch.rights.on_behalf) == (BERT["owner"], BERT["on_behalf"])
    tell(bench, "bert may not either")
    assert bench.batch.paused.reason == "bert may not either"


def test_an_answer_that_was_overtaken_does_not_count():
    bench = limited("abcd", "2")
    first = bench.batch.rights.question
    bench.tell(facts.PauseRequested("root"))
    assert asked(bench.tell(facts.ResumeRequested("root", ROOT))) == "abcd"
    assert bench.tell(facts.RightsChecked(first)) == []
    assert published(tell(bench)) == ["ab"]


def test_a_batch_waits_and_rights_are_checked_again_if_they_are_not_known():
    bench = limited("abcd", "2")
    assert tell(bench, trouble="the server is down") == []
    assert "the server is down" in bench.batch.waits_for().reason
    assert bench.batch.state == "paused"
    effects = bench.wait(ASK_AGAIN + 1)
    assert asked(effects) == "abcd"
    assert published(tell(bench)) == ["ab"]
    assert bench.batch.waits_for() is None


def test_an_engine_that_starts_checks_the_rights_again_even_if_a_check_was_under_way():
    bench = limited("abcd", "1,3", check={"kind": "function", "fun": "x.y", "arg": [], "kwargs": {}})
    tell(bench)
    bench.sent()
    bench.returns("a")
    assert any(isinstance(effect, facts.Check) for effect in tell(bench))
    bench.batch = bench.replayed()
    effects = bench.tell(facts.Recovered())
    assert not any(isinstance(effect, facts.Check) for effect in effects)
    assert asked(effects) == "bcd"
    # Once more since the stage has ended, as far as this engine knows.
    effects = tell(bench)
    while asked(effects) is not None:
        effects = tell(bench)
    assert any(isinstance(effect, facts.Check) for effect in effects)
    assert published(bench.tell(facts.Checked(0, True))) == ["bcd"]


def test_a_snapshot_holds_all_of_it():
    bench = limited("abcd", "2")
    tell(bench, LOST)
    bench.tell(facts.ResumeRequested("bert", BERT))
    again = Batch.restore(bench.batch.snapshot())
    assert again.snapshot() == bench.batch.snapshot() == bench.replayed().snapshot()
    assert again.rights.taken_over["user"] == "bert"


def test_no_check_of_unknown_rights_is_due_while_the_window_is_shut():
    bench = limited("abcd", "2", window="02:00-05:00", timezone="UTC")
    bench.tell(facts.OpeningFound(bench.now, bench.now + 5))
    tell(bench, trouble="the server is down")
    assert bench.batch.next_due == bench.now + 5
    bench.tell(facts.Tick(), after=5)
    bench.tell(facts.OpeningFound(bench.now + 1000, bench.now + 2000))
    bench.tell(facts.Tick(), after=ASK_AGAIN + 1)
    assert bench.batch.next_due == BEGIN + 1005
    bench.tell(facts.Tick(), after=1005 - bench.now + BEGIN)
    assert asked(bench.tell(facts.OpeningFound(bench.now, bench.now + 1000))) == "abcd"


def test_a_batch_that_is_stopped_while_it_is_asked_stays_stopped():
    bench = limited("abcd", "2")
    bench.tell(facts.StopRequested(False, "root"))
    assert tell(bench, LOST) == []
    assert bench.batch.state == "halted"
