"""How long it took until another master led and published, by what the minions heard."""

from __future__ import annotations

import pytest

from benchmarks.fleet import takeover
from benchmarks.fleet.takeover import DOUBTED, FREE, OWED, TAKEN, Fault, Lead
from benchmarks.fleet.truth import Publish, Run, Truth

JID, OTHER = "20270101000000000001", "20270101000000000002"
BATCHES, QUEUE = "batches", "queue"
KILL = Fault(100.0, "killed", frozenset({BATCHES, QUEUE}), frozenset({"c1"}), until=160.0)


def publish(at, *targets, jid=JID):
    return Publish(at, jid, "state.apply", len(targets), False, targets=frozenset(targets))


def truth_of(*publishes, returned=()):
    truth = Truth()
    truth.publishes.extend(publishes)
    truth.runs.extend(Run(minion, JID, 90.0, 95.0, answered=96.0) for minion in returned)
    return truth


def test_a_takeover_lasts_until_the_next_process_leads():
    leads = [Lead(at, BATCHES, "m", number) for number, at in enumerate((1.0, 111.0, 115.0, 170.0))]
    assert takeover.taken_over(KILL, leads) == {BATCHES: 11.0}


def test_nothing_is_taken_over_of_an_engine_that_was_led_elsewhere():
    assert takeover.taken_over(Fault(100.0, "killed", frozenset({QUEUE})), [Lead(111.0, BATCHES, "m", 1)]) == {}


@pytest.mark.parametrize(
    "limit, found",
    [
        (2, (None, 12.0)),  # both slots were taken when the leader died
        (3, (12.0, 20.0)),
        (4, (12.0, None)),  # a slot stayed free
    ],
)
def test_a_slot_is_in_doubt_if_its_minion_had_not_returned_when_the_leader_died(limit, found):
    truth = truth_of(
        publish(80.0, "a1"), publish(85.0, "a2", "a3"), publish(112.0, "a4"), publish(120.0, "a5"), returned=["a1"]
    )
    assert takeover.until_slots_filled(truth, JID, limit, KILL) == found


def test_a_slot_freed_just_before_the_leader_died_counts_as_in_doubt():
    truth = truth_of(publish(85.0, "a1", "a2"), publish(112.0, "a3"), publish(125.0, "a4"), returned=["a1"])
    truth.runs[0].answered = 99.5
    assert takeover.until_slots_filled(truth, JID, 2, KILL) == (None, 12.0)


def test_a_batch_that_no_minion_had_got_has_no_time_of_takeover():
    assert takeover.until_slots_filled(truth_of(publish(112.0, "a1")), JID, 2, KILL) == (None, None)


def test_a_minion_that_is_sent_the_job_again_takes_no_further_slot():
    truth = truth_of(publish(85.0, "a1"), publish(112.0, "a1"), publish(190.0, "a2"))
    assert takeover.until_slots_filled(truth, JID, 1, KILL) == (None, None)


def test_the_time_of_an_owed_job_counts_from_the_death_of_the_leader():
    truth = truth_of(publish(99.0, "c1", jid=OTHER), publish(105.0, "c2", jid=OTHER), publish(113.0, "c1", jid=OTHER))
    assert takeover.first_owed(truth, {OTHER}, KILL) == 13.0
    assert takeover.first_owed(truth, {JID}, KILL) is None


def test_all_is_measured_of_the_engines_whose_leader_was_lost():
    truth = truth_of(publish(85.0, "a1"), publish(112.0, "a2", "a3"), publish(113.0, "c1", jid=OTHER))
    leads = [Lead(110.0, BATCHES, "m", 1), Lead(111.0, QUEUE, "m", 1)]
    found = takeover.measured(truth, [KILL], leads, {JID: 2}, {OTHER}, BATCHES, QUEUE)
    assert found == {TAKEN: [10.0, 11.0], FREE: [12.0], DOUBTED: [12.0], OWED: [13.0]}


def test_a_spread_names_the_median_and_the_most():
    assert takeover.spread([float(number) for number in range(1, 11)]) == "p50 5.0 s, p99 10.0 s, most 10.0 s of 10"
    assert takeover.spread([]) == "none"
