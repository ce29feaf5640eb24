"""The steps of a replay."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import Entry
from saltext.jobs.core.retry.knowledge import Knowledge, Signs
from saltext.jobs.core.retry.steps import LOOKS, PUBLISHED, QUESTIONS, RESTING, TRANSITIONS, Replay, Step


def test_every_step_has_a_row_in_the_table_and_can_be_reached():
    assert set(TRANSITIONS) == set(Step)
    reached = set().union(*TRANSITIONS.values())
    assert set(Step) - reached == set()


def test_a_way_that_the_table_does_not_know_is_refused():
    with pytest.raises(ValueError, match="from gathering to sending"):
        Replay(Step.GATHERING, Knowledge(Entry("b", "j1", 1.0, 2.0, ""), Signs(), 1.0)).go(Step.SENDING)


@pytest.mark.parametrize("waiting, doing", [*LOOKS.items(), *QUESTIONS.items()])
def test_what_waits_for_a_look_or_a_question_goes_on_to_it(waiting, doing):
    assert doing in TRANSITIONS[waiting]


def test_no_way_leads_to_a_publish_but_by_question_second_look_and_claim():
    before = {to: {step for step, ways in TRANSITIONS.items() if to in ways} for to in Step}
    assert before[Step.SENDING] == {Step.CLAIMING}
    assert before[Step.CLAIMING] == {Step.TO_SEND}
    assert before[Step.TO_SEND] == {Step.CHECKING_AGAIN}
    # From the first one where an answer that the minion gave about another job holds for this one too.
    assert before[Step.CHECKING_AGAIN] == {Step.GATHERING, Step.ANSWERED}
    assert before[Step.ANSWERED] == {Step.ASKING, Step.CHECKING_AGAIN}  # back where the job cache cannot be read


def test_what_rests_has_been_published():
    assert RESTING < PUBLISHED
