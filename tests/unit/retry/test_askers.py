"""Who asked by hand for a job to be delivered: that user's rights count at the replay."""

from __future__ import annotations

from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.users import MASTER, TOKEN, Identity
from tests.worlds.world import PATIENCE, World

ANN, ROOT = Identity(TOKEN, "ann", ("pam",)), Identity(MASTER, "root")


def enqueued(asker=ANN):
    """A world in which a user has enqueued job j1 for b, which is away."""
    world = World(minions=("a", "b"), exclude=("state.*",))
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE + 10)
    assert world.machine.total == 0
    world.enqueue("j1", ["b"], asker)
    world.run(30)
    return world


def back(world):
    world.start("b")
    world.run(30)
    return world


def test_the_user_who_enqueued_a_job_is_known_after_a_restart_of_the_engine():
    world = enqueued()
    world.restart()
    world.denied.add("ann")
    back(world)
    assert (world.state("b", "j1"), world.machine.entry("b", "j1").reason) == (State.DEAD, "ann is denied")


def test_a_user_who_retries_a_held_job_takes_it_over():
    world = enqueued()
    world.unsure.add("ann")
    back(world)
    assert (world.state("b", "j1"), world.machine.entry("b", "j1").reason) == (State.HELD, "ann is unsure")
    world.request("retry", minion="b", jid="j1", asker=ROOT.as_record())
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_enqueuing_a_job_that_is_owed_already_changes_nothing():
    world = World(minions=("a", "b"))
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE + 10)
    world.enqueue("j1", ["b"], ANN)
    world.denied.add("ann")
    back(world)
    assert world.answers == [0]
    assert world.runs["b", "j1"] == 1
