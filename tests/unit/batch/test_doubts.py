"""What is not known is a state of its own: minions that may not have received the job, and what a new engine knows."""

from __future__ import annotations

import itertools

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.inflight import Phase
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import Bench, kinds, published

# -- acknowledged or not received --------------------------------------------------------------------------------------


def test_an_acknowledgement_outweighs_an_answer_that_was_asked_for_before_it():
    bench = Bench("a", "1", acks=True)
    bench.sent()
    bench.until_probe(62)
    bench.tell(facts.Acknowledged("a"))
    assert not bench.probed(idle="a")
    assert bench.batch.flights["a"].idle == 0


def test_a_minion_is_not_sent_to_without_end():
    bench = Bench("a", "1", acks=True, probe_attempts=2)
    for _ in range(2):
        bench.sent()
        assert published(bench.gone("a")) == ["a"]
    bench.sent()
    assert kinds(bench.gone("a")) == ["complete", "Close"]
    assert bench.state_of("a") == "lost"


def test_a_minion_that_is_to_get_the_job_again_and_says_that_it_has_begun_is_in_flight():
    bench = Bench("ab", "1", acks=True)
    bench.sent()
    bench.tell(facts.PauseRequested())
    bench.gone("a")
    assert bench.states() == {"a": "pending", "b": "pending"}
    bench.tell(facts.Acknowledged("a"))
    assert bench.states() == {"a": "active", "b": "pending"}
    assert not published(bench.tell(facts.ResumeRequested()))
    assert published(bench.returns("a")) == ["b"]


@pytest.mark.parametrize("start", [{"settled_at": 60}, {"taken_over": True}], ids=["anew", "elsewhere"])
def test_a_publish_that_a_dying_master_may_not_have_sent_is_doubted_by_it_and_by_another_one(start):
    bench = Bench("ab", "1", acks=True)
    bench.sent()
    if "settled_at" in start:
        start = {"settled_at": bench.now + start["settled_at"]}
    bench.looked(bench.tell(facts.Recovered(**start), after=1))
    assert published(bench.gone("a")) == ["a"]


def test_an_older_publish_is_not_doubted():
    bench = Bench("a", "1", acks=True)
    bench.sent()
    bench.tell(facts.Tick(), after=20)
    bench.looked(bench.tell(facts.Recovered(settled_at=bench.now + 60), after=1))
    bench.gone("a")
    assert bench.state_of("a") == "lost"


# -- kills -------------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_after_a_kill_does_not_delay_the_next_one():
    bench = Bench("a", "1", timeout=600.0)
    bench.sent()
    bench.tell(facts.StopRequested(kill=True))
    bench.tell(facts.KillSent(("a",)))
    bench.tell(facts.Acknowledged("a"), after=0.5)
    bench.until_probe(3)
    assert bench.probed(running="a") == [facts.Kill(("a",))]


def test_a_minion_that_was_given_up_and_begins_while_the_batch_is_killed_is_killed_too():
    bench = Bench("abc", "2")
    bench.sent()
    bench.gone("a")
    bench.sent()
    bench.tell(facts.StopRequested(kill=True))
    assert facts.Kill(("a",)) in bench.tell(facts.Acknowledged("a"))


# -- a new engine ------------------------------------------------------------------------------------------------------


def test_a_new_engine_fills_at_once_the_slots_that_are_certainly_free():
    bench = Bench("abcd", "2")
    bench.sent()
    bench.until_probe(62)
    effects = bench.tell(facts.Recovered())
    assert published(bench.looked(effects, a=0)) == ["c"]


def test_an_engine_that_takes_over_fills_a_free_slot_at_once_and_no_slot_in_doubt():
    bench = Bench("abcdef", "3", batch_wait=2.0)
    bench.sent()
    bench.returns("a")
    effects = bench.tell(facts.Recovered(taken_over=True), after=12)
    assert not published(effects), "the returns that came meanwhile are looked for first"
    assert published(bench.looked(effects)) == ["d"]
    assert not published(bench.wait(5))


