"""The retry machine: what a minion that was away gets, when, and how often."""

from __future__ import annotations

import subprocess
import sys

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits, State
from tests.worlds.world import PATIENCE, START, World, forty_with_a_job_each


def away(name="b", by_id=True, **options):
    """A world in which one minion has missed a job that the queue holds for it."""
    world = World(**options)
    world.by_id = by_id
    world.stop(name)
    world.publish("j1")
    world.run(PATIENCE + 10)
    return world


def test_the_machine_imports_nothing_of_salt():
    code = "import sys, saltext.jobs.core.retry.machine; print(sorted(n for n in sys.modules if n.split('.')[0] == 'salt'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# -- capture ----------------------------------------------------------------------------------------------------------


def test_nothing_is_queued_before_the_deadline():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE - 1)
    assert world.machine.total == 0


@pytest.mark.parametrize("fun", ["test.ping", "saltutil.sync_all", "system.reboot", "mine.update", "sys.doc"])
def test_functions_that_are_excluded_by_default_are_not_kept(fun):
    world = World()
    world.stop("b")
    world.publish("j1", fun=fun)
    world.run(60)
    assert world.machine.total == 0


def test_a_job_may_ask_to_be_kept_although_its_function_is_excluded():
    world = World()
    world.stop("b")
    world.publish("j1", fun="test.ping", limits=Limits(given=True, ttl=7200))
    world.run(60)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 7200, abs=1.0)


def test_a_syndic_is_owed_nothing_though_its_key_is_accepted():
    world = World(syndics=("b",))
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.run(60)
    assert [entry.minion for entry in world.machine.entries()] == ["a"]


# -- replay -----------------------------------------------------------------------------------------------------------


def test_jobs_are_replayed_oldest_first_one_at_a_time():
    world = World(duration=5.0)
    world.stop("b")
    for jid in ("j1", "j2", "j3"):
        world.publish(jid)
        world.run(2)
    world.run(60)
    world.start("b")
    world.run(120)
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j2", "j3"]
    assert all(world.runs["b", jid] == 1 for jid in ("j1", "j2", "j3"))


def test_minions_owed_the_same_job_are_one_publish():
    names = tuple(f"m{n}" for n in range(50))
    world = World(minions=names)
    for name in names:
        world.stop(name)
    world.publish("j1")
    world.run(60)
    for name in names:
        world.start(name)
    world.run(60)
    assert all(world.runs[name, "j1"] == 1 for name in names)
    assert len(world.effects(facts.Publish)) <= 3


def test_publishes_keep_to_the_rate():
    world, names = forty_with_a_job_each()
    before, begun = world.publishes, world.now
    for name in names:
        world.start(name)
    world.run(15)
    assert world.publishes - before <= 2.0 * (world.now - begun) + 3


@pytest.mark.parametrize("keeps", [False, True])
def test_a_publish_that_is_lost_is_tried_again_with_growing_pauses(keeps):
    world = away(backoff=10.0, ttl=3000.0)
    world.minions["b"].keeps = keeps
    world.start("b")
    world.deliver = lambda *published: None
    world.run(600 if keeps else 20)
    tries = world.machine.entry("b", "j1").counts.tries
    assert 4 <= tries <= 8 if keeps else tries == 1
    del world.deliver
    world.run(1200)
    assert world.runs["b", "j1"] == 1


def test_an_interrupted_job_is_run_again_where_that_is_wanted_and_then_held():
    world = away(duration=500.0, max_attempts=3, backoff=1.0, ttl=9000.0)
    for _ in range(6):
        world.start("b")
        world.run(60)
    assert world.runs["b", "j1"] == 3
    assert world.state("b", "j1") is State.HELD
    assert world.machine.entry("b", "j1").reason == "it was begun and ended without a return, 3 times"


# -- ends -------------------------------------------------------------------------------------------------------------


def test_an_entry_expires_and_is_kept_for_a_while_with_the_reason():
    world = away(ttl=300.0, keep=100.0)
    world.run(300)
    assert world.state("b", "j1") is State.EXPIRED
    assert world.told("j1")[-1] == ("b", "expired")
    world.start("b")
    world.run(50)
    assert world.runs["b", "j1"] == 0
    world.run(100)
    assert world.machine.total == 0
    assert world.machine.jobs == {}


def test_a_minion_with_a_new_key_gets_none_of_the_jobs_owed_to_the_old_one():
    world = World(minions=("b", "c"))
    for name in world.minions:
        world.stop(name)
    world.publish("j1")
    world.run(60)
    checks = len(world.effects(facts.CheckKeys))
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.renewed = {"b": world.wall()}
    world.start("b")
    world.start("c")
    world.run(20)
    assert len(world.effects(facts.CheckKeys)) == checks + 1
    assert dict(world.runs) == {("c", "j1"): 1}
    assert ("b", "cancelled") in world.told("j1")


def test_a_minion_with_a_new_key_gets_what_was_published_or_asked_for_since():
    world = World(minions=("b", "c"))
    for name in world.minions:
        world.stop(name)
    for jid in ("j1", "j2"):
        world.publish(jid)
    world.run(60)
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.renewed = {"b": world.wall()}
    world.publish("j3")
    world.enqueue("j2", ["b"])
    world.request("cancel", minion="b", jid="j2")
    world.enqueue("j2", ["b"])
    world.run(60)
    assert ("b", "cancelled") in world.told("j1")
    world.start("b")
    world.run(30)
    assert {jid: world.runs["b", jid] for jid in ("j1", "j2", "j3")} == {"j1": 0, "j2": 1, "j3": 1}


# -- operators --------------------------------------------------------------------------------------------------------


def test_a_replay_now_counts_although_the_minion_is_being_asked_in_vain():
    world = away(ttl=9000.0)
    world.request("replay", minion="b")
    world.run(4)
    world.minions["b"].up = True
    world.request("replay", minion="b")
    world.run(20)
    assert (world.answers, world.runs["b", "j1"]) == ([1, 1], 1)


# -- entries ----------------------------------------------------------------------------------------------------------


def test_after_events_were_lost_every_minion_that_is_owed_something_is_pinged():
    world = World(minions=("a", "b", "c"))
    world.stop("b")
    world.stop("c")
    world.publish("j1")
    world.run(60)
    world.tell(facts.Gap())
    world.run(5)
    assert [effect.minions for effect in world.effects(facts.Ping)][-1:] == [("b", "c")]
