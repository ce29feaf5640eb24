"""Deadlines of engines: which clock they go by, and when they ring."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.engine.loop import Alarm, Clock
from tests.virtual_loop import VirtualLoop


def test_setting_the_systems_clock_moves_no_deadline(monkeypatch):
    clock = Clock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before + 86_400)
    assert clock.now() - before < 60


@pytest.mark.parametrize(("second", "expected"), [(2.0, [2]), (50.0, [50]), (None, [])])
def test_a_new_deadline_replaces_the_old_one(second, expected):
    virtual, rung = VirtualLoop(), []
    clock = Clock(0.0, virtual.steady)
    alarm = Alarm(virtual.loop, clock, lambda: rung.append(round(clock.now())))
    alarm.set(10.0)
    alarm.set(second)
    virtual.run(700.0)
    assert rung == expected
    virtual.close()


def test_a_loop_that_wakes_early_does_not_ring_early(steady):
    rung, waits = [], []

    class Loop:
        def call_later(self, delay, wake, due):
            waits.append((wake, due))

    alarm = Alarm(Loop(), Clock(0.0, steady), lambda: rung.append(True))
    alarm.set(10.0)
    for seconds in (9.999, 0.002):
        steady.seconds += seconds
        wake, due = waits[-1]
        wake(due)
    assert (len(waits), rung) == (2, [True])
