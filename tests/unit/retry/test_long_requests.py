"""
A fact, or a request, about many entries is carried out in parts. Meanwhile others get their turn, entries move, and engines
die.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Entry, Job, State
from saltext.jobs.core.retry.machine import Retry
from tests.worlds.world import World

NAMES = tuple(f"m{number}" for number in range(40))
JOB = Job("20260516101112000000", ("state.apply",), 0.0)


@pytest.fixture
def world():
    """Forty minions are away and owed a job. A request changes one entry at a time, and twenty a second."""
    world = World(minions=NAMES)
    for name in NAMES:
        world.stop(name)
    world.publish("j1")
    world.run(60)
    world.part = world.machine.part = 1
    return world


def states(world, jid="j1"):
    return [world.state(name, jid) for name in NAMES]


def midway(world, state=State.CANCELLED):
    """Let a request go on until it has changed some entries, and the first of them have been stored."""
    world.run_until(lambda: states(world).count(state) == 30)


# -- how much is done at once -----------------------------------------------------------------------------------------


def a_queue(expires_at, state=State.PENDING):
    machine = Retry(RetrySettings(), 15.0)
    assert machine.part == 10_000
    machine.part = 1_000
    entries = [Entry(f"m{number}", JOB.jid, 0.0, expires_at, "was away") for number in range(5_000)]
    for entry in entries:
        if state is not State.PENDING:
            entry.move(state, 0.0, "so it was")
    machine.take_up({JOB.jid: JOB}, entries, 1.0)
    parts_of(machine, facts.Restored(), 1.0, 10.0)
    return machine, entries


def parts_of(machine, fact, now, seconds):
    """Give the machine a fact, and let time pass. Returns how many entries were stored in each step, and all effects."""
    stored, done, end = [], [], now + seconds
    while True:
        effects = machine.step(fact, now)
        done += effects
        stored.append(sum(len(effect.keys) for effect in effects if isinstance(effect, facts.Save)))
        if machine.next_due is None or machine.next_due > end:
            return stored, done
        fact, now = facts.Tick(), max(now, machine.next_due)


def answers_in(effects):
    return [effect.value for effect in effects if isinstance(effect, facts.Answer)]


@pytest.mark.parametrize(
    ("state", "do", "given"),
    [
        (State.PENDING, "cancel", {"jid": JOB.jid}),
        (State.HELD, "retry", {"jid": JOB.jid}),
        (State.CANCELLED, "purge", {"states": ("cancelled",)}),
        (State.CANCELLED, "enqueue", {"job": JOB, "reason": "by an operator", "named": True, "asker": None}),
    ],
)
def test_no_step_changes_all_entries_that_a_request_is_about(state, do, given):
    machine, entries = a_queue(1e6, state)
    if do == "enqueue":
        given = {**given, "minions": [entry.minion for entry in entries]}
    stored, done = parts_of(machine, facts.Requested(do, given), 100.0, 10.0)
    assert max(stored) <= 1_100
    assert sum(stored) >= 5_000
    assert answers_in(done) == [5_000]


def test_after_events_were_lost_all_minions_are_pinged_a_part_at_a_time():
    machine, names = Retry(RetrySettings(), 15.0), [f"m{number}" for number in range(20_000)]
    machine.take_up({JOB.jid: JOB}, [Entry(name, JOB.jid, 0.0, 1e6, "was away") for name in names], 1.0)
    parts_of(machine, facts.Restored(), 1.0, 10.0)
    _, done = parts_of(machine, facts.Gap(), 100.0, 10.0)
    parts = [effect.minions for effect in done if isinstance(effect, facts.Ping)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert max(map(len, parts)) <= len(names) / 2


# -- what may happen meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [1, 3, 30, 39])
def test_an_engine_that_dies_midway_leaves_the_rest_to_the_next_one(world, changed):
    world.request("cancel", jid="j1")
    world.run_until(lambda: states(world).count(State.CANCELLED) == changed)
    world.crash()
    assert "pending" in {record["state"] for record in world.stored.values()}
    assert not world.answers
    world.boot()
    world.run_until(lambda: world.answers)
    assert len(world.answers) == 1
    assert set(states(world)) == {State.CANCELLED}
    assert {record["state"] for record in world.stored.values()} == {"cancelled"}


def test_a_later_request_waits_until_it_is_through(world):
    world.request("cancel", jid="j1")
    world.request("purge", states=["cancelled"])
    world.request("enqueue", jid="j1", minions=["m39"], asker=None)
    world.run_until(lambda: len(world.answers) == 3)
    assert world.answers == [40, 40, 1]
    assert states(world) == [None] * 39 + [State.PENDING]


def test_a_kill_counts_for_what_an_earlier_request_has_still_to_do(world):
    """Also where the log tells of the kill only in the middle of the request."""
    world.request("cancel", jid="j1")
    world.run_until(lambda: world.answers)
    world.request("enqueue", jid="j1", minions=list(NAMES), asker=None)
    world.run_until(lambda: states(world).count(State.PENDING) == 30)
    world.tell(facts.Kill("j1", frozenset(NAMES), "ann", world.now))
    world.run_until(lambda: len(world.answers) == 2)
    assert set(states(world)) == {State.CANCELLED}


# -- what may happen while a fact is carried out ----------------------------------------------------------------------


def back_in(world):
    """Have all forty minions start, and let all be asked about the job that they are owed."""
    world.duration = 5.0
    for name in NAMES:
        world.start(name)


def test_a_wave_that_takes_many_steps_is_one_publish(world):
    back_in(world)
    world.run_until(lambda: not world.machine.total)
    assert len(world.published_at) == 1
    assert set(world.runs.values()) == {1}
