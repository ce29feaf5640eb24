"""The engine's shell, on a real loop with a real store and job cache; bus and minions are played."""

from __future__ import annotations

import logging
import math
import time

import pytest
import salt.cache

from saltext.jobs.core import compat
from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.answers import kept_answers
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.master import events
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.ports import ports_of
from saltext.jobs.core.retry.shell import RetryShell
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.settings import RetrySettings
from saltext.jobs.core.site import FileSite, read_msgpack
from saltext.jobs.core.sqlite.banks import banks_of
from tests.database import replies_in
from tests.functional.retry.records import JID, accept, changes, load_of, record_of, snapshot_of
from tests.waiting import SOON, Deadline, comes_true

SIGNAL = "20260516101113000000"


class Publisher:
    """Publishes to no minion: all are away."""

    def __init__(self):
        self.published = []

    def close(self):
        pass

    def new_jid(self):
        return f"2026051610200000{len(self.published):04}"

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, question=False, **_more):
        self.published.append((fun, tgt, tgt_type, question))
        return frozenset(tgt if isinstance(tgt, list) else ())


class Bus:
    """A bus on which only the test fires."""

    def __init__(self, loop):
        self._loop, self._listener = loop, None
        self.fired = []

    def listen(self, listener, on_ready):
        self._listener = listener
        self._loop.add_callback(on_ready)

    def fire(self, tag, data):
        self.fired.append((tag, data))

    def close(self):
        pass

    def tell(self, tag, data):
        if self._listener.wants(tag):
            self._listener.handle(tag, data)


class Stage:
    """A shell and its simulated surroundings."""

    def __init__(self, opts, job_cache, clock=None, latest=0.5, **settings):
        self.opts, self.is_closed = {**opts, "timeout": 1, "gather_job_timeout": 1}, False
        self.loop, self.publisher, self.cache = compat.new_loop(), Publisher(), job_cache
        self.bus, self.clock = Bus(self.loop), clock or Clock()
        worker = Worker(self.loop)
        ports = ports_of(
            self.opts,
            self.loop,
            job_cache,
            bus=self.bus,
            publisher=self.publisher,
            questions=Questions(self.loop, self.publisher, kept_answers(job_cache, worker)),
            cache_worker=worker,
            clock=self.clock,
            acks=True,
        )
        self.ports = ports
        self.shell = RetryShell(self.opts, RetrySettings(**settings), self.loop, ports, latest=latest)

    def run(self, seconds):
        """Let this much time pass."""
        end = self.clock.now() + seconds
        self.until(lambda: self.clock.now() > end)

    def take_requests(self):
        """Have the engine take a request, after which it writes a checkpoint."""
        requests.leave(self.opts, JOB_RETRY, {"do": "resume"})
        self.bus.tell(events.wake_tag(JOB_RETRY), {})

    def until(self, condition):
        assert comes_true(self.loop, condition)

    def end_searches(self):
        """Run until a checkpoint says that the job cache is not searched any more."""
        folder, deadline = FileSite(self.opts).folder(JOB_RETRY), Deadline(SOON)

        async def search():
            while (read_msgpack(folder, "checkpoint") or {"search": 0.0})["search"] < math.inf:
                assert not deadline.is_over(), "it is searched still"
                self.take_requests()
                await compat.sleep(0.1)

        self.loop.run_sync(search)

    def start(self):
        self.shell.start()
        self.until(lambda: self.shell.restored)

    def state(self, minion, jid=JID):
        entry = self.shell.machine.entry(minion, jid)
        return entry.state if entry else None

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.shell.close()
            self.loop.close()


@pytest.fixture
def stage(opts, job_cache):
    made = Stage(opts, job_cache)
    yield made
    made.close()


def test_requests_that_were_left_while_the_engine_was_down_are_carried_out_in_their_order(stage, opts, job_cache):
    accept(opts, "a")
    job_cache.keep_load(JID, load_of(), ["a"])
    requests.leave(opts, JOB_RETRY, {"do": "enqueue", "jid": JID, "minions": ["a"]})
    requests.leave(opts, JOB_RETRY, {"do": "cancel", "minion": "a", "jid": None})
    stage.start()
    folder = FileSite(opts).folder(JOB_RETRY)
    stage.until(lambda: len(replies_in(folder)) == 2)
    assert stage.state("a") is State.CANCELLED


