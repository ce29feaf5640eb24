"""Looks at the job cache that minions share, and those that must not be hastened."""

from __future__ import annotations

from saltext.jobs.core.retry.looks import Gathering
from saltext.jobs.core.retry.timers import Timers


def gathering():
    timers = Timers()
    return Gathering("look", timers), timers


def due(timers, now):
    return [key[1] for key in timers.due(now)]


def test_minions_of_a_job_are_looked_at_together_when_the_first_is_due():
    looks, timers = gathering()
    looks.add("j1", "a", 13.0)
    looks.add("j1", "b", 10.3)
    assert due(timers, 10.2) == [] and due(timers, 10.3) == ["j1"]
    assert looks.take("j1", 10.3) == ["a", "b"]


def test_a_minion_with_a_fixed_time_is_not_looked_at_earlier_with_another():
    looks, timers = gathering()
    looks.add("j1", "a", 13.0, no_sooner=True)
    looks.add("j1", "b", 10.3)
    assert due(timers, 10.3) == ["j1"]
    assert looks.take("j1", 10.3) == ["b"]
    assert due(timers, 12.9) == [] and due(timers, 13.0) == ["j1"]
    assert looks.take("j1", 13.0) == ["a"]


def test_a_minion_with_a_fixed_time_is_not_looked_at_earlier_for_another_reason():
    looks, timers = gathering()
    looks.add("j1", "a", 13.0, no_sooner=True)
    looks.add("j1", "a", 10.3)
    assert due(timers, 10.3) == ["j1"]
    assert looks.take("j1", 10.3) == []
    assert due(timers, 13.0) == ["j1"]
    assert looks.take("j1", 13.0) == ["a"]
