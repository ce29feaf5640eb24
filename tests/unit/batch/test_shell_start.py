"""The start of the batch engine, and the end of a batch, while the disk fails or the engine is killed."""

from __future__ import annotations

import errno
import os

import pytest

from saltext.jobs.core.batch.store import BatchStore
from tests.faults import failing_syncs, full_disk
from tests.unit.batch.bench import spec
from tests.unit.batch.shell_bench import JID, FakeWorker, ShellBench

pytestmark = pytest.mark.usefixtures("both_ways")

OTHER = "20260516101112139999"


def _troubled(name):
    def method(self, *args, **more):
        if self.trouble is not None and self.fails_at == name:
            raise self.trouble
        return getattr(BatchStore, name)(self, *args, **more)

    return method


READS, STEPS = ["jids", "load"], ["sweep", "forget", "show_to_salt"]
#: A store that raises ``trouble``, as long as there is any, in the call that ``fails_at`` names.
TroubledStore = type(
    "TroubledStore",
    (BatchStore,),
    {"fails_at": "", "trouble": None, **{n: _troubled(n) for n in (*READS, *STEPS, "write")}},
)


@pytest.fixture
def bench(tmp_path):
    with ShellBench(tmp_path, store=TroubledStore) as bench:
        yield bench


def test_batches_go_on_if_the_disk_is_full_at_the_start_and_a_request_waits(bench):
    bench.begin("abcd", "2", timeout=60.0)
    bench.run(0.5)
    bench.shell.close()
    bench.inbox.waiting.append(("r", {"do": "start", "spec": spec("ab", "1", jid=OTHER, fun="state.apply").as_dict()}))
    bench.inbox.full = True
    with full_disk():
        bench.start()
        bench.run(30)
    bench.inbox.full = False
    assert bench.end().success is True
    assert bench.end(jid=OTHER).success is True
    assert bench.inbox.replies["r"][0] == "answer"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("a mistake")])
def test_what_fails_at_the_start_is_tried_again_and_delays_nothing_else(bench, name, error):
    bench.begin("ab", "1", timeout=60.0)
    bench.shell.close()
    bench.store.fails_at, bench.store.trouble = name, error
    bench.start()
    started = bench.ask("start", spec=spec("cd", "2", jid=OTHER, fun="state.apply").as_dict())
    bench.run(1, lambda: started in bench.inbox.replies)
    assert bench.end(jid=OTHER).success is True
    bench.store.trouble = None
    assert bench.end(seconds=60).success is True
    assert all(len(minion.begun) == 1 for minion in bench.master.minions.values())


@pytest.mark.parametrize("name", READS)
def test_an_engine_that_cannot_read_its_batches_now_begins_once_it_can(bench, name):
    bench.begin("ab", "1", timeout=60.0)
    bench.shell.close()
    bench.store.fails_at, bench.store.trouble = name, OSError(errno.EIO, "Input/output error")
    bench.start()
    started = bench.ask("start", spec=spec("cd", "2", jid=OTHER, fun="state.apply").as_dict())
    bench.run(20)
    assert started not in bench.inbox.replies
    bench.store.trouble = None
    assert bench.end(seconds=60).success is True
    assert bench.end(seconds=60, jid=OTHER).success is True
    assert all(len(minion.begun) == 1 for minion in bench.master.minions.values())


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_repeated_start_does_not_begin_again_a_batch_that_cannot_be_read_at_this_moment(bench, error):
    bench.begin("abcd", "1", timeout=60.0)
    bench.run(1.5)
    bench.shell.close()
    for minion in "abcd":
        bench.master.restart_minion(minion, heard=False)  # each would run the job again
    bench.store.fails_at, bench.store.trouble = "load", OSError(error, os.strerror(error))
    asked = {"do": "start", "spec": spec("abcd", "1", timeout=60.0, fun="state.apply").as_dict(), "again": True}
    bench.inbox.waiting.append(("again", asked))
    bench.start()
    bench.run(20)
    assert "again" not in bench.inbox.replies
    bench.store.trouble = None
    assert bench.run(10, lambda: "again" in bench.inbox.replies)
    assert bench.inbox.replies["again"][0] == "answer"
    bench.run(600)  # what a minion ran when it was restarted is lost
    counts = [len(minion.begun) for minion in bench.master.minions.values()]
    assert (bench.batch().finished is not None, max(counts)) == (True, 1)


def test_a_batch_that_cannot_be_written_down_is_not_answered_and_sends_nothing_until_it_can(bench, monkeypatch):
    with failing_syncs(monkeypatch):
        reply = bench.ask("start", spec=spec("ab", "1", fun="state.apply").as_dict())
        bench.run(60)
        assert (bench.inbox.replies, bench.master.jobs()) == ({}, [])
    assert bench.run(10, lambda: reply in bench.inbox.replies)
    assert bench.inbox.replies[reply][0] == "answer"
    assert bench.end().success


class Marking(FakeWorker):
    """A thread that says whether it is at work."""

    works = False

    async def call(self, function, *args):
        self.works = True
        try:
            return function(*args)
        finally:
            self.works = False


def test_what_is_published_is_on_the_disk_before_and_only_a_thread_waits_for_the_disk(tmp_path, monkeypatch):
    with ShellBench(tmp_path, "abcd") as bench:
        thread = Marking()
        bench.restart(disk_worker=thread)
        true, works, publish, durable = os.fsync, [], bench.master.publish, []

        def sync(handle):
            works.append(thread.works)
            true(handle)

        async def publishes(fun, arg, minions, *args, **more):
            durable.append(set(minions) <= set(bench.store.read(JID).flights))
            return await publish(fun, arg, minions, *args, **more)

        bench.master.publish = publishes
        monkeypatch.setattr(os, "fsync", sync)
        bench.begin("abcd", "2")
        assert bench.end().success
        assert (set(durable), set(works)) == ({True}, {True})