def test_a_start_while_the_store_is_read_is_known_afterwards(stage, opts, job_cache, monkeypatch):
    accept(opts, "a")
    other = jid_at(time.time())  # a search passes over jids that are older by days
    held = {**record_of("a"), "state": "held"}
    RetryStore(opts).write(changes({JID: snapshot_of("a")}, {("a", JID): held}))
    for jid in (JID, other):
        job_cache.keep_load(jid, load_of(jid=jid), ["a"])
    steps, step = [], stage.shell.machine.step
    monkeypatch.setattr(stage.shell.machine, "step", lambda fact, now: steps.append(fact) or step(fact, now))
    stage.shell.start()
    for jid in (JID, other):
        stage.bus.tell(f"salt/job/{jid}/new", {"jid": jid, "fun": "state.apply", "minions": ["a"]})
    stage.bus.tell(f"salt/job/{other}/start/a", {"id": "a", "jid": other})
    stage.until(lambda: stage.shell.restored)
    assert isinstance(steps[0], facts.Restored)
    stage.until(lambda: stage.state("a", other) is State.RUNNING)
    assert stage.state("a") is State.HELD


def test_the_engine_starts_despite_a_corrupt_record_of_a_publish(stage, opts, job_cache):
    accept(opts, "a")
    job_cache.keep_load(JID, load_of(), ["a"])
    job_cache.keep_load(SIGNAL, load_of(jid=SIGNAL), ["a"])
    banks = salt.cache.Cache(opts)
    banks.store("jobs/published", JID, {"rubbish": 1})
    with open(f"{opts['cachedir']}/jobs/published/{SIGNAL}.p", "wb") as stream:
        stream.write(b"\xc1\xff")
    stage.start()
    requests.leave(opts, JOB_RETRY, {"do": "pause"})
    stage.bus.tell(events.wake_tag(JOB_RETRY), {})
    folder = FileSite(opts).folder(JOB_RETRY)
    stage.until(lambda: replies_in(folder))


def test_a_start_of_a_minion_that_is_owed_nothing_is_not_decoded_and_is_remembered_only_while_a_job_is_open(stage):
    stage.start()
    machine, tag = stage.shell.machine, "salt/minion/stranger/start"
    assert not stage.shell.wants(tag)
    assert not machine.turns.has_just_started("stranger")
    stage.shell.step(facts.Published(JID, stage.clock.now()))
    assert not stage.shell.wants(tag)
    assert machine.turns.has_just_started("stranger")
    assert not stage.shell.wants(f"salt/minion/{'x' * 1000}/start")
    assert not machine.turns.has_just_started("x" * 1000)


def test_a_start_of_a_minion_that_is_owed_a_job_is_wanted(stage):
    RetryStore(stage.opts).write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    accept(stage.opts, "a")
    stage.start()
    assert stage.shell.wants("salt/minion/a/start")
    assert not stage.shell.wants("salt/minion/a/stop")


@pytest.mark.slow  # the engine looks every ten seconds
@pytest.mark.parametrize(
    ("driver", "bank"),
    [
        ("localfs", "job_retry"),
        ("localfs", "job_retry/queue"),
        ("localfs", "job_retry/jobs"),
        ("localfs", "job_retry/notes"),
        ("sqlite", "job_retry"),
    ],
)
def test_records_removed_from_the_store_under_a_running_engine_are_written_again(opts, job_cache, driver, bank, caplog):
    opts = {**opts, "cache": driver}
    accept(opts, "a", "b")
    stage, store = Stage(opts, job_cache), RetryStore(opts)
    notes = {("here_master", SIGNAL): Note(1e10, settled={"c"}).as_record()}
    store.write(changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}, notes=notes))
    stage.start()
    stage.until(lambda: stage.shell.writer.idle)
    whole = kept(store)
    (banks_of(opts).flush if driver == "sqlite" else LocalBanks(opts["cachedir"]).flush)(bank)
    assert kept(store) != whole
    with caplog.at_level(logging.ERROR):
        stage.until(lambda: kept(store) == whole)
        stage.run(11)  # said once
    assert caplog.text.count("were removed from the store") == 1
    stage.close()


def kept(store):
    """The queue in the store: its minions, the load, and the jobs that have notes."""
    snapshot = store.snapshot(JID)
    entries = sorted(entry.minion for entry in store.entries(JID, snapshot)) if snapshot else []
    return entries, snapshot.get("load"), store.notes("here_master").keys()
