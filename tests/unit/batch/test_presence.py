"""Who is there: asked more than once, and while the batch runs."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from tests.unit.batch.bench import BEGIN, Bench, kinds, published


def pings(effects):
    """The minions of each ping among some effects; an empty text is the whole target."""
    return ["".join(effect.minions) for effect in effects if isinstance(effect, facts.Ping)]


def test_nothing_is_sent_before_the_first_ping_is_over_and_then_in_the_order_of_the_target():
    bench = Bench("abc", "2", presence="ping")
    assert pings(bench.effects) == ["abc"]
    assert not bench.tell(facts.Seen(("c",)))
    assert not bench.tell(facts.Seen(("a",)))
    assert published(bench.tell(facts.Pinged(("b", "stranger")))) == ["ab"]


def test_a_minion_that_did_not_answer_is_asked_again_while_the_others_run():
    bench = Bench("abc", "3", presence="ping", probe_attempts=3)
    effects = bench.tell(facts.Pinged(("a",)))
    assert pings(effects) == ["bc"]
    assert published(effects) == ["a"]
    bench.sent()
    assert published(bench.tell(facts.Seen(("b",)))) == ["b"]
    bench.sent()
    assert pings(bench.tell(facts.Pinged())) == ["c"]
    bench.tell(facts.Pinged())
    assert bench.states() == {"a": "active", "b": "active", "c": "offline"}


def test_a_minion_that_starts_while_it_is_waited_for_is_sent_to():
    bench = Bench("ab", "2", presence="ping")
    bench.tell(facts.Pinged(("a",)))
    bench.sent()
    assert not published(bench.tell(facts.Started("b"))), "anybody can say so"
    assert published(bench.tell(facts.Seen(("b",)))) == ["b"]


def test_minions_that_are_waited_for_are_pending():
    bench = Bench("ab", "2", presence="ping")
    bench.tell(facts.Pinged(("a",)))
    assert bench.batch.pending() == ["b"]
    assert bench.batch.count_pending() == 1


def test_a_paused_batch_pings_no_minion():
    bench = Bench("ab", "2", presence="ping")
    bench.tell(facts.PauseRequested())
    assert not pings(bench.tell(facts.Pinged(("a",))))
    assert bench.batch.next_due is None
    assert pings(bench.tell(facts.ResumeRequested())) == ["b"]


def test_a_ramp_waits_for_the_minions_of_its_wave_and_not_for_those_that_are_waited_for():
    bench = Bench("abcd", "1,3", presence="ping", probe_attempts=3)
    assert published(bench.tell(facts.Pinged(("b",)))) == ["b"]
    bench.sent()
    bench.returns("b")
    assert published(bench.tell(facts.Seen(("a", "c")))) == ["ac"]


def test_a_group_has_not_ended_while_minions_of_it_are_waited_for():
    bench = Bench("abcd", "2", presence="ping", groups=(("x", 2), ("y", 2)), probe_attempts=3)
    assert published(bench.tell(facts.Pinged(("a", "c", "d")))) == ["a"]
    bench.sent()
    assert not published(bench.returns("a"))
    bench.tell(facts.Pinged())
    assert published(bench.tell(facts.Pinged())) == ["cd"]


# -- silence -----------------------------------------------------------------------------------------------------------


def silent(bench, minion):
    """A minion answers no question; returns the effects of the last question."""
    bench.until_probe(62)
    for _ in range(bench.spec.probe_attempts - 1):
        bench.probed(silent=minion)
        bench.until_probe(12)
    return bench.looked(bench.probed(silent=minion))


def test_a_minion_that_answered_the_ping_and_fell_silent_is_lost_and_counts_against_the_budget():
    bench = Bench("abcd", "1,3", presence="ping", failures_allowed=0.0)
    bench.tell(facts.Pinged(tuple("abcd")))
    bench.sent()
    assert kinds(silent(bench, "a")) == ["halted", "Close"]
    assert (bench.state_of("a"), bench.batch.halted, bench.batch.success) == ("lost", "max_failures", False)


def test_a_minion_that_was_seen_running_and_fell_silent_is_lost():
    bench = Bench("ab", "1", failures_allowed=0.0)
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    assert kinds(silent(bench, "a")) == ["halted", "Close"]
    assert bench.state_of("a") == "lost"


@pytest.mark.parametrize("offline, state, success", [("skip", "offline", True), ("fail", "failed", False)])
def test_without_a_ping_a_silent_minion_becomes_what_offline_says(offline, state, success):
    bench = Bench("ab", "2", offline=offline, acks=True)
    bench.sent()
    bench.returns("b")
    silent(bench, "a")
    assert (bench.state_of("a"), bench.batch.success) == (state, success)


@pytest.mark.parametrize("fact", [None, facts.EventsLost(), facts.Recovered()])
def test_without_a_ping_a_silent_minion_that_may_have_begun_is_lost(fact):
    bench = Bench("a", "1", acks=fact is not None)
    bench.sent()
    if fact is not None:
        effects = bench.tell(fact)
        if effects:
            bench.looked(effects)
    silent(bench, "a")
    assert bench.state_of("a") == "lost"


def test_silence_is_no_evidence_as_long_as_minions_connect_to_a_young_master():
    bench = Bench("a", "1", acks=True, probe_attempts=2)
    bench.sent()
    bench.looked(bench.tell(facts.Recovered(settled_at=bench.now + 200)))
    for _ in range(5):
        bench.until_probe(62)
        bench.probed(silent="a")
    assert bench.state_of("a") == "active"


def test_without_a_ping_a_silent_minion_is_handed_to_the_retry_queue():
    bench = Bench("a", "1", offline="queue")
    bench.sent()
    assert facts.Queue(("a",)) in silent(bench, "a")


def test_a_key_that_is_deleted_makes_a_minion_absent_and_the_others_have_their_turn():
    bench = Bench("ab", "1")
    assert published(bench.sent(missed="a")) == ["b"]
    assert bench.state_of("a") == "offline"


# -- success -----------------------------------------------------------------------------------------------------------


def test_a_batch_in_which_nothing_ran_is_no_success():
    bench = Bench("a", "1")
    bench.sent(missed="a")
    assert (bench.batch.state, bench.batch.success) == ("complete", False)


def test_minions_that_were_handed_over_are_no_success_before_they_have_returned():
    bench = Bench("ab", "2", presence="ping", offline="queue")
    bench.present("a")
    bench.sent()
    bench.returns("a")
    bench.tell(facts.Queued(("b",)))
    assert (bench.batch.state, bench.batch.success) == ("complete", False)
    bench.returns("b")
    assert bench.batch.success is True


# -- a young master ----------------------------------------------------------------------------------------------------


def test_no_minion_is_given_up_before_a_young_master_has_settled():
    bench = Bench("ab", "1", presence="ping", probe_attempts=1)
    bench.tell(facts.Recovered(settled_at=BEGIN + 60))
    for _ in range(5):
        bench.tell(facts.Pinged())
        assert bench.states() == {"a": "pending", "b": "pending"}
        assert pings(bench.wait(10)) == ["ab"]
    bench.tell(facts.Pinged(), after=20)
    assert bench.states() == {"a": "offline", "b": "offline"}


def test_with_presence_none_a_minion_that_shows_no_sign_on_a_young_master_is_sent_to_all_the_same():
    bench = Bench("ab", "1", probe_attempts=2)
    bench.sent()
    effects = bench.tell(facts.Recovered(settled_at=bench.now + 5))
    assert pings(effects) == ["b"]
    bench.looked(effects, a=0)
    bench.tell(facts.Pinged(), after=10)
    assert published(bench.tell(facts.Pinged())) == ["b"]


def test_a_crash_during_the_first_ping_loses_no_answer():
    bench = Bench("abc", "3", presence="ping")
    bench.tell(facts.Seen(("c", "b")))
    effects = bench.tell(facts.Recovered())
    assert published(effects) == ["bc"], "nobody waits for the slowest minion"
    assert pings(effects) == ["a"]
