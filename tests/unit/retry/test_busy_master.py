"""A fleet that comes back to a busy master: only the master's workers keep it waiting, and no minion is asked twice."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import facts
from tests.worlds.busy import Busy
from tests.worlds.world import World

MINIONS, JOBS, WITHIN = 120, 3, 10.0
#: Requests of a minion that is there again: its start, an answer, and of each job the acknowledgement and the return.
REQUESTS = 2 + 2 * JOBS
#: Seconds from the last start until the last job is begun if the workers take no time: minions settle, and each job gathers
#: those that are owed it.
CALM = 11.0
#: Seconds that it may take longer if it waits both for that and for the workers.
FEW = 5.0


def fleet_that_was_away(need, **options):
    """Return a world whose workers need so many seconds for a fleet that is owed jobs and away."""
    world = Busy(MINIONS, cost=2 * need / (MINIONS * REQUESTS), **options)
    world.stop(*world.minions)
    for n in range(JOBS):
        world.publish(f"j{n}")
    world.run(60)
    assert world.machine.total == MINIONS * JOBS
    return world


def bring_back(world, within=WITHIN):
    """Let the fleet start and get what it is owed. Returns the seconds from the first start until the last job was begun."""
    begun = world.now
    for at, name in enumerate(world.minions):
        world.later(within * at / MINIONS, lambda name=name: world.start(name), engine=False)
    world.run_until(lambda: world.runs and not world.machine.total)
    return max(world.begun_at.values()) - begun


@pytest.mark.parametrize("need", [1.0, 30.0, 90.0])
def test_the_last_job_is_begun_as_soon_as_the_workers_allow(need):
    world = fleet_that_was_away(need)
    assert bring_back(world) <= max(WITHIN + CALM, need) + FEW
    assert set(world.runs.values()) == {1}
    assert set(world.asked.values()) == {1}


@pytest.mark.parametrize("within, publishes", [(10.0, 25), (80.0, 70)])
def test_a_fleet_that_comes_back_slowly_takes_few_publishes_and_keeps_the_last_one_waiting_no_longer(within, publishes):
    world = fleet_that_was_away(1.0)
    before = world.publishes
    assert bring_back(world, within) <= within + CALM
    assert world.publishes - before <= publishes
    assert set(world.runs.values()) == {1}


@pytest.mark.parametrize("need, every, seconds", [(4.0, 11.0, 2.5), (90.0, 17.0, 8.0)])
def test_a_master_that_stands_still_now_and_then_has_no_minion_asked_twice(need, every, seconds):
    world = fleet_that_was_away(need, uneven=True)
    for number in range(1, 20):
        world.later(number * every, lambda: world.stand_still(seconds), engine=False)
    bring_back(world)
    assert set(world.runs.values()) == {1}
    assert set(world.asked.values()) == {1}


@pytest.mark.parametrize("need, publishes", [(90.0, 28), (250.0, 31)])
def test_a_fleet_that_takes_the_master_minutes_is_asked_once_and_takes_few_publishes(need, publishes):
    world = fleet_that_was_away(need)
    before = world.publishes
    assert bring_back(world) <= need
    assert world.publishes - before <= publishes
    assert set(world.asked.values()) == {1}


def test_a_minion_that_is_not_there_keeps_no_other_waiting():
    world = World(minions=("a", "b"))
    world.stop(*world.minions)
    world.publish("j")
    world.run(60)
    world.start("a")
    begun = world.now
    world.tell(facts.SignOfLife(("b",), started=True))
    world.run_until(lambda: world.runs["a", "j"])
    assert world.now - begun < 2.0 + 2 * world.settings.gather + 1.0
