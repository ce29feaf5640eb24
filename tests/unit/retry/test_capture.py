"""Who is owed a job: what capture knows of kills, of what was begun, and of further publishes under one jid."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits, State
from tests.unit.retry.test_machine import away
from tests.worlds.world import ANSWERS, PATIENCE, START, World

# -- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1.0, PATIENCE - 1, PATIENCE + 1.0, PATIENCE + 30.0])
def test_a_job_that_an_operator_killed_is_cancelled_in_the_operators_name_and_not_run_again(after):
    world = World(duration=300.0)
    world.publish("j1")
    world.run(after)
    world.kill("j1", user="ann")
    world.run(60)
    for name in world.minions:
        world.start(name)
    world.run(7200)
    assert set(world.runs.values()) == {1}
    assert {entry.state for entry in world.machine.entries()} == {State.CANCELLED}
    assert {entry.reason for entry in world.machine.entries()} == {"killed by ann"}


def test_a_forged_kill_kills_nothing():
    world = away()
    world.fire("salt/job/forged/new", {"jid": "forged", "fun": "saltutil.kill_job", "arg": ["j1"], "minions": ["b"]})
    world.run(300)
    assert world.state("b", "j1") is State.PENDING


# -- what was begun ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", ["before it is asked", "after it was asked"])
def test_a_job_whose_return_was_heard_and_could_not_be_stored_is_held_and_not_run_again(restarts):
    world = World(minions=("a",), acks=False)
    world.keeps_returns = False  # the master's disk is full
    world.publish("j1")
    world.run(3 if restarts == "before it is asked" else PATIENCE + 20)
    world.start("a")
    world.keeps_returns = True
    world.run(600)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_any_number_of_forged_beginnings_takes_little_memory_and_no_genuine_one_is_forgotten():
    world = World(duration=1e6)
    world.publish("j1")
    world.run(1)
    world.killed.add(("a", "j1"))  # its process dies, and returns nothing
    world.minions["a"].running.clear()
    for number in range(1000):
        world.tell(facts.Acknowledged(f"made-up-{number}", "j1"))
    assert world.machine.capture.open["j1"].claims == {"a", "b", "c"}
    world.stop("a")
    world.run(60)
    assert (world.state("a", "j1"), world.machine.total) == (State.RUNNING, 1)


def test_a_start_is_not_forgotten_because_the_job_cannot_be_read_for_long():
    world = World(minions=("a", "b"), duration=1e6, ttl=300.0)
    world.publish("j1", limits=Limits(given=True, ttl=1e6))
    world.run(2)
    world.log_up = False
    world.run(1000)
    world.log_up = True
    world.start("a")
    world.publish("j1", targets=("b",))
    world.run(700)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_a_kill_cancels_nothing_that_is_published_after_it_to_a_minion_that_it_named():
    world = World(minions=("a", "b"), duration=30.0)
    world.run(1)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(5)
    world.kill("j1", targets=("a", "b"))
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(60)
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (None, 1)


def test_minions_that_begin_a_job_and_never_return_it_are_named_once_its_time_to_live_is_over():
    world = World(minions=tuple(f"m{n}" for n in range(6)), acks=False, duration=1e6, ttl=3600.0)
    world.publish("j1")
    world.run(3500)
    assert world.effects(facts.Warn) == []
    world.run(200)
    assert [effect.message for effect in world.effects(facts.Warn)] == [
        "6 minions have begun job j1 and not returned it in its time to live: m0, m1, m2, m3, m4"
    ]


# -- further publishes under one jid ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["just before it is read", "while it is read", "while others are asked"])
def test_a_further_publish_after_the_job_was_read_is_not_lost(moment):
    world = World(minions=("a", "b", "c"))
    world.stop("b")
    world.stop("c")
    world.publish("j1", targets=("a", "c") if moment == "while others are asked" else ("a",))
    if moment == "while others are asked":
        world.run_until(lambda: world.effects(facts.Inquire))
    else:
        world.run(PATIENCE + (0.02 if moment == "while it is read" else -0.1))
    world.publish("j1", targets=("b",))
    world.run(300)
    assert world.state("b", "j1") is State.PENDING


# -- where the log does not tell of everything ------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_published_as_long_as_the_log_cannot_be_written_is_found_once_it_can(restarts):
    world = World()
    world.run(1)
    world.disk.is_writable = False
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.publish("j2")
    world.kill("j1")
    world.run(600)
    if restarts:
        world.restart()
    world.lose_log()
    world.disk.is_writable = True
    world.run(PATIENCE + ANSWERS + 10)
    assert [world.state("b", jid) for jid in ("j1", "j2")] == [State.CANCELLED, State.PENDING]


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_expires_nothing():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.recorded["j1"] = (world.now + 86400.0,) * 2  # the record has another clock's time
    world.run(30)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 86400, abs=1.0)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the engine is killed"])
@pytest.mark.parametrize("before", [False, True], ids=["set after both", "set between both"])
def test_a_job_that_is_published_again_goes_in_its_order_whatever_the_clock_is_set_to(before, restarts):
    world = World(minions=("b",))
    world.stop("b")
    world.publish("j1")
    world.run(5)
    world.publish("j2")
    world.run(1)
    world.clock_ahead = 7200.0 if before else 0.0
    world.publish("j2")
    world.run(5)
    world.clock_ahead = 7200.0
    if restarts:
        world.tell(facts.Requested("pause"))  # the checkpoint is moved on
        world.run(1)
        world.restart()
    world.run(60)
    world.start("b")
    world.run(600)
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j2"]


def test_a_job_is_as_old_as_its_first_publish_although_only_the_job_cache_remembers_that():
    world = World(minions=("a", "b", "c"), ttl=3600.0)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(1800)
    world.publish("j1", targets=("b",))
    world.run(62)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 3600, abs=0.5)


# -- what cannot be delivered -----------------------------------------------------------------------------------------


def test_a_job_whose_target_cannot_be_narrowed_is_dead_with_the_reason():
    world = World()
    world.stop("b")
    world.publish("j1", tgt=("os: x", "grain"))
    world.run(30)
    entry = world.machine.entry("b", "j1")
    assert entry.state is State.DEAD
    assert "has a blank, which a compound target cannot have" in entry.reason


@pytest.mark.parametrize("after", [0.05, 0.3, 5.0])
def test_a_kill_of_everything_kills_nothing_that_is_published_after_it(after):
    world = World(minions=("a", "b"), duration=2.0)
    world.run(1)
    world.stop("b")
    world.kill("", fun="saltutil.kill_all_jobs")
    world.run(after)
    world.publish("j1")
    world.run(120)
    assert world.state("b", "j1") is State.PENDING
    world.start("b")
    world.run(120)
    assert world.runs["b", "j1"] == 1
