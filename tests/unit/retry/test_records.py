"""What job retry makes of a minion's own records: one with the executor ``job_once`` can say whether it has begun a job."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import State
from tests.unit.retry.test_askers import ROOT
from tests.unit.retry.test_machine import away
from tests.worlds.world import World


def keeper(**options):
    """A world in which minion b keeps records, and is away; it is owed job j1."""
    world = away(**{"backoff": 1.0, **options})
    world.minions["b"].keeps = True
    return world


def takes_its_minion_down(world, delay):
    """Have minion b go down so many seconds after it has begun a job, and start again."""
    deliver = world.deliver

    def go_down(jid, names, origin=""):
        runs = world.runs["b", jid]
        deliver(jid, names, origin)
        if world.runs["b", jid] > runs:
            world.later(delay, lambda: world.stop("b"), engine=False)
            world.later(delay + 8.0, lambda: world.start("b"), engine=False)

    world.deliver = go_down


@pytest.mark.parametrize("acks", [True, False])
@pytest.mark.parametrize("delay", [0.05, 0.3, 0.9, 1.05, 1.2, 1.5, 2.5, 5.0])
def test_a_job_that_takes_its_own_minion_down_runs_once_and_is_held(acks, delay):
    world = keeper(acks=acks, duration=60.0)
    takes_its_minion_down(world, delay)
    world.start("b")
    world.run(3600)
    assert world.runs["b", "j1"] == 1
    assert world.state("b", "j1") is State.HELD
    assert world.refused["b", "j1"] == 0, "it is asked before it is sent to"


def test_no_acknowledgement_is_asked_for_only_if_all_minions_of_a_publish_record_the_job():
    for full in (False, True):
        world = keeper()
        world.minions["b"].full = full
        world.start("b")
        world.run_until(lambda world=world: world.start_events)
        assert world.start_events == [full]


def test_a_return_that_was_lost_is_fetched_without_cache_jobs():
    world = keeper()
    minion = world.minions["b"]
    minion.begun["j1"] = world.wall()
    minion.ran.add("j1")
    world.start("b")
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 0
    assert ("b", "j1") in world.returned


def test_a_held_job_that_an_operator_wants_again_is_sent_as_a_rerun():
    world = keeper()
    world.minions["b"].begun["j1"] = world.wall()
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.HELD)
    world.request("retry", minion="b", jid="j1", asker=ROOT.as_record())
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_a_job_that_its_minion_has_begun_and_not_returned_is_held_with_and_without_records():
    for keeps in (True, False):
        world = World(minions=("a",), backoff=1.0, duration=300.0)
        world.minions["a"].keeps = keeps
        world.publish("j1")
        world.run(2)
        world.start("a")  # its process is gone
        world.run(60)
        assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)
        assert world.machine.entry("a", "j1").reason == "it was begun and ended without a return"
        assert not world.published_at


@pytest.mark.parametrize(("fun", "questions"), [("cmd.run", 2), (["cmd.run", "state.apply"], 1)])
def test_a_proxy_is_asked_for_its_records_alone_only_where_they_would_have_the_job(fun, questions):
    world = World(minions=("b",), duration=300.0)
    world.let_miss("b", "j1", fun=fun, run=60)
    world.start("b")
    world.run_until(lambda: world.runs["b", "j1"])
    world.end_job("b", "j1")  # its process has died
    before = world.publishes
    world.run_until(lambda: world.state("b", "j1") is State.HELD)
    assert world.publishes - before == questions
