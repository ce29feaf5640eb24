"""The engine's shell, on a real loop with a real store and job cache; bus and minions are played."""

from __future__ import annotations

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.shell import RetryShell
from saltext.jobs.engines.job_retry import ports_of
from tests.database import replies_in
from tests.functional.retry.records import JID, accept, load_of
from tests.waiting import comes_true


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
        self._loop, self.listeners = loop, []
        self.fired = []

    def listen(self, listener, on_ready):
        self.listeners.append(listener)
        self._loop.add_callback(on_ready)

    def fire(self, tag, data):
        self.fired.append((tag, data))

    def close(self):
        pass

    def tell(self, tag, data):
        for listener in self.listeners:
            if listener.wants(tag):
                listener.handle(tag, data)


class Stage:
    """A shell and its simulated surroundings."""

    def __init__(self, opts, job_cache):
        self.opts, self.is_closed = {**opts, "timeout": 1, "gather_job_timeout": 1}, False
        self.loop, self.publisher, self.cache = compat.new_loop(), Publisher(), job_cache
        self.bus, self.clock = Bus(self.loop), Clock()
        self.ports = ports_of(
            self.opts, self.loop, None, job_cache, self.bus, self.publisher, clock=self.clock, acks=True
        )
        self.shell = RetryShell(self.opts, RetrySettings(), self.ports)

    def until(self, condition):
        assert comes_true(self.loop, condition)

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
    stage.until(lambda: len(replies_in(opts, JOB_RETRY)) == 2)
    assert stage.state("a") is State.CANCELLED


def test_of_the_minions_that_a_batch_hands_over_those_with_a_key_are_owed_the_job_and_the_others_named(
    stage, opts, job_cache, caplog
):
    accept(opts, "a")
    job_cache.keep_load(JID, load_of(), ["a", "b"])
    for jid in (JID, "20260516101112139999"):
        requests.leave(opts, JOB_RETRY, {"do": "enqueue", "batch": True, "jid": jid, "minions": ["a", "b"]})
    stage.start()
    stage.until(lambda: len(replies_in(opts, JOB_RETRY)) == 2)
    assert (stage.state("a"), stage.state("b")) == (State.PENDING, None)
    assert f"Batch {JID}: these minions have no accepted key and are owed nothing: b" in caplog.text
    assert "The retry queue takes no minion of batch 20260516101112139999 over: Job" in caplog.text
