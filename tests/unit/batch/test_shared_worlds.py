"""
Several batches under one limit in simulated worlds, through the engine's shell: minions are away, late, slow and start anew,
publishes fail, the engine is killed, operators pause, resume, stop and kill. The minions say what ran where at once.
"""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest

from saltext.jobs.core.batch.sharing import Sharing
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.errors import PublishFailed
from tests.unit.batch.shell_bench import FakeMaster, FakeMinion, ShellBench

#: Seconds for which room may stay free although a batch wants it: freed slots are gathered for 5 s, a publish takes a while.
_IDLE = 8
ROOT = {"owner": {"kind": "master", "name": "root", "backends": [], "at": 1.0}, "on_behalf": {}}
#: Seconds within which all batches of a world must have ended.
_LONGEST = 20_000


class Watched(FakeMaster):
    """Its minions tell when a job begins that should not have begun."""

    def __init__(self, world, *args):
        super().__init__(*args)
        self._world = world
        self.wrong = []
        self.unconfirmed = 0  # for so many publishes no confirmation will come

    async def publish(self, fun, arg, tgt, tgt_type="list", *, question=False, **more):
        lost = self.unconfirmed and not question
        matched = await super().publish(fun, arg, tgt, tgt_type, question=question, **more)
        if lost:  # the minions have it, and no confirmation comes
            self.unconfirmed -= 1
            raise PublishFailed("no answer", certain=False)
        return matched

    def _run(self, minion, fun, jid):
        super()._run(minion, fun, jid)
        runs = sum(len(each.runs) for each in self.minions.values())
        if self._world.limit is not None and runs > self._world.limit:
            self.wrong.append(f"{runs} run")


class World(ShellBench):
    """
    :param seed: of all chance.
    """

    def __init__(self, root, seed):
        self.chance = chance = random.Random(seed)
        self.limit = chance.choice([1, 2, 3, 4])
        names = [f"{dc}{number}" for dc in "xyz"[: chance.randint(1, 3)] for number in range(chance.randint(1, 4))]
        minions = [
            FakeMinion(name, chance.choice([0.5, 3.0, 20.0, 70.0]), int(chance.random() < 0.1)) for name in names
        ]
        for minion in minions:
            minion.there = chance.random() < 0.85
        super().__init__(root, minions, max_in_flight=self.limit, publish_retries=1000)
        self.master = Watched(self, self.virtual.loop, self.clock, self.bus, minions)
        self.names, self.specs, self.idle = names, {}, 0

    def have_ended(self):
        return not self.shell.live and self.specs.keys() <= set(self.store.ended_jids())

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
            if not todo and self.have_ended():
                break
        assert not self.shell.live, [(batch.state, batch.snapshot()) for batch in self.live()]
        assert self.have_ended()
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
        self.begin(minions, jid=jid, **self.options(minions))
        self.specs[jid] = self.batch(jid).spec

    def options(self, minions):
        chance = self.chance
        return {
            "fun": chance.choice(["state.apply", "state.highstate", "cmd.run"]),
            "presence": chance.choice(["ping", "none"]),
            "batch_wait": chance.choice([0.0, 0.0, 3.0]),
            "timeout": chance.choice([10.0, 40.0]),
            "gather_job_timeout": 3.0,
            "batch": chance.choice(["1", "3", "100%", "1,50%,100%"]),
        }

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
        self.idle = self.idle + 1 if self.a_batch_could_have_more() else 0
        assert self.idle < _IDLE, f"room is left over: {[batch.snapshot() for batch in self.live()]}"

    def a_batch_could_have_more(self):
        flying = sum(len(batch.flights) for batch in self.live())
        is_full = self.limit is not None and flying >= self.limit
        return not is_full and any(batch.room.wanted for batch in self.live())


# -- with all that a rollout may have besides, and engines with other options ------------------------------------------


