"""How a job is delivered: without loops, in order, only where its target still matches, and not after a pause."""

from __future__ import annotations

import pytest

from saltext.jobs.core.delivery.known import Step
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import State
from tests.unit.retry.test_machine import away
from tests.worlds.world import World


def test_a_state_run_waits_until_the_minion_s_own_one_is_over_since_salt_would_refuse_it():
    world = away(backoff=5.0)
    world.minions["b"].applies = True
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.PENDING, 0)
    assert world.publishes < 16
    world.minions["b"].applies = False
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_any_other_job_goes_to_a_minion_that_runs_states():
    world = World()
    world.let_miss("b", "j1", fun="cmd.run")
    world.minions["b"].applies = True
    world.start("b")
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_a_minion_that_an_operator_names_gets_the_job_whatever_its_target():
    world = World(exclude=("state.*",))
    world.by_id = False
    world.let_miss("b", "j1")
    world.unmatched.add(("b", "j1"))
    world.enqueue("j1", ["b"])
    world.start("b")
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_a_return_on_its_way_is_waited_for_though_another_minion_is_looked_at_meanwhile():
    world = World(minions=("a", "b"), duration=1e6)
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.run(60)
    for name in ("a", "b"):
        world.start(name)
    world.run(60)
    del world.minions["a"].running["j1"]  # it has ended, and its return is on its way
    world.notice()
    world.run_until(lambda: list(world.machine.queue.at("j1", ["a"], Step.ANSWERED)))
    world.notice()  # the other one is looked at again soon
    world.run(2.5)
    world.take_return("a", "j1")
    world.run(5)
    assert ("a", "done") in world.told("j1") and ("a", "held") not in world.told("j1")


def test_no_newer_job_overtakes_one_that_waits_to_be_tried_again():
    world = World(duration=1.0, backoff=100.0)
    world.stop("b")
    world.publish("j1")
    world.publish("j2")
    world.run(60)
    deliver, world.deliver = world.deliver, lambda *published: None  # the first publish is lost
    world.start("b")
    world.run_until(lambda: world.machine.entry("b", "j1").counts.tries)
    world.deliver = deliver
    world.run(300)
    assert [jid for name, jid in world.runs if name == "b"] == ["j1", "j2"]


def cut_off(keeps=False, jids=("j1", "j2", "j3"), **options):
    """
    A world in which minion b got ``j1`` before its link was cut, runs nothing any more, and has missed the others. The link
    is back, no start tells of that, and the return of ``j1`` is lost: while it lives, b ignores that jid.
    """
    world = World(minions=("b",), **options)
    minion = world.minions["b"]
    minion.up, minion.keeps = False, keeps
    minion.seen.add("j1")
    for jid in jids:
        world.publish(jid)
    world.run(60)
    minion.up = True
    world.tell(facts.SignOfLife(("b",)))
    return world


def test_a_job_that_was_sent_in_vain_several_times_is_held_and_the_next_one_gets_its_turn():
    world = cut_off(keeps=True, jids=("j1", "j2"), ttl=1e6)
    world.run(3600)
    assert (world.state("b", "j1"), world.runs["b", "j2"]) == (State.HELD, 1)
    assert len(world.published_at) == 6


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_its_minion_ignores_ran_without_a_return_and_is_held_and_never_runs_again(restarts):
    world = cut_off(jids=("j1", "j2"), ttl=1e6)
    if restarts:
        world.run_until(lambda: world.machine.entry("b", "j1").counts.ignored)
        world.start("b")
    world.run(3600)
    assert (world.state("b", "j1"), world.runs["b", "j1"], world.runs["b", "j2"]) == (State.HELD, 0, 1)
    assert "run without a return" in world.machine.entry("b", "j1").reason.replace("ran", "run")


@pytest.mark.parametrize("backoff, waits", [(100.0, 3600.0), (7200.0, 7200.0)])
def test_the_wait_for_another_try_doubles_up_to_an_hour_or_is_the_backoff_if_that_is_longer(backoff, waits):
    world = away(backoff=backoff)
    world.refuse(8, PublishFailed("no", certain=True))
    world.start("b")
    assert world.run(30_000, lambda: abs(world.machine.entry("b", "j1").next_at - world.now - waits) < 5.0)


def test_publishes_that_matched_no_minion_do_not_show_that_it_knows_the_job():
    world = away(backoff=5.0)
    world.refuse(2, NoMinionMatched("nobody"))
    deliver, world.deliver = world.deliver, lambda *published: None  # the third publish is lost
    world.start("b")
    world.run_until(lambda: world.machine.entry("b", "j1").counts.tries == 3)
    world.deliver = deliver
    world.run(300)
    assert world.runs["b", "j1"] == 1


def test_the_loss_of_all_keys_at_once_is_not_believed(caplog):
    world = World()
    world.stop("b")
    world.let_miss("c", "j1", run=60)
    for _ in range(3):
        world.tell(facts.Done(facts.CheckKeys(), (frozenset(), frozenset())))
    assert world.machine.total == 2
    assert "None of the 2 minions with a queue has a key: that is not believed" in caplog.text


@pytest.mark.parametrize("every", [45.0, 7.0, 2.0])
def test_forged_signs_of_life_of_a_minion_that_is_away_cost_less_each_time(every):
    world = away(ttl=1e6, sweep=1e6)
    before, end = world.publishes, world.now + 3600
    while world.now < end:
        world.tell(facts.SignOfLife(("b",)))
        world.run(every)
    assert 8 <= world.publishes - before <= 16  # in an hour
    world.start("b")
    world.run(400)
    assert world.runs["b", "j1"] == 1


def test_a_long_job_is_asked_about_the_less_often_the_longer_it_runs():
    world = away(duration=4000.0, sweep=1e6)
    world.start("b")
    world.run(20)
    before = world.publishes
    world.run(3600)
    assert world.publishes - before <= 7
    world.run(600)
    assert (world.machine.total, world.runs["b", "j1"]) == (0, 1)


@pytest.mark.parametrize("away", ["b", "bcd"])
def test_a_minion_that_was_long_away_gets_its_jobs_one_right_after_the_other(away):
    world = World(minions=tuple(away), duration=0.05)
    for name in away:
        world.stop(name)
    for number in range(20):
        world.publish(f"j{number}")
        world.run(1)
    world.run(60)
    world.start("b")
    since = world.now
    world.run_until(lambda: "b" not in world.machine.backlogs)
    assert world.now - since < 30
    assert [jid for name, jid in world.runs if name == "b"] == [f"j{number}" for number in range(20)]


@pytest.mark.parametrize("found", [False, True])
def test_before_an_entry_expires_its_return_is_looked_for(found):
    world = away(ttl=300.0)
    if found:
        world.store_return("b", "j1")
    world.run(300)
    assert world.state("b", "j1") is (None if found else State.EXPIRED)


def test_what_a_minion_answers_counts_though_the_clock_was_set_back_since_it_began():
    world = World(duration=1e6)
    world.let_miss("b", "j1")
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.RUNNING)
    world.run(2.0)
    world.crash()
    world.clock_ahead = -5 * 3600.0
    world.boot()
    world.stop("b")
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.HELD)
