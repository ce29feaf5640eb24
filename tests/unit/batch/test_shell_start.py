"""The start of the batch engine, and the end of a batch, while the disk fails or the engine is killed."""

from __future__ import annotations

import errno
import os

import pytest

from saltext.jobs.core.batch.shell import LATE, MOST_WAITING
from saltext.jobs.core.batch.store import BatchStore, change_of, path_of
from tests.faults import failing_syncs, full_disk
from tests.unit.batch.bench import spec
from tests.unit.batch.shell_bench import JID, FakeMinion, FakeWorker, ShellBench, Slow

pytestmark = pytest.mark.usefixtures("both_ways")

OTHER = "20260516101112139999"


def _troubled(name):
    def method(self, *args, **more):
        if self.trouble is not None and self.fails_at == name:
            raise self.trouble
        return getattr(BatchStore, name)(self, *args, **more)

    return method


READS, STEPS = ["jids", "read"], ["sweep", "forget", "show_to_salt"]
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


def test_a_batch_with_which_the_engine_cannot_go_on_keeps_no_other_from_it(bench):
    bench.begin("ab", "1", timeout=60.0)
    bench.begin("cd", "1", jid=OTHER, timeout=60.0)
    bench.shell.live[JID].batch.pace.cooling = ["soon"]  # no version has written such a row
    bench.store.write([change_of(bench.batch())])
    bench.restart()
    assert bench.end(jid=OTHER).success
    assert bench.reply("stop", jid=OTHER) == ("answer", False)


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_repeated_start_does_not_begin_again_a_batch_that_cannot_be_read_at_this_moment(bench, error):
    bench.begin("abcd", "1", timeout=60.0)
    bench.run(1.5)
    bench.shell.close()
    for minion in "abcd":
        bench.master.restart_minion(minion, heard=False)  # each would run the job again
    bench.store.fails_at, bench.store.trouble = "read", OSError(error, os.strerror(error))
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


def test_a_full_disk_delays_a_hand_over_and_makes_no_minion_fail(bench):
    bench.master.minions["a"].seconds, bench.master.minions["b"].there = 20.0, False
    bench.begin("ab", "2", presence="ping", offline="queue", timeout=60.0, gather_job_timeout=2.0)
    assert bench.run(30, bench.times)
    bench.store.fails_at, bench.store.trouble = "write", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    bench.run(60)
    assert bench.queued == []
    bench.store.trouble = None
    bench.end()
    assert (bench.states(), bench.queued) == ({"a": "completed", "b": "queued"}, ["b"])


@pytest.mark.parametrize("seconds, is_noticed", [(12, True), (2, True), (0.1, False)])
def test_no_minion_runs_a_job_twice_because_the_database_was_set_aside_while_the_batch_ran(bench, seconds, is_noticed):
    for minion in bench.master.minions.values():
        minion.seconds = 9.0
    bench.begin("abcd", "1", timeout=60.0)
    bench.run(25.5)
    for end in ("", "-wal", "-shm"):
        os.rename(f"{bench.site.place}{end}", f"{bench.site.place}.damaged{end}")
    bench.run(seconds)
    for minion in bench.master.minions.values():
        minion.known.clear()  # it would run the job again
    bench.restart()
    bench.run(600)
    assert max(len(minion.begun) for minion in bench.master.minions.values()) == 1
    assert bench.batch().success if is_noticed else bench.batch() is None


def test_local_cache_keeps_the_job_of_a_batch_while_the_batch_is_under_way(bench):
    for minion in bench.master.minions.values():
        minion.seconds = 30.0
    bench.begin("abcd", "2", timeout=60.0)
    job = path_of(bench.opts, JID).with_name("jid")
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(JID)
    os.utime(job, (1, 1))
    bench.run(6, lambda: job.stat().st_mtime > 1)
    assert job.stat().st_mtime > 1
    bench.end()
    os.utime(job, (1, 1))
    bench.run(60)
    assert job.stat().st_mtime == 1


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


def test_a_user_with_limited_rights_leaves_few_batches_waiting_and_others_as_many_as_they_like(bench):
    bench.restart(disk_worker=Slow())

    def told(user, kind, *numbers):
        owner = {"kind": kind, "name": user, "backends": ["pam"], "at": 1.0}
        more = {"user": user, "owner": owner, "fun": "state.apply", "start_at": 1e12}
        asked = [bench.ask("start", spec=spec("a", "1", jid=str(number), **more).as_dict()) for number in numbers]
        assert bench.run(60.0, lambda: {*asked} <= bench.inbox.replies.keys())
        return [bench.inbox.replies[each] for each in asked]

    replies = told("anna", "password", *range(MOST_WAITING + 3))
    assert [kind for kind, _ in replies].count("answer") == MOST_WAITING
    assert replies[-1][0] == "refuse" and "anna has 20 batches that have sent nothing yet" in replies[-1][1]
    assert told("root", "master", 99)[0][0] == "answer"
    bench.ask("stop", jid="0", user="anna")
    bench.run(20)
    assert told("anna", "password", 100)[0][0] == "answer"


def test_two_retries_that_are_asked_for_at_once_are_one_but_on_other_minions(bench):
    bench.restart(disk_worker=Slow())
    asked = {
        jid: bench.ask("start", spec=spec(names, "1", jid=jid, parent=parent, fun="state.apply").as_dict())
        for jid, names, parent in (("11", "ab", JID), ("12", "bc", "a retry"), ("13", "d", JID))
    }
    bench.run(30.0)
    told = {jid: bench.inbox.replies[each] for jid, each in asked.items()}
    assert [kind for kind, _ in told.values()] == ["answer", "refuse", "answer"]
    assert told["12"][1] == "batch 11 has not ended this job on some of these minions"


def test_what_changes_while_a_slow_disk_is_written_to_is_written_soon_after(tmp_path):
    minions = [FakeMinion("a", seconds=1), FakeMinion("b", seconds=600), FakeMinion("c", seconds=1.5)]
    with ShellBench(tmp_path, minions) as bench:
        bench.restart(disk_worker=Slow())
        asked = bench.ask("start", spec=spec("abc", "3", fun="state.apply", timeout=500.0).as_dict())
        assert bench.run(60.0, lambda: asked in bench.inbox.replies)
        bench.run(30.0)
        assert sorted(bench.store.read(JID).outcomes) == ["a", "c"]


def test_a_batch_that_was_asked_for_long_ago_and_by_nobody_who_still_waits_is_not_started(bench):
    asked = {"do": "start", "spec": spec("a", "1", fun="state.apply").as_dict()}
    for seconds in (LATE / 2, LATE):
        bench.inbox.waiting.append((f"{int((bench.clock.now() - seconds) * 1e9):020d}-{seconds}", asked))
        bench.run(10.0)
        asked = {"do": "start", "spec": spec("b", "1", jid=OTHER).as_dict()}
    assert [kind for kind, _ in bench.inbox.replies.values()] == ["answer", "refuse"]
    assert bench.end().success and bench.batch(OTHER) is None


def test_a_batch_is_started_at_once_while_the_server_that_tells_the_rights_is_slow(bench):
    bench.restart(rights_worker=Slow())
    bench.begin("a", "1")
