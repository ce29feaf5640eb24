"""The deadlines of the tests themselves: they stretch with the load, and they do end."""

from __future__ import annotations

import os

import pytest

from tests.interrupted import FORK
from tests.waiting import Deadline, Patience, load, running, stretched, wait_for, weight


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


@pytest.fixture
def machine():
    return Machine()


def test_an_idle_machine_has_the_seconds_that_are_named(machine):
    deadline = machine.deadline(30)
    assert not machine.pass_by(30, deadline)
    assert machine.pass_by(1, deadline)


def test_with_nine_processes_for_each_core_the_same_seconds_last_nine_times_as_long(machine):
    deadline = machine.deadline(30)
    machine.busy = 9.0
    assert not machine.pass_by(269, deadline)
    assert machine.pass_by(2, deadline)


def test_load_that_begins_during_a_wait_stretches_the_rest_of_it(machine):
    deadline = machine.deadline(30)
    machine.pass_by(20, deadline)
    machine.busy = 4.0
    assert not machine.pass_by(40, deadline)
    assert machine.pass_by(1, deadline)


def test_the_load_of_this_machine_is_known():
    assert load() >= 1
    assert stretched(2) >= 2


@pytest.mark.parametrize(
    ("own", "others", "counts"), [(0, [0, 0], 1), (10, [10], 1), (19, [0, 0], 46.6), (10, [0], 5.2), (0, [19, 19], 1)]
)
def test_a_process_of_others_counts_for_as_many_as_it_leaves_no_time(own, others, counts):
    assert weight(own, others) == pytest.approx(counts, 0.01)


def test_the_processes_that_run_are_known_by_their_niceness():
    def spin():
        os.nice(19)
        while True:
            pass

    spinning = FORK.Process(target=spin, daemon=True)
    spinning.start()
    try:
        wait_for(lambda: 19 in running(), what="it is seen")
    finally:
        spinning.kill()
        spinning.join()


def test_a_condition_that_comes_true_is_returned():
    answers = iter(["", "", "there"])
    assert wait_for(lambda: next(answers)) == "there"


def test_a_condition_that_does_not_come_true_fails_with_its_name_and_its_last_error():
    def never():
        raise AssertionError("not even close")

    with pytest.raises(AssertionError, match=r"not within 0\.1 s: the moon is full") as failed:
        wait_for(never, 0.1, lambda: "the moon is full")
    assert str(failed.value.__cause__) == "not even close"


def test_an_error_that_is_no_failed_assertion_ends_the_wait_at_once():
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0)


def test_the_start_of_a_daemon_gets_a_deadline_that_ends():
    # This is how pytest-salt-factories reckons.
    now = 1_700_000_000.0
    until = now + Patience(0.05)
    assert now <= until
    wait_for(lambda: not now <= until, 5, "the deadline")
    assert now > until
