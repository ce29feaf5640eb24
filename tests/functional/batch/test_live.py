"""What must be on the disk before an action, and what happens to a batch if the disk refuses writes."""

from __future__ import annotations

import os
import threading

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from tests.faults import failing_syncs, full_disk
from tests.unit.batch.bench import kinds, spec
from tests.waiting import stretched


@pytest.fixture
def disk(loop):
    worker = Worker(loop)
    yield worker
    worker.close()


@pytest.fixture
def store(tmp_path):
    return BatchStore({"cachedir": str(tmp_path), "hash_type": "sha256"})


class Story:
    """A batch that is carried out: what it wanted done is in ``done``."""

    def __init__(self, store, loop, disk, minions="abcd"):
        self.done, self.clock, self.store = [], Clock(), store
        what = spec(minions, "2", timeout=3600.0)
        journal = store.new_journal(what.jid)
        self.live = Live(Batch(what, self.clock.now()), journal, loop, self.clock, disk, self.perform)
        self._run = loop.run_sync

    def perform(self, live, effects):
        self.done += kinds(effects)

    def tell(self, fact):
        """Tell it a fact, and wait until what that calls for is done or held."""

        async def told():
            self.live.step(fact)
            while self.live.busy and not self.live.unwritten:
                await compat.sleep(0.001)

        self._run(told)

    def tend(self):
        async def tended():
            self.live.tend()
            await compat.sleep(0)
            while self.live.rewriting or (self.live.busy and not self.live.unwritten):
                await compat.sleep(0.001)

        self._run(tended)

    def is_whole_on_disk(self):
        return self.store.read(self.live.jid).snapshot() == self.live.batch.snapshot()


@pytest.fixture
def story(store, loop, disk):
    made = Story(store, loop, disk)
    loop.run_sync(made.live.rewrite)
    made.tell(facts.Tick())
    return made


def test_a_publish_is_done_after_its_record_is_durable(store, loop, disk, monkeypatch):
    made = Story(store, loop, disk)
    loop.run_sync(made.live.rewrite)
    synced, true = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(list(made.done)) or true(handle))
    made.tell(facts.Tick())
    assert (synced[0], made.done) == ([], ["new", "Publish"])
    assert made.is_whole_on_disk()


def test_nothing_waits_for_the_disk_on_the_loop_s_thread(story, loop, monkeypatch):
    threads, true = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda *args: threads.append(threading.current_thread()) or true(*args))
    story.tell(facts.Published())
    story.tell(facts.Returned("a", 0))
    loop.run_sync(story.live.rewrite)
    assert threads
    assert threading.main_thread() not in threads


def test_while_the_disk_takes_nothing_all_is_held_and_then_done(story):
    story.done.clear()
    with full_disk():
        story.tell(facts.Published())
        story.tell(facts.Returned("a", 0))
        story.tend()
        assert (story.live.unwritten, story.done) == (True, [])
        assert not story.is_whole_on_disk()
    story.tend()
    assert (story.live.unwritten, story.done) == (False, ["Publish"])
    story.tell(facts.Published())
    story.live.journal.sync()
    assert story.is_whole_on_disk()


def test_a_sync_that_fails_holds_the_publish_until_all_is_rewritten(story, monkeypatch):
    story.tell(facts.Published())
    story.done.clear()
    with failing_syncs(monkeypatch):
        story.tell(facts.Returned("a", 0))
        assert (story.live.unwritten, story.done) == (True, [])
    story.tend()
    assert story.done == ["Publish"]
    assert story.is_whole_on_disk()


def test_facts_that_come_while_the_journal_is_rewritten_are_in_it(store, loop, disk):
    made = Story(store, loop, disk, [f"m{number}" for number in range(100)])

    async def life():
        await made.live.rewrite()
        made.live.step(facts.Tick())
        for number in range(100):
            made.live.step(facts.Published())
            rewritten = compat.Future()
            loop.spawn_callback(end_with, rewritten, made.live.rewrite)
            await compat.sleep(0)
            made.live.step(facts.Returned(f"m{number}", 0))
            await made.live.durable()
            await rewritten
            assert made.is_whole_on_disk()

    loop.run_sync(life, timeout=stretched(120))
    assert made.done.count("Publish") >= 50


async def end_with(future, function):
    future.set_result(await function())


def test_a_rewrite_that_may_not_outlive_a_power_cut_holds_what_follows_until_another_one_does(story, monkeypatch):
    story.tell(facts.Published())
    reason = "x" * 300_000
    story.tell(facts.PauseRequested(reason))
    story.tell(facts.ResumeRequested("ann"))
    story.done.clear()
    with failing_syncs(monkeypatch):
        story.tend()
        assert story.live.unwritten
        story.tell(facts.Returned("a", 0))
        assert story.done == []
    story.tend()
    assert (story.live.unwritten, story.done) == (False, ["Publish"])
    assert story.is_whole_on_disk()


def test_a_journal_that_has_outgrown_its_snapshot_is_rewritten(story):
    journal, reason = story.live.journal, "x" * 5000
    story.tell(facts.Published())
    for _ in range(80):
        story.tell(facts.PauseRequested(reason))
        story.tell(facts.ResumeRequested("ann"))
    assert journal.size > 400_000
    story.tend()
    assert journal.size < 3000
    assert story.is_whole_on_disk()


def test_a_batch_that_the_disk_does_not_take_leaves_nothing(store, loop, disk):
    made = Story(store, loop, disk)
    with full_disk(), pytest.raises(OSError, match="cannot be used"):
        loop.run_sync(made.live.rewrite)
    assert store.folder.names("batches") == []
