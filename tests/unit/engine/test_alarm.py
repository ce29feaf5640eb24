"""Deadlines of engines: which clock they go by, and when they ring."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.engine.alarm import Alarm, Clock


class Loop:
    """Timers of a loop, by the steady clock."""

    def __init__(self, steady):
        self._steady, self.timers, self.calls = steady, {}, 0

    def call_later(self, delay, callback):
        self.calls += 1
        self.timers[self.calls] = (self._steady() + delay, callback)
        return self.calls

    def remove_timeout(self, handle):
        del self.timers[handle]

    def run_until(self, seconds):
        while due := sorted((at, handle) for handle, (at, _) in self.timers.items() if at <= seconds):
            self._steady.seconds = max(self._steady.seconds, due[0][0])
            self.timers.pop(due[0][1])[1]()
        self._steady.seconds = seconds


@pytest.fixture
def clock(steady):
    return Clock(unix=1_000.0, steady=steady)


@pytest.fixture
def loop(steady):
    return Loop(steady)


def test_setting_the_systems_clock_moves_no_deadline(monkeypatch):
    clock = Clock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before + 86_400)
    assert clock.now() - before < 60


@pytest.mark.parametrize(("second", "expected"), [(1_002.0, [1_002.0]), (1_050.0, [1_050.0]), (None, [])])
def test_a_new_deadline_replaces_the_old_one(loop, clock, second, expected):
    rung = []
    alarm = Alarm(loop, clock, lambda: rung.append(clock.now()))
    alarm.set(1_010.0)
    alarm.set(second)
    loop.run_until(700)
    assert rung == expected


def test_a_loop_that_wakes_early_does_not_ring_early(loop, clock, steady):
    rung = []
    alarm = Alarm(loop, clock, lambda: rung.append(clock.now()))
    alarm.set(1_010.0)
    ((_, wake),) = loop.timers.values()
    loop.timers.clear()
    steady.seconds = 509.999
    wake()
    assert rung == []
    loop.run_until(520)
    assert rung == [1_010.0]
