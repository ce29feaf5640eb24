"""The writer of the retry queue, which works beside the engine's loop."""

from __future__ import annotations

import logging
import pathlib

from saltext.jobs.core import compat
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.retry.entry import Key, Kind
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.retry.writer import Writer
from tests.functional.retry.records import JID, record_of, snapshot_of
from tests.waiting import run_until


def refuse_nothing(jid, reason):
    raise AssertionError(f"{jid}: {reason}")


def keys_of(jid, *minions):
    """The keys of a job, and of its entries."""
    return [Key(Kind.JOB, jid), *(Key(Kind.ENTRY, jid, minion) for minion in minions)]


def record_under(key):
    """The record of an entry, of a job that two minions are owed, or of its claims."""
    if key.kind is Kind.ENTRY:
        return record_of(key.of)
    return {"a": 1.0} if key.kind is Kind.CLAIMS else snapshot_of("a", "b")


class Loop:
    """A loop on which a writer can be tried."""

    def __init__(self):
        self.loop = compat.new_loop()

    def until(self, condition):
        run_until(self.loop, condition)


def test_records_that_the_disk_does_not_take_are_written_once_it_does(opts, caplog):
    helper, durable = Loop(), []
    worker = Worker(helper.loop)
    writer = Writer(helper.loop, worker, RetryStore(opts), record_under, refuse_nothing)
    blocker = pathlib.Path(opts["cachedir"]) / "job_retry"
    blocker.write_text("no directory can be made here")
    writer.put(keys_of(JID, "a"))
    writer.when_durable(lambda: durable.append(True))
    with caplog.at_level(logging.WARNING):
        helper.until(lambda: "cannot be written" in caplog.text)
        assert durable == []
        writer.put(keys_of(JID, "b"))
        blocker.unlink()
        helper.until(lambda: bool(durable))
        helper.until(lambda: (blocker / "queue/b" / f"{JID}.p").exists())
    assert caplog.text.count("cannot be written") == 1
    assert "can be written again" in caplog.text
    assert (blocker / "queue/a" / f"{JID}.p").exists()
    worker.close()
    helper.loop.close()


def test_records_that_redis_does_not_take_are_written_once_it_is_back(opts, cache_servers, caplog):
    server = cache_servers("redis")
    helper, durable = Loop(), []
    worker = Worker(helper.loop)
    store = RetryStore({**opts, **server.options})
    writer = Writer(helper.loop, worker, store, record_under, refuse_nothing)
    assert store.snapshot(JID) is not None  # it has a connection
    server.stop()
    writer.put(keys_of(JID, "a"))
    writer.when_durable(lambda: durable.append(True))
    with caplog.at_level(logging.WARNING):
        helper.until(lambda: "cannot be written" in caplog.text)
        assert durable == []
        server.start()
        helper.until(lambda: bool(durable))
    assert [entry.minion for entry in store.entries(JID, store.snapshot(JID))] == ["a"]
    worker.close()
    helper.loop.close()


def test_a_refused_record_is_reported_before_the_engine_goes_on_with_it_and_the_rest_is_written(opts, caplog):
    helper, told = Loop(), []
    worker, store, long = Worker(helper.loop), RetryStore(opts), "9" * 254
    writer = Writer(helper.loop, worker, store, record_under, lambda jid, reason: told.append(jid))
    writer.put(keys_of(long, "a"))
    writer.put(keys_of(JID, "a"))
    writer.when_durable(lambda: told.append("durable"))
    helper.until(lambda: "durable" in told)
    assert told == [long, "durable"]
    writer.claim(long, lambda: told.append("claimed"))
    helper.until(lambda: "claimed" in told)
    assert told[2:] == [long, "claimed"]
    assert [entry.jid for entry in store.entries(JID, store.snapshot(JID))] == [JID]
    assert "cannot be kept" in caplog.text
    worker.close()
    helper.loop.close()


def test_an_entry_that_changes_again_before_it_is_written_is_written_as_it_is_by_then(opts):
    helper, durable, entries = Loop(), [], {"a": {**record_of("a"), "attempts": 1}, "b": record_of("b")}
    worker, store = Worker(helper.loop), RetryStore(opts)
    writer = Writer(helper.loop, worker, store, lambda key: entries.get(key.of, record_under(key)), refuse_nothing)
    writer.put(keys_of(JID, "a", "b"))
    entries.update(a={**record_of("a"), "attempts": 2}, b=None)
    writer.when_durable(lambda: durable.append(True))
    helper.until(lambda: bool(durable))
    assert [(entry.minion, entry.attempts) for entry in store.entries(JID, store.snapshot(JID))] == [("a", 2)]
    worker.close()
    helper.loop.close()
