"""When a minion that has not answered a question counts as silent."""

from __future__ import annotations

from saltext.jobs.core.master.asking import LONGEST, QUIET, HandedOn

#: A question that is published at 100 s and has ten seconds.
PUBLISHED, TIMEOUT = 100.0, 10.0
EARLIEST = PUBLISHED + TIMEOUT


def end_of(handed_on):
    return handed_on.end_of(PUBLISHED, EARLIEST, TIMEOUT)


def test_an_answer_that_came_early_prolongs_nothing():
    handed_on = HandedOn()
    handed_on.note(PUBLISHED, EARLIEST - QUIET - 1.0)
    assert end_of(handed_on) == EARLIEST


def test_an_answer_that_comes_late_prolongs_its_question():
    handed_on = HandedOn()
    handed_on.note(PUBLISHED, EARLIEST - 0.5)
    assert end_of(handed_on) == EARLIEST - 0.5 + QUIET


def test_answers_to_a_later_publish_do_not_prolong_a_question():
    handed_on = HandedOn()
    handed_on.note(PUBLISHED + 0.2, EARLIEST + 3.0)
    assert end_of(handed_on) == EARLIEST


def test_no_answers_prolong_a_question_for_ever():
    handed_on = HandedOn()
    for second in range(1000):
        handed_on.note(PUBLISHED - 1.0, PUBLISHED + second)
    assert end_of(handed_on) == PUBLISHED + LONGEST * TIMEOUT


def test_old_answers_are_forgotten():
    handed_on = HandedOn()
    for number in range(100_000):
        handed_on.note(float(number), float(number))
    assert len(handed_on) <= 200
