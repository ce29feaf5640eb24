"""Windows: jobs are replayed while they are open, and at no other time."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import Limits
from tests.worlds.world import PATIENCE, START, World

#: The simulated world begins at 00:16:40 on a Thursday in winter, UTC.
MIDNIGHT = START - 1000.0
TWO = MIDNIGHT + 7200.0
NIGHT = {"window": "02:00-05:00", "timezone": "UTC"}


def away(limits=None, **options):
    """A world in which minion b has missed job j1 and is back, but its window is shut."""
    world = World(minions=("a", "b"), **options)
    world.stop("b")
    world.publish("j1", limits=limits)
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(60)
    return world


def test_when_its_window_opens_a_job_is_replayed_without_a_further_sign_of_life():
    world = away(**NIGHT)
    before = world.publishes
    world.run(TWO - world.now - 1)
    assert world.publishes == before, "no sweep pings it either"
    world.run(60)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


def test_a_window_goes_by_the_clock_of_its_zone():
    world = away(limits=Limits(given=True, window="03:00-04:00", timezone="Europe/Berlin"))  # an hour ahead of UTC
    world.run(TWO - world.now - 1)
    assert world.published_at == []
    world.run(60)
    assert world.runs["b", "j1"] == 1


@pytest.mark.parametrize(("seconds", "runs"), [(0, 1), (200, 1), (400, 0)])
def test_an_operator_who_says_replay_means_within_five_minutes_whatever_the_window(seconds, runs):
    world = away(**NIGHT)
    world.stop("b")
    world.request("replay", minion="b")
    world.run(seconds)
    world.start("b")
    world.run(60)
    assert (world.answers, world.runs["b", "j1"]) == ([1], runs)


def test_a_window_counts_as_shut_while_it_is_not_known_when_it_opens():
    world = World(minions=("b",), window="00:00-05:00", timezone="UTC")
    world.windows_known = False
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(600)
    assert world.published_at == []
    world.windows_known = True
    world.run(120)
    assert world.runs["b", "j1"] == 1


def test_a_clock_that_was_set_is_heeded_within_minutes():
    world = away(**NIGHT)
    world.clock_ahead = TWO - world.now
    world.run(700)
    assert world.runs["b", "j1"] == 1