class Flaky(BatchStore):
    """Some journals cannot be read for a while."""

    broken = frozenset()

    def open(self, jid):
        if jid in self.broken:
            raise OSError("the disk fails")
        return super().open(jid)


class Book(Sharing):
    """Notes where what it counts is not what there is."""

    def __init__(self, wrong, *args):
        super().__init__(*args)
        self._wrong, self._there = wrong, {}

    def enter(self, batch):
        self._there[batch.spec.jid] = batch
        super().enter(batch)

    def leave(self, jid):
        self._there.pop(jid, None)
        super().leave(jid)

    def stepped(self, batch):
        super().stepped(batch)
        there = self._there if self.limit is not None else {}
        flying = {jid: len(batch.flights) for jid, batch in there.items()}
        if (book := {jid: demand.flying for jid, demand in self._demands.items()}) != flying:
            self._wrong.append(f"{flying} are in flight, and {book} says the book")


class Judge(Watched):
    """A job counts against the limit under which it was published: a new engine may have another one."""

    def __init__(self, *args):
        super().__init__(*args)
        self._limits = {}

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, **more):
        if jid in self._world.specs:
            self._limits[jid] = self._world.limit
        return await super().publish(fun, arg, tgt, tgt_type, jid=jid, **more)

    def _run(self, minion, fun, jid):
        world, now = self._world, self._world.limit
        world.limit = self._limits[jid]
        super()._run(minion, fun, jid)
        world.limit = now


class Rollouts(World):
    """Windows, checks, approvals, groups, budgets, rights, the retry queue, and engines that have other options."""

    LIMITS = (None, 1, 2, 4)
    book = Book

    def __init__(self, root, seed):
        super().__init__(root, seed)
        self.master = Judge(self, self.virtual.loop, self.clock, self.bus, self.master.minions.values())
        self.sharing = functools.partial(self.book, self.master.wrong)
        self.store = Flaky(self.opts)
        self.calm = False
        for minion in self.master.minions.values():
            minion.answers["a.check"] = (True, 0)
            minion.stubborn = self.chance.random() < 0.3

    def plan(self):
        more = [self.kill, self.other, self.other, self.cut, self.bring, self.fail, self.lose, self.pause, self.stop]
        more += [self.anew, self.forbid, self.forbid, self.no_cache, self.lie, self.no_journals]
        chance = self.chance
        starts = [self.begin_one for _ in range(chance.randint(2, 6))]
        rest = starts[1:] + [chance.choice(more) for _ in range(chance.randint(0, 12))]
        chance.shuffle(rest)
        return [starts[0], *rest, self.bring_all, self.calm_down]

    def options(self, minions):
        chance, more = self.chance, super().options(minions)
        if chance.random() < 0.2:
            more["window"], more["timezone"] = "13:40-13:48; 13:50-13:55; 14:00-24:00; 00:00-12:00", "UTC"
        if chance.random() < 0.2:
            more["start_at"] = self.clock.now() + chance.uniform(0, 100)
        if chance.random() < 0.3:
            kind = chance.choice(["function", "approve"])
            fun = "a.check" if kind == "function" else ""
            more["check"] = {"kind": kind, "fun": fun, "arg": [], "kwargs": {}}
        if chance.random() < 0.4:
            more["owner"] = {"kind": "token", "name": chance.choice(["anna", "otto"]), "backends": ["file"], "at": 1.0}
        if chance.random() < 0.3 and len(minions) > 1:
            first = chance.randint(1, len(minions) - 1)
            more["groups"], more["by"] = (("one", first), ("two", len(minions) - first)), "grains:one"
        more["failures_allowed"] = chance.choice([None, None, 0.0, 1.0])
        more["max_runtime"] = chance.choice([None, None, 15.0])
        more["offline"] = chance.choice(["skip", "fail", "queue"])
        return more

    def look(self):
        if self.store.broken:
            self.idle = 0
        super().look()
        if self.calm and self.chance.random() < 0.05:
            self.resume_all()
            for batch in self.live():
                if batch.checks.by_hand and batch.checks.under_way:
                    self.ask("approve", jid=batch.spec.jid, stage=batch.checks.stage, user="root")

    # -- what happens --------------------------------------------------------------------------------------------------

    def other(self):
        """An engine with other options goes on, here or at another master. Requests may have waited for it."""
        chance = self.chance
        self.shell.close()
        if chance.random() < 0.5:
            self.resume_all()
        self.run(chance.choice([0.0, 0.2, 5.0, 60.0]))
        self.limit = chance.choice(self.LIMITS)
        self.settings = dataclasses.replace(self.settings, max_in_flight=self.limit)
        self.master_age = chance.choice([5.0, 86400.0])
        self.start(is_takeover=chance.random() < 0.5)
        self.idle = 0

    def forbid(self):
        self.permission.failing = self.chance.random() < 0.2
        self.permission.lost = {name: f"{name} may not" for name in ("anna", "otto") if self.chance.random() < 0.5}

    def no_cache(self):
        self.master.cache.failing = not self.master.cache.failing

    def no_journals(self):
        self.store.broken = frozenset(jid for jid in self.specs if self.chance.random() < 0.3)
        self.kill()

    def lie(self):
        for jid in self.specs:
            name = self.chance.choice(self.names)
            self.bus.deliver(f"salt/job/{jid}/start/{name}", {"id": name, "jid": jid})

    def calm_down(self):
        self.permission.failing, self.permission.lost = False, {}
        self.master.cache.failing, self.store.broken = False, frozenset()
        self.calm = True

    def resume_all(self):
        for jid in self.specs:
            self.ask("resume", jid=jid, user="root", rights=ROOT)


