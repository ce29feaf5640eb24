"""Returns that come after a batch has ended: they correct its record, and cost the loop next to nothing."""

from __future__ import annotations

import threading
import time

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch.late import LateReturns
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from tests.batches import journal_path
from tests.open_files import open_files
from tests.unit.batch.bench import Bench
from tests.waiting import run_until

JID = "20260516101112131415"
GATHER = 0.01


class Store(BatchStore):
    """Notes which batches are read, and in which thread."""

    def __init__(self, opts):
        super().__init__(opts)
        self.read_jids, self.threads = [], set()

    def read(self, jid):
        self.read_jids.append(jid)
        self.threads.add(threading.current_thread())
        return super().read(jid)


class Ports:
    """Those that late returns need."""

    def __init__(self, store, loop):
        self.store, self.loop, self.clock, self.cache = store, loop, Clock(), self
        self.disk_worker, self.cache_worker = Worker(loop), Worker(loop)
        self.returns = {}

    def returned(self, jid, minions):
        return {minion: self.returns[minion] for minion in minions if minion in self.returns}

    def have_returned(self, jid, minions):
        return frozenset(self.returned(jid, minions))


@pytest.fixture
def ports(tmp_path, loop):
    made = Ports(Store({"cachedir": str(tmp_path), "hash_type": "sha256"}), loop)
    yield made
    made.disk_worker.close()
    made.cache_worker.close()


@pytest.fixture
def returns(ports):
    made = LateReturns(ports, gather=GATHER)
    yield made
    made.close()


def ended(store, minions="abcd", jid=JID):
    """A batch that has ended without a return of any of its minions."""
    bench = Bench(minions, str(len(minions)), jid=jid)
    bench.sent(missed=minions)
    assert bench.batch.finished
    Journal(journal_path(store, jid)).rewrite(bench.batch.snapshot())
    store.end(jid)


def hear(ports, returns, minion, code=0, jid=JID):
    """The job cache has a return, and the log says that it is not clear which return counts."""
    ports.returns[minion] = code
    returns.look_up([jid])


def records(store):
    return Journal(journal_path(store, JID, ended=True)).read().records


def completed(store):
    return {minion for minion, (how, *_) in store.read(JID).outcomes.items() if how.value == "completed"}


def test_a_late_return_corrects_the_record(ports, returns, loop):
    ended(ports.store)
    hear(ports, returns, "b")
    hear(ports, returns, "c", 3)
    run_until(loop, lambda: len(records(ports.store)) == 2, what="both are recorded")
    batch = ports.store.read(JID)
    assert {minion: (how.value, code) for minion, (how, _, code) in batch.outcomes.items() if minion in "bc"} == {
        "b": ("completed", 0),
        "c": ("failed", 3),
    }
    assert batch.finished


def test_only_the_first_late_return_of_a_minion_is_written(ports, returns, loop):
    ended(ports.store)
    hear(ports, returns, "b")
    run_until(loop, lambda: records(ports.store), what="the first one is recorded")
    for minion, code in (("b", 1), ("b", 2), ("stranger", 0), ("c", 0)):
        hear(ports, returns, minion, code)
    # What is taken first is written first.
    run_until(loop, lambda: "c" in completed(ports.store), what="that of another minion is recorded")
    assert len(records(ports.store)) == 2


def test_a_return_of_another_function_is_not_written_and_does_not_hide_a_genuine_one(ports, returns, loop):
    ended(ports.store)
    for functions, code in (("test.sleep", 0), ("", 0), ("test.ping", 4)):
        returns.take(JID, "b", code, functions)
    returns.take(JID, "c", 0, "test.sleep")
    run_until(loop, lambda: records(ports.store), what="its own is recorded")
    assert ports.store.read(JID).outcomes["b"][2] == 4
    assert completed(ports.store) == set()


def test_many_late_returns_leave_no_file_open_and_cost_the_loop_little(ports, returns, loop, tmp_path):
    names = [f"minion-{number:05d}" for number in range(5000)]
    ended(ports.store, names)
    begun = time.thread_time()
    ports.store.read(JID)
    one_look = time.thread_time() - begun
    ports.store.threads.clear()
    before = len(open_files(tmp_path))
    begun = time.thread_time()
    for name in names[:1000]:
        hear(ports, returns, name)
    spent = time.thread_time() - begun
    run_until(loop, lambda: len(records(ports.store)) == 1000, what="all are recorded")
    assert spent < one_look, (spent, one_look)
    assert threading.main_thread() not in ports.store.threads
    run_until(loop, lambda: len(open_files(tmp_path)) <= before, what="no file is left open")
    assert sum(how.value == "completed" for how, *_ in ports.store.read(JID).outcomes.values()) == 1000


def test_returns_that_came_while_no_engine_ran_are_found_in_the_job_cache(ports, returns, loop):
    ended(ports.store)
    ports.returns = {"a": 0}
    returns.look_up([JID, "20260516101112131499"])
    run_until(loop, lambda: completed(ports.store) == {"a"}, what="it is recorded")


def test_a_damaged_record_of_an_ended_batch_harms_no_other(ports, returns, loop):
    ended(ports.store)
    ended(ports.store, jid="2")
    journal_path(ports.store, "2", ended=True).write_bytes(b"\0" * 100)
    ports.returns = {"a": 0}
    returns.look_up(["2", JID])
    hear(ports, returns, "a", jid="2")
    hear(ports, returns, "b")
    run_until(loop, lambda: completed(ports.store) == {"a", "b"}, what="both are recorded")


def test_only_the_last_of_many_ended_batches_are_remembered(ports, loop):
    returns = LateReturns(ports, GATHER, most_batches=3, most_minions=5)

    def read_again(*jids):
        ports.store.read_jids.clear()
        returns.look_up(jids)
        loop.run_sync(lambda: compat.sleep(5 * GATHER))
        loop.run_sync(lambda: ports.cache_worker.call(len, jids))
        return ports.store.read_jids

    numbers = [str(number) for number in range(10)]
    assert read_again(*numbers) == numbers
    assert read_again("9", "8", "7", "6") == ["6"]
    for jid in ("11", "12", "13"):
        ended(ports.store, jid=jid)
    assert read_again("11", "12", "13") == ["11", "12", "13"]
    assert read_again("13", "12") == ["12"], "they have four minions each"
