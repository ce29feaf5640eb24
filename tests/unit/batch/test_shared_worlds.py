"""
Several batches under one limit in made-up worlds, through the engine's shell: minions are away, late, slow and start anew,
publishes fail, the engine is killed, operators pause, resume, stop and kill. What ran where at once, the minions say.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from saltext.jobs.core.batch.sharing import Sharing
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.settings import InFlightLimit
from tests.unit.batch.shell_bench import FakeMaster, FakeMinion, ShellBench

#: Seconds for which room may be free although somebody wants it: freed slots are gathered for 5 s, a publish takes a while.
_IDLE = 8
#: Seconds within which all batches of a world must have ended.
_LONGEST = 20_000


class Watched(FakeMaster):
    """Its minions tell when a job begins that should not have begun."""

    def __init__(self, world, *args):
        super().__init__(*args)
        self._world = world
        self.wrong = []
        self.unconfirmed = 0  # of so many publishes nobody will say that they went out

    async def publish(self, fun, arg, tgt, tgt_type="list", *, question=False, **more):
        lost = self.unconfirmed and not question
        matched = await super().publish(fun, arg, tgt, tgt_type, question=question, **more)
        if lost:  # the minions have it, and nobody says so
            self.unconfirmed -= 1
            raise PublishFailed("no answer", certain=False)
        return matched

    def _run(self, minion, fun, jid):
        claims = self._world.specs
        for other in minion.runs:
            if claims[jid].avoids & claims[other].claims:
                self.wrong.append(f"{jid} begins on {minion.name}, where {other} runs")
        super()._run(minion, fun, jid)
        runs = [name for name, each in self.minions.items() for _ in each.runs]
        limit = self._world.limit
        if limit.total is not None and len(runs) > limit.total:
            self.wrong.append(f"{len(runs)} run")
        if limit.each is not None and sum(name[0] == minion.name[0] for name in runs) > limit.each:
            self.wrong.append(f"{runs} run in groups")


class World(ShellBench):
    """
    :param seed: of all chance.
    """

    def __init__(self, root, seed):
        self.chance = chance = random.Random(seed)
        total, each = chance.choice([None, 1, 2, 4]), chance.choice([None, None, 1, 2])
        self.limit = InFlightLimit(total, "grains:dc" if each else "", each)
        names = [f"{dc}{number}" for dc in "xyz"[: chance.randint(1, 3)] for number in range(chance.randint(1, 4))]
        minions = [
            FakeMinion(name, chance.choice([0.5, 3.0, 20.0, 70.0]), int(chance.random() < 0.1)) for name in names
        ]
        for minion in minions:
            minion.there = chance.random() < 0.85
        limit = None if self.limit == InFlightLimit() else self.limit
        super().__init__(root, minions, max_in_flight=limit, publish_retries=1000)
        self.master = Watched(self, self.virtual.loop, self.clock, self.bus, minions)
        self.names, self.specs, self.idle = names, {}, 0

    def live(self):
        return [live.batch for live in self.shell.live.values()]

    def go_through(self):
        """Let batches come, and things go wrong, until all have ended."""
        chance, todo = self.chance, self.plan()
        for _ in range(_LONGEST):
            while todo and chance.random() < 0.2:
                todo.pop(0)()
            self.run(1.0)
            self.look()
            if not todo and not self.shell.live:
                break
        assert not self.shell.live, [batch.snapshot() for batch in self.live()]
        assert self.specs.keys() <= self.shell.ended
        assert not self.bus.errors

    def plan(self):
        chance = self.chance
        starts = [self.begin_one for _ in range(chance.randint(2, 5))]
        more = [self.kill, self.kill, self.cut, self.bring, self.fail, self.lose, self.pause, self.stop, self.anew]
        rest = starts[1:] + [chance.choice(more) for _ in range(chance.randint(0, 8))]
        chance.shuffle(rest)
        return [starts[0], *rest, self.bring_all, self.resume_all]

    # -- what happens --------------------------------------------------------------------------------------------------

    def begin_one(self):
        chance, jid = self.chance, f"20260516101112{131000 + len(self.specs)}"
        minions = sorted(chance.sample(self.names, chance.randint(1, len(self.names))))
        options = {
            "fun": chance.choice(["state.apply", "state.highstate", "cmd.run"]),
            "exclusive": chance.choice([(), True, True, ("db",), ("db", "state")]),
            "presence": chance.choice(["ping", "none"]),
            "batch_wait": chance.choice([0.0, 0.0, 3.0]),
            "timeout": chance.choice([10.0, 40.0]),
            "gather_job_timeout": 3.0,
        }
        self.begin(minions, chance.choice(["1", "3", "100%", "1,50%,100%"]), jid=jid, **options)
        self.specs[jid] = self.batch(jid).spec

    def kill(self):
        self.restart(after=self.chance.choice([0.0, 0.2, 5.0, 60.0]))
        self.idle = 0

    def cut(self):
        minion = self.master.minions[self.chance.choice(self.names)]
        self.master.restart_minion(minion.name, heard=False)
        minion.there = False

    def anew(self):
        self.master.restart_minion(self.chance.choice(self.names), heard=self.chance.random() < 0.5)

    def bring(self):
        for name, minion in self.master.minions.items():
            if not minion.there:
                self.master.restart_minion(name)

    bring_all = bring

    def fail(self):
        self.master.failures += [PublishFailed("no", certain=self.chance.random() < 0.5)] * self.chance.randint(1, 3)

    def lose(self):
        self.master.unconfirmed += self.chance.randint(1, 2)

    def pause(self):
        for jid in self.specs:
            if self.chance.random() < 0.5:
                self.ask("pause", jid=jid)

    def resume_all(self):
        for jid in self.specs:
            self.ask("resume", jid=jid)

    def stop(self):
        self.ask("stop", jid=self.chance.choice(sorted(self.specs) or ["1"]), kill=self.chance.random() < 0.5)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def look(self):
        assert not self.master.wrong, self.master.wrong
        self.idle = self.idle + 1 if self.somebody_could_have_more() else 0
        assert self.idle < _IDLE, f"room is left over: {[batch.snapshot() for batch in self.live()]}"

    def somebody_could_have_more(self):
        flying = [name for batch in self.live() for name in batch.flights]
        if self.limit.total is not None and len(flying) >= self.limit.total:
            return False
        return any(
            self.has_room(flying, name) and not self.is_taken(batch, name)
            for batch in self.live()
            if batch.room.wanted
            for name in batch.waiting
        )

    def has_room(self, flying, name):
        return self.limit.each is None or sum(other[0] == name[0] for other in flying) < self.limit.each

    def is_taken(self, batch, name):
        others = (other for other in self.live() if other is not batch and name in other.flights)
        return any(batch.spec.avoids & other.spec.claims for other in others)


def live_through(root, seed, world=World):
    with world(root / str(seed), seed) as bench:
        try:
            bench.go_through()
        except AssertionError as exc:
            raise AssertionError(f"world {seed}: {exc}") from exc


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_in_a_world_that_fails_in_many_ways_the_limit_holds_nobody_meets_and_all_end(tmp_path, first):
    for seed in range(first, first + 10):
        live_through(tmp_path, seed)


# -- the worlds find out whoever shares badly --------------------------------------------------------------------------


class MoreThanThereIs(Sharing):
    def round(self):
        for jid, fact in super().round():
            yield jid, dataclasses.replace(fact, minions=(*fact.minions, "x0", "x1")) if fact.minions else fact


class WhoWasThereBeforeDoesNotCount(Sharing):
    def enter(self, batch):
        if not batch.flights:
            super().enter(batch)


class NobodyIsExclusive(Sharing):
    def is_shared(self, batch):
        return batch.spec.avoids == frozenset() and super().is_shared(batch)


class OneGroupForAll(Sharing):
    def know(self, jid, lanes):
        super().know(jid, {minion: minion for minion in lanes})


class WhatIsFreedIsNotNoticed(Sharing):
    def wait(self, now):
        return super().wait(now) if self.urgent else None


class WhatIsFreedIsNoticedLate(Sharing):
    def wait(self, now):
        wait = super().wait(now)
        return wait if self.urgent or not wait else wait + 60.0


@pytest.mark.parametrize(
    "defect",
    [
        MoreThanThereIs,
        WhoWasThereBeforeDoesNotCount,
        NobodyIsExclusive,
        OneGroupForAll,
        WhatIsFreedIsNotNoticed,
        WhatIsFreedIsNoticedLate,
    ],
)
def test_a_defect_does_not_go_unnoticed_in_a_hundred_worlds(tmp_path, defect):
    class Defective(World):
        sharing = defect

    with pytest.raises(AssertionError, match="world"):
        for seed in range(100):
            live_through(tmp_path, seed, Defective)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1200, 100))
def test_in_two_hundred_such_worlds_too(tmp_path, first):
    for seed in range(first, first + 100):
        live_through(tmp_path, seed)
