"""How long minions that come in for a job wait for each other."""

from __future__ import annotations

from saltext.jobs.core.retry.looks import LONGEST, Inflow


def test_the_longer_minions_have_been_coming_in_the_longer_they_wait_up_to_a_limit():
    inflow = Inflow(2.0)
    waits = [inflow.wait("j", 1000.0 + second) for second in range(100)]
    assert waits[:5] == [2.0] * 5 and waits[10] == 5.0
    assert waits == sorted(waits) and waits[-1] == LONGEST


def test_minions_of_one_job_keep_no_minion_of_another_waiting():
    inflow = Inflow(2.0)
    for second in range(100):
        inflow.wait("j1", 1000.0 + second)
    assert inflow.wait("j2", 1100.0) == 2.0


def test_a_job_for_which_no_minion_comes_in_any_more_is_forgotten():
    inflow = Inflow(2.0)
    for number in range(1000):
        inflow.wait(f"j{number}", 1000.0 + number)
    assert len(inflow.waves) <= 2 * LONGEST + 1
