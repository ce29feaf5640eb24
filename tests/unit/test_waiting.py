"""The deadlines of the tests themselves: they stretch with the load, and they do end."""

from __future__ import annotations

import pytest

from tests.waiting import Deadline, Patience, wait_for


class Machine:
    """A clock and a load that the test sets."""

    def __init__(self):
        self.now, self.busy = 100.0, 1.0

    def deadline(self, seconds):
        return Deadline(seconds, load=lambda: self.busy, clock=lambda: self.now)

    def pass_by(self, seconds, deadline):
        """Let time go by, in steps in which the deadline is looked at."""
        for _ in range(int(seconds)):
            self.now += 1
            over = deadline.is_over()
        return over


def test_with_nine_processes_for_each_core_the_same_seconds_last_nine_times_as_long():
    machine = Machine()
    deadline = machine.deadline(30)
    machine.busy = 9.0
    assert not machine.pass_by(269, deadline)
    assert machine.pass_by(2, deadline)


def test_a_condition_that_does_not_come_true_fails_with_its_name_and_its_last_error():
    def never():
        raise AssertionError("not even close")

    with pytest.raises(AssertionError, match=r"not within 0\.1 s: the moon is full") as failed:
        wait_for(never, 0.1, lambda: "the moon is full")
    assert str(failed.value.__cause__) == "not even close"


def test_the_start_of_a_daemon_gets_a_deadline_that_ends():
    # This is how pytest-salt-factories reckons.
    now = 1_700_000_000.0
    until = now + Patience(0.05)
    assert now <= until
    wait_for(lambda: not now <= until, 5, "the deadline")
    assert now > until
