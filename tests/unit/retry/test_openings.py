"""Windows: jobs are replayed while they are open, and at no other time."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits, State
from tests.worlds.world import PATIENCE, START, World

#: The simulated world begins at 00:16:40 on a Thursday in winter, UTC.
MIDNIGHT = START - 1000.0
ONE, TWO, FIVE = (MIDNIGHT + hours * 3600.0 for hours in (1, 2, 5))
NIGHT = {"window": "02:00-05:00", "timezone": "UTC"}
#: Two windows a day: a world that waits for the next one is cheaper the sooner that opens.
TWICE = {"window": "00:00-01:00; 05:00-06:00", "timezone": "UTC"}


def away(limits=None, **options):
    """A world in which minion b has missed job j1 and is back, but its window is shut."""
    world = World(minions=("a", "b"), **options)
    world.stop("b")
    world.publish("j1", limits=limits)
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(60)
    return world


def publishes(world):
    return [(effect.jid, effect.minions) for effect in world.effects(facts.Publish)]


def test_outside_its_window_a_job_is_not_replayed_and_its_minion_is_not_asked():
    world = away(**NIGHT)
    assert publishes(world) == world.effects(facts.Ask) == []
    assert world.state("b", "j1") is State.PENDING


def test_when_its_window_opens_a_job_is_replayed_without_a_further_sign_of_life():
    world = away(**NIGHT)
    world.run(TWO - world.now - 1)
    assert publishes(world) == []
    world.run(60)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


def test_the_window_of_a_job_overrides_that_of_the_options():
    always = away(limits=Limits(given=True, window=""), **NIGHT)
    assert always.runs["b", "j1"] == 1
    later = away(limits=Limits(given=True, window="04:00-05:00"), **NIGHT)
    later.run(MIDNIGHT + 4 * 3600 - later.now - 1)
    assert publishes(later) == []
    later.run(60)
    assert later.runs["b", "j1"] == 1


def test_a_window_goes_by_the_clock_of_its_zone():
    world = away(limits=Limits(given=True, window="03:00-04:00", timezone="Europe/Berlin"))  # an hour ahead of UTC
    world.run(TWO - world.now - 1)
    assert publishes(world) == []
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_a_job_whose_window_is_shut_holds_up_no_newer_one():
    world = away(limits=Limits(given=True, **NIGHT))
    world.stop("b")
    world.publish("j2")
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(60)
    assert (world.runs["b", "j1"], world.runs["b", "j2"]) == (0, 1)


def test_in_its_window_a_job_is_replayed_as_ever():
    world = World(minions=("a", "b"), window="00:00-05:00", timezone="UTC")
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(30)
    assert world.runs["b", "j1"] == 1


@pytest.mark.parametrize("seconds", range(1, 14))
def test_nothing_is_published_once_the_window_has_closed_however_far_the_replay_was(seconds):
    world = World(minions=("a", "b"), settle=1.0, **TWICE)
    world.stop("b")
    world.publish("j1")
    world.run(ONE - world.now - seconds / 2)
    world.start("b")
    world.run(3600)
    sent = world.runs["b", "j1"]
    assert all(entry.state is State.PENDING for entry in world.machine.entries())
    assert world.machine.total == 1 - sent
    assert all(at < ONE for at in world.published_at)
    world.run(FIVE - world.now - 10)
    assert world.runs["b", "j1"] == sent
    world.run(600)
    assert world.runs["b", "j1"] == 1


def test_a_claim_that_the_store_took_after_the_window_closed_is_not_published():
    world = World(minions=("b",), ttl=1e6, **TWICE)
    world.stop("b")
    world.publish("j1")
    world.run(ONE - world.now - 8)
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.CLAIMED or not setattr(world, "store_up", False))
    world.run(ONE - world.now + 5)
    assert publishes(world) == []
    world.store_up = True
    world.run(60)
    assert publishes(world) == []
    assert world.state("b", "j1") is State.PENDING
    world.run(5 * 3600)
    assert world.runs["b", "j1"] == 1


def test_a_job_that_runs_when_its_window_closes_goes_on():
    world = World(minions=("b",), window="00:00-01:00", timezone="UTC", duration=1800.0)
    world.stop("b")
    world.publish("j1")
    world.run(ONE - world.now - 60)
    world.start("b")
    world.run(120)
    assert world.state("b", "j1") is State.RUNNING
    world.run(1800)
    assert world.machine.total == 0


def test_an_operator_who_says_replay_means_now_whatever_the_window():
    world = away(**NIGHT)
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(30)
    assert world.answers == [1]
    assert world.runs["b", "j1"] == 1


def test_replay_means_now_and_not_whenever_the_minion_comes_back():
    world = away(**NIGHT)
    world.stop("b")
    world.publish("j2", targets=("b",))
    world.run(PATIENCE + 10)
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(60)
    world.start("b")
    world.run(300)
    assert world.answers == [2]
    assert publishes(world) == []


def test_replay_delivers_all_jobs_of_a_minion_one_after_the_other():
    world = away(**NIGHT)
    world.stop("b")
    world.publish("j2", targets=("b",))
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(30)
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(60)
    assert [jid for jid, _ in publishes(world)] == ["j1", "j2"]


def test_a_held_job_that_an_operator_wants_tried_again_waits_for_its_window():
    world = away(**NIGHT)
    world.machine.replays.end(world.machine.entry("b", "j1"), State.HELD, "it was begun")
    world.tell(facts.Requested("retry", {"minion": "b"}))
    world.run(60)
    assert world.state("b", "j1") is State.PENDING
    assert publishes(world) == world.effects(facts.Ping) == []


def test_a_sweep_outside_the_window_pings_no_minion():
    world = away(**NIGHT)
    world.run(3600)
    assert world.effects(facts.Ping) == []


def test_a_window_counts_as_shut_while_it_is_not_known_when_it_opens():
    world = World(minions=("b",), window="00:00-05:00", timezone="UTC")
    world.windows_known = False
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE + 10)
    world.start("b")
    world.run(600)
    assert publishes(world) == []
    world.windows_known = True
    world.run(120)
    assert world.runs["b", "j1"] == 1


def test_nothing_is_published_after_the_clock_was_set_to_a_time_outside_the_window():
    world = away(**NIGHT)
    world.run(TWO - world.now - 1)
    world.run_until(lambda: world.effects(facts.Claim))
    world.clock_ahead = 6 * 3600.0
    world.run(600)
    assert publishes(world) == []
    assert world.state("b", "j1") is State.PENDING


def test_a_clock_that_was_set_is_heeded_within_minutes():
    world = away(**NIGHT)
    ahead = TWO - world.now
    world.clock_ahead = ahead
    world.run(700)
    assert world.runs["b", "j1"] == 1


def test_an_engine_that_starts_in_the_window_delivers():
    world = away(**NIGHT)
    world.crash()
    world.run(TWO - world.now + 60)
    world.boot()
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_a_job_expires_while_it_waits_for_its_window():
    world = away(ttl=3600.0, **NIGHT)
    world.run(TWO - world.now + 60)
    assert world.state("b", "j1") is State.EXPIRED
    assert publishes(world) == []


def test_a_window_without_jobs_is_not_asked_about():
    world = away(window="02:00-03:00; 05:00-06:00", timezone="UTC")
    world.run(TWO - world.now + 60)
    assert world.machine.total == 0
    looked = world.openings
    world.run(5 * 3600)
    assert world.openings == looked
