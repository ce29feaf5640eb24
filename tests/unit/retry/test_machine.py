"""The retry machine: what a minion that was away gets, when, and how often."""

from __future__ import annotations

import sys

import pytest

from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits, State
from saltext.jobs.core.retry.shell import figures
from tests.worlds.world import ANSWERS, PATIENCE, START, World


def away(name="b", by_id=True, **options):
    """A world in which one minion has missed a job that the queue holds for it."""
    world = World(**options)
    world.by_id = by_id
    world.stop(name)
    world.publish("j1")
    world.run(PATIENCE + 10)
    return world


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
    world.let_miss("b", "j1", fun=fun, run=60)
    assert world.machine.total == 0


def test_a_job_may_ask_to_be_kept_although_its_function_is_excluded():
    world = World()
    world.let_miss("b", "j1", fun="test.ping", limits=Limits(given=True, ttl=7200), run=60)
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
    assert [(jid, count) for (name, jid), count in world.runs.items() if name == "b"] == [
        ("j1", 1),
        ("j2", 1),
        ("j3", 1),
    ]


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
    assert len(world.published_at) <= 3


def test_publishes_keep_to_the_rate():
    names = tuple(f"m{n}" for n in range(40))
    world = World(minions=names, rate=2.0)
    for name in names:
        world.stop(name)
        world.publish(f"j-{name}", targets=(name,))
    world.run(120)
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
    world.run(200 if keeps else 20)
    tries = world.machine.entry("b", "j1").counts.tries
    assert tries == 4 if keeps else tries == 1
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


@pytest.mark.parametrize("is_in_time", [False, True])
def test_a_minion_without_an_accepted_key_loses_its_queue_after_half_a_minute_whatever_becomes_of_others(is_in_time):
    world = World(minions=("b", "c"))
    world.stop(*world.minions)
    world.publish("j1")
    world.run(60)
    world.keyless = {"b"}
    for _ in range(5 if is_in_time else 10):  # of other minions, too
        world.tell(facts.KeysChanged())
        world.run(4)
    world.keyless = set()
    world.start("b")
    world.start("c")
    world.run(20)
    assert dict(world.runs) == {(name, "j1"): 1 for name in ("bc" if is_in_time else "c")}
    assert (("b", "cancelled") in world.told("j1")) is not is_in_time


def test_what_a_minion_costs_that_comes_back_alone_does_not_depend_on_how_many_stay_away():
    def lines_for_one_of(count):
        world, lines, before = World(minions=[f"m{number:03d}" for number in range(count)]), 0, sys.gettrace()
        world.stop(*world.minions)
        world.publish("j1")
        world.run(60)
        world.start("m000")

        def count_line(frame, event, _):
            nonlocal lines
            lines += event == "line"
            return count_line if "/core/retry/" in frame.f_code.co_filename else None

        sys.settrace(count_line)
        try:
            world.run(20)
        finally:
            sys.settrace(before)
        assert dict(world.runs) == {("m000", "j1"): 1}
        return lines

    assert lines_for_one_of(500) < 1.1 * lines_for_one_of(20)


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


def test_while_the_queue_is_paused_nobody_is_pinged_though_its_database_is_replaced_and_the_engine_restarted():
    world = away(sweep=60.0)
    world.request("pause")
    world.disk.begin()
    world.run(30)
    world.restart()
    before = world.publishes
    world.run(300)
    assert world.publishes == before
    world.start("b")
    world.run(60)
    assert world.runs["b", "j1"] == 0


def test_a_job_that_has_begun_expires_if_the_key_of_its_minion_is_accepted_no_more():
    world = away(duration=1e6, ttl=300.0)
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.RUNNING)
    world.barred, before = {"b"}, world.publishes
    world.run(900)
    assert world.state("b", "j1") is State.EXPIRED
    assert world.publishes - before < 15


def test_owed_jobs_are_counted_with_their_age():
    world = away()
    (entry,) = world.machine.entries()
    found = figures([entry], {"sent": 3}, False, world.now)
    assert (found["retry_entries"]["pending"], found["retry_transitions_total"]["sent"]) == (1, 3)
    assert found["retry_oldest_pending_seconds"] == world.now - entry.queued
    assert found["retry_next_expiry_seconds"] == entry.expires_at - world.now


def test_minions_that_could_not_be_pinged_are_pinged_again():
    world = away(sweep=9000.0)
    world.minions["b"].up = True

    def refuse(*_):
        raise PublishFailed("Some exception handling minion payload")

    world.ask = refuse
    world.tell(facts.Gap())
    world.run(15)
    del world.ask
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_minions_without_an_accepted_key_are_not_pinged_over_and_over():
    world = away(sweep=9000.0)
    world.barred, before = {"b"}, world.publishes
    world.tell(facts.Gap())
    world.run(300)
    assert world.publishes - before <= 2


def test_minions_that_connect_to_a_restarted_master_without_telling_get_what_they_are_owed():
    world = away(sweep=9000.0)
    world.restart()
    world.run(60)
    world.minions["b"].up = True
    world.run(120)
    assert world.runs["b", "j1"] == 1


@pytest.mark.parametrize("seconds", [3, 20])
def test_minions_whose_answers_the_log_could_not_take_are_asked_again(seconds):
    world = away(sweep=9000.0)
    world.disk.is_writable = False
    world.start("b")
    world.run(seconds)
    world.disk.is_writable = True
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_no_job_is_owed_to_a_minion_because_the_log_could_not_take_its_answer():
    world = World(duration=100.0, acks=False)
    world.publish("j1")
    world.run(PATIENCE - 1)
    world.disk.is_writable = False
    world.run(ANSWERS + 3)
    world.disk.is_writable = True
    world.run(60)
    assert not world.told("j1")
