"""What concerns every entry of a long queue is done in parts, so that others get their turn in between."""

from __future__ import annotations

from itertools import count, pairwise

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Entry, Job
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.settings import RetrySettings
from tests.worlds.world import World

MINIONS = [f"m{number}" for number in range(20_000)]
JIDS = [f"2026051610111200000{number}" for number in range(4)]
JOBS = {jid: Job(jid, ("state.apply",), 0.0) for jid in JIDS}


@pytest.fixture(scope="module")
def machine():
    entries = [Entry(minion, jid, 0.0, 1e6, "was away") for jid in JIDS for minion in MINIONS]
    machine = Retry(RetrySettings(), 15.0)
    for start in range(0, len(entries), 10_000):
        machine.take_up(JOBS, entries[start : start + 10_000], 1.0)
    assert machine.next_due == 1e6  # until the step that tells of it nothing follows
    steps = follow(machine, facts.Restored(), 1.0)
    assert looked_for(steps) == {jid: set(MINIONS) for jid in JIDS}
    return machine


@pytest.fixture(scope="module")
def times():
    return count(100.0, 100.0)


@pytest.fixture
def now(times):
    """The tests go on with the same queue, in any order, each at a later time."""
    return next(times)


def follow(machine, fact, now):
    """Give the machine a fact, and let ten seconds pass. Returns what it does at each step."""
    steps, end = [machine.step(fact, now)], now + 10.0
    while machine.next_due <= end:
        steps.append(machine.step(facts.Tick(), machine.next_due))
    return steps


def looked_for(steps):
    """The minions whose returns it looks for, by job."""
    found = {}
    for effect in (effect for effects in steps for effect in effects if isinstance(effect, facts.FindReturns)):
        found.setdefault(effect.jid, set()).update(effect.minions)
    return found


def pinged(steps):
    return [effect.minions for effects in steps for effect in effects if isinstance(effect, facts.Ping)]


def test_after_a_gap_all_are_pinged_a_part_at_a_time(machine, now):
    parts = pinged(follow(machine, facts.Gap(), now))
    assert sorted(minion for part in parts for minion in part) == sorted(MINIONS)
    assert max(map(len, parts)) < len(MINIONS) / 2


def test_many_changes_are_announced_in_parts_so_that_others_get_their_turn():
    world, told, turns = World(minions=("b",)), [], []
    world.run(5)
    entries = [Entry(minion, jid, world.now, 1e12, "was away") for jid in JIDS for minion in MINIONS]
    world.shell.machine.take_up(JOBS, entries, world.now)
    world.bus.fire = lambda tag, data: told.append(tag)
    world.machine.part = 10**6
    for jid in JIDS[:2]:
        world.shell.request(facts.Requested("cancel", {"jid": jid}))
    world.shell.request(facts.Requested("cancel", {"minion": "m1"}))  # few, and they wait for those before
    assert not told

    def turn():
        turns.append(len(told))
        if len(turns) < 10:
            world.life.add_callback(turn)

    turn()
    world.run(5)
    assert max(after - before for before, after in pairwise(turns)) <= len(MINIONS) / 2
    assert turns[-1] == len(told) == 2 * len(MINIONS) + 2
    assert {tag.split("/")[2] for tag in told[-2:]} == {"m1"}
