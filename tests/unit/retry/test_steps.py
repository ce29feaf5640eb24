"""The steps of a replay."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import Entry
from saltext.jobs.core.retry.knowledge import Knowledge, Signs
from saltext.jobs.core.retry.steps import BEFORE, LOOKS, TRANSITIONS, Step


def test_every_step_has_a_row_in_the_table_and_can_be_reached():
    assert set(TRANSITIONS) == set(Step)
    reached = set().union(*TRANSITIONS.values())
    assert set(Step) - reached == set()


def test_a_way_that_the_table_does_not_know_is_refused():
    with pytest.raises(ValueError, match="from waiting to sending"):
        Knowledge(Entry("b", "j1", 1.0, 2.0, ""), Signs(), 1.0, Step.WAITING).go(Step.SENDING)


@pytest.mark.parametrize("before, after", [*LOOKS.items(), *BEFORE.items()])
def test_what_waits_for_a_look_goes_on_to_it_and_waits_again_where_that_fails(before, after):
    assert after in TRANSITIONS[before]


def test_every_way_to_a_publish_goes_through_the_question_the_second_look_and_the_claim():
    before = {to: {step for step, ways in TRANSITIONS.items() if to in ways} for to in Step}
    assert before[Step.SENDING] == {Step.CLAIMING}
    assert before[Step.CLAIMING] == {Step.TO_SEND}
    assert before[Step.TO_SEND] == {Step.LOOKING_AGAIN}
    # From the first one where an answer that the minion gave about another job holds for this one too.
    assert before[Step.LOOKING_AGAIN] == {Step.WAITING, Step.ANSWERED}
    assert before[Step.ANSWERED] == {Step.ASKING, Step.LOOKING_AGAIN}  # back where the job cache cannot be read