def live_through(root, seed, world=World):
    with world(root / str(seed), seed) as bench:
        try:
            bench.go_through()
        except AssertionError as exc:
            raise AssertionError(f"world {seed}: {exc}") from exc


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_in_a_world_that_fails_in_many_ways_the_limit_holds_and_all_batches_end(tmp_path, first):
    for seed in range(first, first + 10):
        live_through(tmp_path, seed)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_same_holds_for_rollouts_of_all_kinds_and_engines_with_other_options(tmp_path, first):
    for seed in range(first, first + 10):
        live_through(tmp_path, seed, Rollouts)


# -- the worlds find each defect of the sharing ------------------------------------------------------------------------


class MoreThanThereIs(Sharing):
    def __init__(self, *args):
        super().__init__(*args)
        tell = self._tell
        self._tell = lambda jid, fact: tell(jid, dataclasses.replace(fact, count=fact.count and fact.count + 2))


class WhoWasThereBeforeDoesNotCount(Sharing):
    def enter(self, batch):
        if not batch.flights:
            super().enter(batch)


class WhatIsFreedIsNotNoticed(Sharing):
    def _wait(self):
        return super()._wait() if self._urgent else None


class WhatIsFreedIsNoticedLate(Sharing):
    def _wait(self):
        wait = super()._wait()
        return wait if self._urgent or not wait else wait + 60.0


@pytest.mark.parametrize(
    "defect",
    [
        MoreThanThereIs,
        WhoWasThereBeforeDoesNotCount,
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


class UnreadBatchesHoldNothing(Book):
    def note_completeness(self, complete):
        super().note_completeness(True)


def test_a_defect_does_not_go_unnoticed_in_two_hundred_worlds_of_rollouts(tmp_path):
    class Defective(Rollouts):
        book = UnreadBatchesHoldNothing

    with pytest.raises(AssertionError, match="world"):
        for seed in range(200):
            live_through(tmp_path, seed, Defective)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1020, 10))
def test_in_twenty_worlds_of_rollouts_too(tmp_path, first):
    for seed in range(first, first + 10):
        live_through(tmp_path, seed, Rollouts)
