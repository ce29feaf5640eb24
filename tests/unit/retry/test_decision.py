"""What is concluded where a minion does not return a job."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.decision import LONGEST_BACKOFF, NOTHING_ELSE, Terms, decide
from saltext.jobs.core.retry.entry import Entry, Job, State
from saltext.jobs.core.retry.knowledge import Evidence, Knowledge, Said, Signs
from saltext.jobs.core.retry.steps import Step

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


def silent(it, now, terms, said=Said.NOTHING):
    """What is done where a minion was asked about a job that may be with it, and said nothing."""
    known = Knowledge(it, Signs(), 0.0, Step.ASKING)
    known.take(Evidence.IDLE, said)
    known.take(Evidence.SILENT)
    return decide(known, NOTHING_ELSE, terms, now)


def vanished(it, restarted, terms, said=Said.NOTHING):
    """What is done where a minion is there, does not run the job and has not returned it, even a moment later."""
    signs = Signs()
    signs.started = 1.5 if restarted else 0.0
    known = Knowledge(it, signs, 0.0, Step.LOOKING_AGAIN)
    known.sent_before = None  # it was sent in this replay
    known.take(Evidence.IDLE, said)
    known.take(Evidence.NOT_RETURNED)
    return decide(known, NOTHING_ELSE, terms, 2.0)


SENT = (State.CLAIMED, State.SENT)
RUNNING = (*SENT, State.RUNNING)


def test_silence_about_a_job_that_was_begun_says_nothing_until_its_time_is_up():
    assert silent(entry(*RUNNING), 999.0, ONCE).step is Step.RUNNING
    assert silent(entry(*RUNNING), 1000.0, ONCE).state is State.EXPIRED


def test_silence_about_a_job_that_was_only_sent_is_no_receipt_and_no_attempt():
    decision = silent(entry(*SENT), 2.0, ONCE)
    assert (decision.state, decision.received, decision.alive, decision.tries) == (State.PENDING, False, False, 1)


@pytest.mark.parametrize("began", [entry(*RUNNING), entry(*SENT, acknowledged=True)])
def test_a_job_that_was_begun_and_vanished_is_held(began):
    assert vanished(began, False, ONCE).state is State.HELD


def test_a_job_that_was_begun_and_vanished_is_run_again_where_that_is_wanted_until_it_is_dead():
    decision = vanished(entry(*RUNNING), False, AGAIN)
    assert (decision.state, decision.received, decision.wait) == (State.PENDING, True, 60.0)
    assert vanished(entry(*RUNNING, attempts=3), False, AGAIN).state is State.DEAD


@pytest.mark.parametrize(
    "conclude",
    [
        lambda it: vanished(it, True, ONCE),  # it started anew
        lambda it: vanished(it, False, UNSAID),  # it would not have said that it begins
        lambda it: silent(it, 2.0, ONCE),  # it went away
    ],
)
def test_after_two_publishes_without_a_receipt_that_may_have_been_begun_no_third_one_follows(conclude):
    first = conclude(entry(*SENT))
    assert (first.state, first.lost) == (State.PENDING, 1)
    assert conclude(entry(*SENT, lost=1)).state is State.HELD


def test_a_publish_that_was_lost_on_the_way_to_a_minion_that_says_when_it_begins_is_sent_again_as_often_as_it_takes():
    assert vanished(entry(*SENT, lost=1, tries=9), False, ONCE).state is State.PENDING


@pytest.mark.parametrize("tries, wait", [(0, 60.0), (1, 120.0), (3, 480.0), (50, LONGEST_BACKOFF)])
def test_each_publish_without_a_receipt_waits_longer_than_the_last(tries, wait):
    assert vanished(entry(*SENT, tries=tries), False, ONCE).wait == wait


@pytest.mark.parametrize("it, covered", [(entry(), True), (entry(State.RUNNING), False), (entry(*SENT), False)])
def test_an_earlier_answer_covers_a_job_that_is_owed_and_none_that_may_be_with_the_minion(it, covered):
    known, job = Knowledge(it, Signs(free_at=5.0), 4.0, Step.WAITING), Job("j1", ("state.apply",), 0.0, by_id=True)
    assert known.has_answered(job, 0.0, 6.0) is covered
