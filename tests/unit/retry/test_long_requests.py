"""
A fact, or a request, about many entries is carried out in parts. Meanwhile others get their turn, entries move, and engines
die.
"""

from __future__ import annotations

import dataclasses
import math

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Entry, Job, State
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.settings import RetrySettings
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


def hold(world):
    """Have all entries held."""
    for name in NAMES:
        world.machine.queue.move(world.machine.entry(name, "j1"), State.HELD, "may have been begun")


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


def test_no_step_expires_all_entries_of_a_job():
    machine, _ = a_queue(500.0)
    looks = [facts.Tick()]
    for fact in looks:
        stored, done = parts_of(machine, fact, 510.0, 5.0)
        assert max(stored) <= 1_100
        found = [effect for effect in done if isinstance(effect, facts.FindReturns)]
        looks += [facts.Returned(look.jid, frozenset(), frozenset(look.minions), searched=True) for look in found]
    assert len(looks) <= 1 + 6, "returns of many minions are looked for together"
    assert {entry.state for entry in machine.entries()} == {State.EXPIRED}


def test_no_step_forgets_all_entries_that_were_kept_for_their_time():
    machine, _ = a_queue(1e6, State.CANCELLED)
    stored, _ = parts_of(machine, facts.Tick(), 1e6, 5.0)
    assert max(stored) <= 1_100
    assert machine.total == 0


@pytest.mark.parametrize(
    ("fact", "becomes"),
    [
        (lambda names: facts.Returned(JOB.jid, names), None),
        (lambda names: facts.LookedUp(JOB.jid, tuple(names), returned=names), None),
        (lambda names: facts.Kill(JOB.jid, names, "ann", 50.0), State.CANCELLED),
        (lambda names: facts.Restored(kills=[facts.Kill(JOB.jid, names, "ann", 50.0)]), State.CANCELLED),
        (lambda names: facts.Refused(JOB.jid, "it is too large"), State.DEAD),
        (lambda names: facts.KeysRead(frozenset(), renewed=dict.fromkeys(names, math.inf)), None),
    ],
)
def test_no_step_changes_all_entries_that_a_fact_is_about(fact, becomes):
    machine, entries = a_queue(1e6)
    names = frozenset(entry.minion for entry in entries)
    machine.owing.keyless = {name: {} for name in names}
    stored, _ = parts_of(machine, fact(names), 100.0, 1.0)
    assert max(stored) <= 1_100
    assert sum(stored) >= 5_000
    assert {entry.state for entry in machine.entries()} == ({becomes} if becomes else set())


@pytest.mark.parametrize("answers", [True, False], ids=["there", "silent"])
def test_no_step_queues_a_job_for_all_minions_that_missed_it(answers):
    machine, _ = a_queue(1e6)
    job = dataclasses.replace(JOB, jid="20260516101113000000", published_at=100.0)
    names = frozenset(f"n{number}" for number in range(5_000))
    fact, now, most = facts.Published(job.jid, 100.0), 100.0, 0
    while machine.total < 10_000:
        stored, done = parts_of(machine, fact, now, 20.0)
        fact, now, most = facts.Tick(), now + 20.0, max(most, *stored)
        for effect in done:
            if isinstance(effect, facts.Read):
                fact = facts.JobRead(job.jid, job, names)
            elif isinstance(effect, facts.Inquire):
                fact = facts.Surveyed(effect.number, dict.fromkeys(names, frozenset()) if answers else {})
    assert most <= 1_100
    assert job.jid not in machine.capture.open


# -- what may happen meanwhile ----------------------------------------------------------------------------------------


def test_a_long_request_is_answered_once_and_when_it_is_done(world):
    world.request("cancel", jid="j1")
    midway(world)
    assert not world.answers
    world.run_until(lambda: world.answers)
    assert (world.answers, set(states(world))) == ([40], {State.CANCELLED})
    assert {record["state"] for record in world.stored.values()} == {"cancelled"}
    world.run(60)
    assert world.answers == [40]


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


def test_only_the_named_minions_of_a_job_are_cancelled(world):
    world.request("cancel", jid="j1", minions=["m0", "m3", "stranger"])
    world.run_until(lambda: world.answers)
    assert world.answers == [2]
    assert [name for name in NAMES if world.state(name, "j1") is State.CANCELLED] == ["m0", "m3"]


def test_a_later_request_waits_until_it_is_through(world):
    world.request("cancel", jid="j1")
    world.request("purge", states=["cancelled"])
    world.request("enqueue", jid="j1", minions=["m39"], asker=None)
    world.run_until(lambda: len(world.answers) == 3)
    assert world.answers == [40, 40, 1]
    assert states(world) == [None] * 39 + [State.PENDING]


