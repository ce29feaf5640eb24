"""What is concluded where a minion does not return a job."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import verdict
from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.verdict import LONGEST_BACKOFF, Terms

ONCE = Terms(backoff=60.0, max_attempts=3, retry_interrupted=False, acks=True)
AGAIN = Terms(backoff=60.0, max_attempts=3, retry_interrupted=True, acks=True)
UNSAID = Terms(backoff=60.0, max_attempts=3, retry_interrupted=False, acks=False)


def entry(*states, **more):
    """An entry that has gone through these states."""
    made = Entry("b", "j1", 0.0, 1000.0, "was away")
    for state in states:
        made.claim(1.0) if state is State.CLAIMED else made.move(state, 1.0, "")
    for name, value in more.items():
        setattr(made, name, value)
    return made


SENT = (State.CLAIMED, State.SENT)
RUNNING = (*SENT, State.RUNNING)


def test_silence_about_a_job_that_was_begun_says_nothing_until_its_time_is_up():
    assert verdict.silent(entry(*RUNNING), 999.0, ONCE) is None
    assert verdict.silent(entry(*RUNNING), 1000.0, ONCE).state is State.EXPIRED


def test_silence_about_a_job_that_was_only_sent_is_no_receipt_and_no_attempt():
    decision = verdict.silent(entry(*SENT), 2.0, ONCE)
    assert (decision.state, decision.received, decision.alive, decision.tries) == (State.PENDING, False, False, 1)


@pytest.mark.parametrize("began", [entry(*RUNNING), entry(*SENT, acknowledged=True)])
def test_a_job_that_was_begun_and_vanished_is_held(began):
    assert verdict.vanished(began, False, ONCE).state is State.HELD


def test_a_job_that_was_begun_and_vanished_is_run_again_where_that_is_wanted_until_it_is_dead():
    decision = verdict.vanished(entry(*RUNNING), False, AGAIN)
    assert (decision.state, decision.received, decision.wait) == (State.PENDING, True, 60.0)
    assert verdict.vanished(entry(*RUNNING, attempts=3), False, AGAIN).state is State.DEAD


@pytest.mark.parametrize(
    "conclude",
    [
        lambda it: verdict.vanished(it, True, ONCE),  # it started anew
        lambda it: verdict.vanished(it, False, UNSAID),  # it would not have said that it begins
        lambda it: verdict.silent(it, 2.0, ONCE),  # it went away
    ],
)
def test_after_two_publishes_without_a_receipt_that_may_have_been_begun_no_third_one_follows(conclude):
    first = conclude(entry(*SENT))
    assert (first.state, first.lost) == (State.PENDING, 1)
    assert conclude(entry(*SENT, lost=1)).state is State.HELD


def test_a_publish_that_was_lost_on_the_way_to_a_minion_that_says_when_it_begins_is_sent_again_as_often_as_it_takes():
    assert verdict.vanished(entry(*SENT, lost=1, tries=9), False, ONCE).state is State.PENDING


@pytest.mark.parametrize("tries, wait", [(0, 60.0), (1, 120.0), (3, 480.0), (50, LONGEST_BACKOFF)])
def test_each_publish_without_a_receipt_waits_longer_than_the_last(tries, wait):
    assert verdict.not_received(entry(*SENT, tries=tries), "no", ONCE, begun=False).wait == wait
