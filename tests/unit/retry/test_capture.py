"""Who is owed a job: what capture knows of kills, of what was begun, and of further publishes under one jid."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import Limits, State
from tests.worlds.world import ANSWERS, PATIENCE, START, World

# -- what was begun ---------------------------------------------------------------------------------------------------


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
    world.let_miss("b", "j1", targets=("a",), run=5)
    world.kill("j1", targets=("a", "b"))
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(60)
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (None, 1)


def test_a_job_that_is_killed_right_before_the_clock_is_set_back_is_delivered_to_nobody():
    world = World()
    world.run(1)
    world.stop("b")
    world.publish("j1")
    world.kill("j1")
    world.clock_ahead = -5.0
    world.restart()
    world.run(60)
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.CANCELLED, 0)


def test_minions_that_begin_a_job_and_never_return_it_are_named_once_its_time_to_live_is_over(caplog):
    world = World(minions=tuple(f"m{n}" for n in range(6)), acks=False, duration=1e6, ttl=3600.0)
    world.publish("j1")
    world.run(3500)
    assert "was begun" not in caplog.text
    world.run(200)
    named = "Job j1 was begun, and not returned in its time to live: m0, m1, m2, m3, m4 and 1 more"
    assert named in caplog.text


def test_a_minion_that_says_that_it_runs_a_job_is_believed_though_the_log_has_lost_that_it_was_sent_it():
    world = World(minions=("a", "b"), duration=1e6)
    world.publish("j1", targets=("a",))
    world.run(1)
    world.cache_up = False
    with world.deaf():
        world.publish("j1", targets=("b",))
        world.lose_log()
        world.publish("j2", targets=("b",))
    world.run(60)
    world.start("b")
    world.cache_up = True
    world.run(600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.HELD, 1)


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


def test_a_kill_holds_although_the_log_was_lost_that_tells_to_whom_the_job_was_published_since():
    world = World(minions=("a", "b"))
    world.let_miss("a", "j1")
    world.kill("j1", targets=("b",))
    world.start("a")
    world.run_until(lambda: world.runs["a", "j1"])
    world.lose_log()
    world.cached.discard(("b", "j1"))
    world.start("b")
    world.restart()
    world.run(600)
    assert (world.runs["b", "j1"], world.state("b", "j1")) == (1, State.CANCELLED)


def test_what_is_published_while_the_job_is_read_for_long_is_not_missed():
    world = World(minions=("a", "b"))
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.stall = PATIENCE + 2
    world.run(PATIENCE + 1)
    world.publish("j1", targets=("b",))
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_job_is_as_old_as_its_first_publish_although_only_the_job_cache_remembers_that():
    world = World(minions=("a", "b", "c"), ttl=3600.0)
    world.let_miss("b", "j1", targets=("a",), run=1800)
    world.publish("j1", targets=("b",))
    world.run(62)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 3600, abs=0.5)


# -- what cannot be delivered -----------------------------------------------------------------------------------------


def test_a_job_whose_target_cannot_be_narrowed_is_dead_with_the_reason():
    world = World()
    world.let_miss("b", "j1", tgt=("os: x", "grain"))
    entry = world.machine.entry("b", "j1")
    assert entry.state is State.DEAD
    assert "has a blank, which a compound target cannot have" in entry.reason
    world.start("b")
    for minion in (None, "b"):
        assert world.state("b", "j1") is State.DEAD
        world.request("retry", minion=minion, jid="j1")
        world.run(60)
    assert world.machine.entry("b", "j1") is None, "who names the minion need not care for the target"


def test_an_entry_that_an_operator_has_queued_again_after_a_purge_is_still_there_after_a_restart():
    world = World()
    world.let_miss("b", "j1", targets=("b",))
    world.request("cancel", minion=None, jid="j1")
    world.request("purge", states=["cancelled"])
    world.enqueue("j1", ["b"])
    world.run(30)
    world.restart()
    world.run(30)
    assert world.state("b", "j1") is State.PENDING


@pytest.mark.parametrize("is_found_again", [False, True])
def test_a_kill_ends_what_was_requested_before_it_even_if_the_clock_was_set_back(is_found_again):
    world = World()
    world.let_miss("b", "j1", targets=("b",))
    if is_found_again:
        world.kill("j1", targets=("b",))
        world.run(30)
        world.lose_log()
    world.crash()
    world.enqueue("j1", ["b"])
    world.clock_ahead = 0.0 if is_found_again else -3600.0
    world.kill("j1", targets=("b",))
    world.boot()
    world.run(600)
    assert world.state("b", "j1") is State.CANCELLED


@pytest.mark.parametrize("is_down", [False, True])
def test_a_job_that_is_cancelled_before_its_time_is_up_is_delivered_to_nobody(is_down):
    world = World()
    world.stop("b")
    world.publish("j1")
    if is_down:
        world.crash()
    world.request("cancel", minion="b", jid="j1")
    if is_down:
        world.boot()
    world.run(60)
    assert world.state("b", "j1") is State.CANCELLED
    world.start("b")
    world.run(300)
    assert (world.runs["b", "j1"], world.runs["a", "j1"]) == (0, 1)