def test_on_a_master_that_has_just_started_a_free_slot_waits_for_the_first_sign_of_life_and_for_nothing_else():
    bench = Bench("abcdef", "3", batch_wait=2.0)
    bench.sent()
    bench.returns("a")
    effects = bench.tell(facts.Recovered(settled_at=bench.now + 100, taken_over=True), after=12)
    assert facts.Ping(tuple("def")) in effects
    assert not published(bench.looked(effects))
    assert published(bench.tell(facts.Seen(("e",)))) == ["e"]
    assert not published(bench.tell(facts.Seen(("d", "f"))))


def test_an_engine_that_lives_for_moments_asks_no_minion_again_before_that_is_due():
    bench = Bench("ab", "2")
    bench.sent()
    for _ in range(30):
        assert kinds(bench.looked(bench.tell(facts.Recovered(), after=1.5))) == []
    bench.looked(bench.tell(facts.Recovered()))
    assert "LookUp" in kinds(bench.wait(20)), "its deadline did not move"


def test_a_minion_that_keeps_running_is_asked_less_and_less_often():
    bench = Bench("a", "1", timeout=5.0)
    bench.sent()
    asked = []
    for _ in range(12):
        bench.until_probe(700)
        asked.append(bench.now)
        bench.probed(running="a")
        bench.now = bench.batch.next_due - 0.001
    waits = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert max(waits) <= 1302
    assert len([wait for wait in waits if wait > 590]) >= 3


def test_if_the_database_may_have_lost_the_last_facts_every_minion_is_asked_before_anything_is_sent():
    bench = Bench("abcd", "2")
    bench.tell(facts.Recovered(history="1"))
    bench.sent()
    lacks_a_publish = bench.batch.snapshot()
    bench.returns("a", "b")
    bench.batch = Batch.restore(lacks_a_publish)
    effects = bench.tell(facts.Recovered(history="2"))
    assert sorted(effects[0].minions) == ["a", "b", "c", "d"]
    effects = bench.looked(effects, a=0, b=0)
    assert not published(effects)
    bench.probed(running="c", idle="d")
    bench.until_probe(12)
    bench.probed(idle="d")
    assert published(bench.looked(bench.wait(12))) == ["d"]
    assert bench.states() == {"a": "completed", "b": "completed", "c": "active", "d": "active"}
    bench.sent()
    assert not bench.looked(bench.tell(facts.Recovered(history="2"))), "what is known by now stays known"


def test_a_batch_may_have_begun_even_if_the_database_has_lost_that():
    bench = Bench("ab", "1")
    accepted = Batch(bench.spec, bench.now)
    accepted.history = "1"
    bench.batch = accepted
    effects = bench.tell(facts.Recovered(history="2"))
    assert kinds(effects) == ["new", "LookUp"]
    assert not published(effects)
    assert not published(bench.tell(facts.Tick()))


def test_a_minion_that_did_not_answer_the_ping_was_sent_nothing_whatever_the_database_has_lost():
    bench = Bench("ab", "2", presence="ping", offline="skip")
    bench.tell(facts.Recovered(history="1"))
    bench.tell(facts.Pinged(("a",)))
    effects = bench.tell(facts.Recovered(history="2"))
    assert effects[0] == facts.LookUp(("a",))
    bench.present()
    assert bench.state_of("b") == "offline"


def test_a_minion_that_says_both_that_it_runs_the_job_and_that_it_does_not_does_run_it():
    bench = Bench("ab", "1")
    bench.sent()
    bench.until_probe(62)
    bench.probed(idle="a")
    bench.probed(running="a")
    assert bench.batch.flights["a"].phase is Phase.RUNNING
    bench.twice_idle("a")
    assert bench.batch.flights["a"].phase is Phase.GRACE
    bench.probed(running="a")
    assert bench.batch.flights["a"].phase is Phase.RUNNING
    assert not published(bench.wait(30))