def test_an_entry_that_is_cancelled_and_then_enqueued_is_owed(world):
    hold(world)
    world.request("cancel", jid="j1")
    midway(world)
    world.request("enqueue", jid="j1", minions=list(NAMES), asker=None)
    world.run_until(lambda: len(world.answers) == 2)
    assert (world.answers, set(states(world))) == ([40, 40], {State.PENDING})


def test_an_entry_that_is_retried_and_then_cancelled_is_cancelled(world):
    hold(world)
    world.request("retry", jid="j1")
    midway(world, State.PENDING)
    world.request("cancel", jid="j1")
    world.run_until(lambda: len(world.answers) == 2)
    assert (world.answers, set(states(world))) == ([40, 40], {State.CANCELLED})


def test_an_entry_that_ends_meanwhile_is_passed_over(world):
    world.request("cancel", jid="j1")
    midway(world)
    last = next(name for name in reversed(NAMES) if world.state(name, "j1") is State.PENDING)
    world.take_return(last, "j1")
    world.tell(facts.Returned("j1", frozenset({last})))
    assert world.state(last, "j1") is None
    world.run_until(lambda: world.answers)
    assert world.answers == [39]
    assert world.state(last, "j1") is None


def test_an_entry_that_comes_in_meanwhile_is_not_meant(world):
    world.request("cancel", jid="j1")
    midway(world)
    job = world.machine.jobs["j1"]
    world.machine.owing.owe(job, "m99", State.PENDING, "it did not return the job")
    world.run_until(lambda: world.answers)
    assert world.answers == [40]
    assert world.state("m99", "j1") is State.PENDING


def test_a_kill_counts_for_what_an_earlier_request_has_still_to_do(world):
    """Also where the log tells of the kill only in the middle of the request."""
    world.request("cancel", jid="j1")
    world.run_until(lambda: world.answers)
    world.request("enqueue", jid="j1", minions=list(NAMES), asker=None)
    world.run_until(lambda: states(world).count(State.PENDING) == 30)
    world.tell(facts.Kill("j1", frozenset(NAMES), "ann", world.now))
    world.run_until(lambda: len(world.answers) == 2)
    assert set(states(world)) == {State.CANCELLED}


def test_a_request_that_fails_is_answered_so_and_the_next_one_is_carried_out(world):
    failed = []

    async def ask():
        try:
            await world.shell.request(facts.Requested("cancel", {"planet": "m1"}))
        except TypeError as exc:
            failed.append(exc)

    world.life.spawn_callback(ask)
    world.run(1)
    assert len(failed) == 1
    world.request("cancel", jid="j1")
    world.run_until(lambda: world.answers)
    assert world.answers == [40]


def test_others_get_their_turn_before_it_is_through(world):
    world.request("cancel", jid="j1")
    midway(world)
    world.publish("j2", targets=("m0",))
    world.run(0.3)
    assert "j2" in world.machine.capture.open
    assert not world.answers


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


@pytest.mark.parametrize("at", [State.PENDING, State.CLAIMED])
def test_nothing_is_sent_while_a_kill_is_carried_out(world, at):
    back_in(world)
    world.run_until(lambda: world.state("m9", "j1") is at and world.machine.backlogs["m9"].replay is not None)
    world.tell(facts.Kill("j1", frozenset(NAMES), "ann", world.now))
    assert states(world).count(at) > 1
    world.run(120)
    assert set(states(world)) == {State.CANCELLED}
    assert not world.published_at


def test_a_kill_midway_cancels_also_what_was_not_queued_yet(world):
    world.publish("j2")
    world.run_until(lambda: states(world, "j2").count(State.PENDING) == 10)
    world.tell(facts.Kill("j2", frozenset(NAMES), "ann", world.now))
    world.run(60)
    assert set(states(world, "j2")) == {State.CANCELLED}


def test_a_job_that_is_published_again_midway_is_looked_at_again(world):
    world.publish("j2", targets=NAMES[:20])
    world.run_until(lambda: states(world, "j2").count(State.PENDING) == 10)
    world.publish("j2", targets=NAMES[20:])
    world.run(120)
    assert set(states(world, "j2")) == {State.PENDING}


def test_an_engine_that_dies_midway_queues_the_others_after_its_restart(world):
    world.publish("j2")
    world.run_until(lambda: states(world, "j2").count(State.PENDING) == 10)
    world.restart()
    world.run(120)
    assert set(states(world, "j2")) == {State.PENDING}
