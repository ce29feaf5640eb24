"""A minion that says that it runs nothing need not be asked about each of its jobs, unless something speaks against it."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.queue import BELIEVED
from tests.worlds.world import PATIENCE, World

JOBS = ["j1", "j2", "j3"]


def owed(by_id=True, **options):
    """Return a world whose minion b is away and owed three jobs. ``asked``: the jobs that it was asked about."""
    world = World(minions=("a", "b"), **options)
    world.by_id, world.asked, answer = by_id, [], world.answer

    def seen(name, fun, arg):
        world.asked += arg if fun == "saltutil.find_job" else ()
        return answer(name, fun, arg)

    world.answer = seen
    world.stop("b")
    for jid in JOBS:
        world.publish(jid)
        world.run(2 * PATIENCE)
    return world


def deliver(world):
    """Let the minion get all that it is owed; each of its jobs ran once."""
    world.run_until(lambda: not world.machine.total)
    assert [world.runs["b", jid] for jid in JOBS] == [1, 1, 1]


def test_a_minion_that_runs_nothing_is_asked_once_for_all_its_jobs():
    world = owed()
    world.start("b")
    deliver(world)
    assert world.asked == ["j1"]


def test_each_job_is_looked_up_after_the_answer_and_before_it_is_sent():
    world = owed()
    world.start("b")
    world.run_until(lambda: world.runs["b", "j1"])
    world.store_return("b", "j2")  # it ran the job in its life before, and its return came late
    world.run_until(lambda: not world.machine.total)
    assert [world.runs["b", jid] for jid in JOBS] == [1, 0, 1]


def test_a_job_whose_target_may_no_longer_match_is_asked_about():
    world = owed(by_id=False)
    world.unmatched.add(("b", "j2"))
    world.start("b")
    world.run_until(lambda: world.state("b", "j2") is State.DEAD)
    world.run(60)
    assert world.asked == JOBS
    assert [world.runs["b", jid] for jid in JOBS] == [1, 0, 1]


def against(world, what):
    """Let something happen that speaks against what the minion has said."""
    if what == "it started anew":
        world.revive("b")
    elif what == "somebody says that it started":
        world.tell(facts.SignOfLife(("b",), started=True))
    elif what == "its jobs were published again":
        for jid in ("j2", "j3"):
            world.tell(facts.Published(jid, world.now, ("b",)))
    elif what == "events were lost":
        world.tell(facts.Gap())


@pytest.mark.parametrize(
    "what",
    [
        "it started anew",
        "somebody says that it started",
        "its jobs were published again",
        "events were lost",
        "it was long ago",
    ],
)
def test_an_answer_holds_until_something_speaks_against_it(what):
    world = owed(duration=BELIEVED if what == "it was long ago" else 5.0)
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.RUNNING)
    against(world, what)
    world.run_until(lambda: world.runs["b", "j2"])
    assert "j2" in world.asked
    deliver(world)


def test_a_job_that_outlives_its_minion_is_found_by_the_question_of_the_next_life():
    world = owed(duration=100.0)
    world.minions["b"].running["j2"] = True  # its publish came late, and then the minion was started anew
    world.revive("b")
    world.later(400.0, lambda: world.finish("b", "j2", world.minions["b"].life), engine=False)
    world.run_until(lambda: not world.machine.total)
    assert [world.runs["b", jid] for jid in JOBS] == [1, 0, 1]
