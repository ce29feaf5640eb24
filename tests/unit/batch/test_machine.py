"""The batch state machine: facts in, effects out."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.inflight import KILLS
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import Bench, kinds, published

# -- sending -----------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_while_a_publish_is_under_way():
    bench = Bench("abcd", "2")
    assert not bench.returns("a")
    assert published(bench.sent()) == ["c"]


def test_batch_wait_keeps_a_slot_empty():
    bench = Bench("abc", "2", batch_wait=30.0)
    bench.sent()
    assert not published(bench.returns("a"))
    assert not published(bench.wait(29))
    assert published(bench.wait(2)) == ["c"]


def test_a_late_outcome_of_the_publish_does_not_revive_a_minion_that_has_returned():
    bench = Bench("ab", "2")
    bench.returns("a")
    bench.sent()
    assert bench.states() == {"a": "completed", "b": "active"}


# -- ramp --------------------------------------------------------------------------------------------------------------


def test_a_ramp_sends_wave_by_wave_and_then_slides():
    bench = Bench("abcdefgh", "1,2,3")
    assert published(bench.effects) == ["a"]
    bench.sent()
    assert published(bench.returns("a")) == ["bc"]
    bench.sent()
    assert not published(bench.returns("b")), "the wave has not ended"
    assert published(bench.returns("c")) == ["def"]
    bench.sent()
    assert published(bench.returns("e")) == ["g"], "the last size slides"


def test_a_minion_put_back_in_a_wave_is_sent_to_in_the_same_wave():
    bench = Bench("abcd", "2,4")
    bench.tell(facts.PublishFailed("no", certain=True))
    assert published(bench.wait(1)) == ["ab"]


# -- presence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget",
    [
        {"failures_allowed": 0.0},
        {"groups": (("eu", 1), ("us", 2)), "failures_allowed": 0.0},
        {"groups": (("eu", 1), ("us", 2)), "group_failures_allowed": (0.0, 0.0)},
        {"groups": (("eu", 2), ("us", 1)), "group_failures_allowed": (0.0, 0.0)},  # nobody is there in the last group
    ],
)
def test_a_batch_that_ends_beyond_its_budget_hands_nobody_over_however_few_have_run(budget):
    bench = Bench("abc", "1", presence="ping", offline="queue", min_executed=100, **budget)
    bench.present("ab")
    bench.sent()
    bench.returns("a")
    bench.sent()
    bench.returns("b", retcode=1)
    assert (bench.batch.state, bench.states()["c"]) == ("halted", "offline")
    assert "Queue" not in kinds(bench.effects)


def test_a_batch_that_ends_within_its_budget_hands_over_those_that_were_away():
    bench = Bench("abc", "2", presence="ping", offline="queue", min_executed=100, failures_allowed=2.0)
    bench.present("ab")
    bench.sent()
    assert bench.returns("a", "b", retcode=1) == [facts.Queue(("c",))]


def test_a_minion_that_turns_out_to_be_away_after_the_hand_over_has_begun_is_handed_over_too():
    bench = Bench("ab", "2", presence="ping", offline="queue")
    bench.present("a")
    bench.sent()
    assert bench.returns("a") == [facts.Queue(("b",))]
    bench.tell(facts.Acknowledged("b"))  # it is forged
    bench.tell(facts.Queued(("b",)))
    bench.twice_idle("b")
    bench.tell(facts.NeverBegun(("b",)))
    assert published(bench.looked(bench.wait(12))) == ["b"], "it has not begun the job"
    assert bench.sent(missed=("b",)) == [facts.Queue(("b",))]
    assert kinds(bench.tell(facts.Queued(("b",)))) == ["complete", "Close"]


def test_an_absent_minion_that_has_run_the_job_after_all_is_not_handed_over():
    bench = Bench("abc", "1", presence="ping", offline="queue")
    bench.present("a")
    bench.sent()
    bench.returns("b")
    assert bench.returns("a") == [facts.Queue(("c",))]


def test_a_ping_that_fails_is_tried_again_and_then_pauses_the_batch():
    bench = Bench("ab", "2", presence="ping", publish_retries=1)
    assert not bench.tell(facts.PingFailed("busy"))
    assert kinds(bench.wait(1)) == ["Ping"]
    assert kinds(bench.tell(facts.PingFailed("busy"))) == ["paused"]
    assert "busy" in bench.batch.paused.reason
    assert kinds(bench.tell(facts.ResumeRequested())) == ["resumed", "Ping"]


# -- the limit ---------------------------------------------------------------------------------------------------------


def test_an_answer_that_contradicts_itself_harms_nothing():
    bench = Bench("ab", "1", probe_attempts=1)
    bench.sent()
    bench.until_probe(62)
    assert bench.probed(silent="a", unasked="a") == [facts.LookUp(("a",))], "it was asked as often as it may be"


def test_the_last_look_finds_a_return_that_the_bus_lost():
    bench = Bench("a", "1")
    bench.sent()
    bench.twice_idle("a")
    bench.looked(bench.wait(12), a=3)
    assert bench.batch.outcomes["a"][2] == 3
    assert bench.state_of("a") == "failed"


def test_a_question_that_could_not_be_asked_is_no_silence():
    bench = Bench("a", "1", probe_attempts=1)
    bench.sent()
    bench.until_probe(62)
    for _ in range(10):
        bench.probed(unasked="a")
        assert kinds(bench.until_probe(12)) == ["Probe"]
    assert bench.state_of("a") == "active"


def test_an_acknowledgement_moves_the_deadline():
    bench = Bench("a", "1")
    bench.sent()
    bench.tell(facts.Acknowledged("a"), after=59)
    assert not bench.wait(59)
    assert kinds(bench.wait(3)) == ["LookUp"]


def test_overdue_minions_are_gathered_into_one_look_up():
    bench = Bench("abcd", "4")
    bench.sent()
    for number, minion in enumerate("abcd"):
        bench.tell(facts.Acknowledged(minion), after=0.2 * (number > 0))
    assert [effect.minions for effect in bench.wait(62)] == [("a", "b", "c", "d")]


def test_a_deadline_that_has_moved_decides_nothing_when_the_journal_is_folded():
    bench = Bench("ab", "2", timeout=5.0)
    bench.sent()
    bench.tell(facts.Acknowledged("b"), after=2)
    bench.tell(facts.Acknowledged("a"), after=0.5)
    assert bench.batch.next_due == bench.now - 0.5 + 6
    bench.tell(facts.Tick(), after=5.2)
    assert bench.replayed().snapshot() == bench.batch.snapshot()


def test_a_minion_given_up_too_early_takes_its_slot_again():
    bench = Bench("abc", "1")
    bench.sent()
    bench.gone("a")
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    assert bench.states() == {"a": "active", "b": "active", "c": "pending"}
    assert not published(bench.returns("b")), "the slot is a's"
    assert published(bench.returns("a")) == ["c"]


def test_a_return_is_counted_once():
    bench = Bench("ab", "2")
    bench.sent()
    bench.returns("a")
    bench.returns("a", retcode=1)
    assert bench.state_of("a") == "completed"


@pytest.mark.parametrize("minion", ["c", "stranger"])
def test_a_return_of_a_minion_that_was_not_sent_to_is_ignored(minion):
    bench = Bench("abc", "2")
    bench.sent()
    assert not bench.returns(minion)
    assert bench.state_of("c") == "pending"


# -- failures ----------------------------------------------------------------------------------------------------------


def test_more_failures_than_allowed_stop_the_batch():
    bench = Bench("abcdef", "1", failures_allowed=1.0)
    bench.sent()
    bench.returns("a", retcode=1)
    bench.sent()
    assert kinds(bench.returns("b", retcode=1)) == ["halted", "Close"]
    assert bench.batch.halted == "max_failures"


def test_the_budget_waits_for_enough_minions_to_judge_by():
    bench = Bench("abcdef", "1", failures_allowed=0.0, min_executed=3)
    bench.sent()
    bench.returns("a", retcode=1)
    bench.sent()
    bench.returns("b")
    bench.sent()
    assert "halted" in kinds(bench.returns("c"))


# -- publishes that fail -----------------------------------------------------------------------------------------------


def test_a_refused_publish_is_tried_again_with_backoff():
    bench = Bench("ab", "2")
    assert not bench.tell(facts.PublishFailed("refused", certain=True))
    assert bench.states() == {"a": "pending", "b": "pending"}
    assert not bench.wait(0.9)
    assert published(bench.wait(0.2)) == ["ab"]
    bench.tell(facts.PublishFailed("refused", certain=True))
    assert not bench.wait(1.9)
    assert published(bench.wait(0.2)) == ["ab"]


def test_a_publish_without_an_answer_is_probed_before_it_is_sent_again():
    bench = Bench("ab", "2")
    effects = bench.tell(facts.PublishFailed("timed out", certain=False))
    assert effects == [facts.LookUp(("a", "b"))]
    assert bench.looked(effects) == [facts.Probe(("a", "b"))]
    bench.probed(running="a", idle="b")
    bench.until_probe(12)
    bench.probed(idle="b")
    assert published(bench.looked(bench.wait(12))) == ["b"]
    assert bench.states() == {"a": "active", "b": "active"}


def test_after_its_retries_a_batch_pauses_with_the_reason():
    bench = Bench("ab", "2", publish_retries=2)
    for _ in range(2):
        bench.tell(facts.PublishFailed("refused", certain=True))
        assert published(bench.wait(5)) == ["ab"]
    assert kinds(bench.tell(facts.PublishFailed("refused", certain=True))) == ["paused"]
    assert not bench.wait(1000)
    assert "refused" in bench.batch.paused.reason
    assert bench.states() == {"a": "pending", "b": "pending"}
    assert published(bench.tell(facts.ResumeRequested())) == ["ab"]


def test_a_minion_put_back_that_returns_after_all_is_not_sent_to_again():
    bench = Bench("ab", "2")
    bench.tell(facts.PublishFailed("refused", certain=True))
    bench.returns("a")
    assert published(bench.wait(2)) == ["b"]


# -- pause and stop ----------------------------------------------------------------------------------------------------


def test_a_paused_batch_sends_nothing_until_it_is_resumed():
    bench = Bench("abcd", "2")
    bench.sent()
    assert kinds(bench.tell(facts.PauseRequested("ann"))) == ["paused"]
    assert not published(bench.returns("a", "b"))
    assert bench.batch.state == "paused"
    assert published(bench.tell(facts.ResumeRequested("ann"))) == ["cd"]


def test_a_batch_resumed_during_its_presence_ping_waits_for_the_answers():
    bench = Bench("ab", "2", presence="ping")
    bench.tell(facts.PauseRequested())
    bench.tell(facts.ResumeRequested())
    assert bench.batch.next_due is None
    assert published(bench.tell(facts.Pinged(("a", "b")))) == ["ab"]


def test_a_stopped_batch_sends_nothing_more_and_lets_the_rest_end():
    bench = Bench("abcd", "2")
    bench.sent()
    assert kinds(bench.tell(facts.StopRequested(kill=False))) == ["halted"]
    assert bench.batch.state == "stopping"
    bench.returns("a")
    assert kinds(bench.returns("b")) == ["Close"]
    assert bench.states() == {"a": "completed", "b": "completed", "c": "pending", "d": "pending"}


def test_a_kill_comes_after_the_halt_and_frees_no_slot():
    bench = Bench("abcd", "2")
    bench.sent()
    effects = bench.tell(facts.StopRequested(kill=True))
    assert kinds(effects) == ["halted", "Kill"]
    assert effects[1].minions == ("a", "b")
    bench.tell(facts.KillSent(("a", "b")))
    effects = bench.gone("ab", 3)
    assert kinds(effects) == ["Close"]
    assert bench.states() == {"a": "killed", "b": "killed", "c": "pending", "d": "pending"}


def test_a_kill_is_repeated_until_the_job_is_gone():
    bench = Bench("a", "1")
    bench.sent()
    bench.tell(facts.StopRequested(kill=True))
    for _ in range(KILLS - 1):
        bench.tell(facts.KillSent(("a",)))
        bench.until_probe(3)
        assert kinds(bench.probed(running="a")) == ["Kill"]
    bench.tell(facts.KillSent(("a",)))
    bench.until_probe(3)
    assert not bench.probed(running="a"), "it was killed as often as it may be"
    assert bench.batch.inflight.survivors() == ["a"]
    assert bench.batch.state == "stopping"
    assert kinds(bench.returns("a")) == ["Close"]


def test_a_kill_reaches_minions_whose_publish_was_under_way():
    bench = Bench("ab", "2")
    assert kinds(bench.tell(facts.StopRequested(kill=True))) == ["halted"]
    assert bench.sent() == [facts.Kill(("a", "b"))]


def test_a_plain_stop_can_be_followed_by_a_kill_but_not_by_another_stop():
    bench = Bench("ab", "2")
    bench.sent()
    bench.tell(facts.StopRequested(kill=False))
    assert not bench.batch.accepts(facts.StopRequested(kill=False))
    assert bench.batch.accepts(facts.StopRequested(kill=True))
    bench.tell(facts.StopRequested(kill=True))
    assert not bench.batch.accepts(facts.StopRequested(kill=True))


def test_a_request_whose_answer_died_with_the_engine_is_known_to_have_been_taken():
    bench = Bench("ab", "2")
    bench.sent()
    assert not bench.batch.has_taken(facts.PauseRequested())
    bench.tell(facts.PauseRequested())
    assert bench.batch.has_taken(facts.PauseRequested())
    assert not bench.batch.has_taken(facts.ResumeRequested())
    bench.tell(facts.StopRequested(kill=False))
    assert bench.batch.has_taken(facts.StopRequested(kill=False))
    assert not bench.batch.has_taken(facts.StopRequested(kill=True))


def test_a_batch_that_has_ended_accepts_nothing():
    bench = Bench("a", "1")
    bench.sent()
    bench.returns("a")
    before = bench.batch.snapshot()
    for request in (facts.StopRequested(True), facts.PauseRequested(), facts.ResumeRequested()):
        assert not bench.batch.accepts(request)
        assert not bench.tell(request)
    assert bench.batch.snapshot() == before


def test_a_stop_during_the_presence_ping_ends_the_batch():
    bench = Bench("ab", "2", presence="ping")
    assert kinds(bench.tell(facts.StopRequested(kill=False))) == ["halted", "Close"]
    assert bench.batch.pending() == ["a", "b"]


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_a_publish_without_an_outcome_is_looked_up_and_probed_after_a_crash():
    bench = Bench("abc", "2")
    effects = bench.tell(facts.Recovered())
    assert effects == [facts.LookUp(("a", "b"))]
    assert bench.looked(effects, a=0) == [facts.Probe(("b",)), facts.Publish(("c",))]
    bench.sent()
    bench.probed(idle="b")
    bench.until_probe(12)
    bench.probed(idle="b")
    assert published(bench.looked(bench.wait(12))) == ["b"], "it never got it"


def test_minions_not_yet_handed_over_are_handed_over_after_a_crash():
    bench = Bench("ab", "2", presence="ping", offline="queue")
    bench.present("a")
    bench.sent()
    assert bench.returns("a") == [facts.Queue(("b",))]
    assert facts.Queue(("b",)) in bench.tell(facts.Recovered())


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_was_set_while_the_engine_was_away_moves_no_deadline_far(step):
    bench = Bench("abcd", "2", batch_wait=5.0)
    bench.sent()
    bench.returns("a")
    bench.now += step
    bench.effects.clear()
    bench.looked(bench.tell(facts.Recovered()))
    later = bench.wait(62)
    assert published(bench.effects) == ["c"]
    assert "LookUp" in kinds(later), "b is looked for"


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
@pytest.mark.parametrize("presence", ["ping", "none"])
def test_a_batch_whose_engine_died_before_it_began_begins_at_once_though_the_clock_was_set_since(presence, step):
    recorded = Bench("ab", "2", presence=presence)
    batch, now = Batch.restore(recorded.first), recorded.now + step
    batch.step(facts.Recovered(), now)
    assert kinds(batch.step(facts.Tick(), now))[-1] == {"ping": "Ping", "none": "Publish"}[presence]
