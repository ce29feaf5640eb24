"""The start of the batch engine, and the end of a batch, while the disk fails or the engine is killed."""

from __future__ import annotations

import errno
import os

import pytest

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.journal import Journal
from tests.unit.batch.bench import spec
from tests.unit.batch.shell_bench import JID, ShellBench

OTHER = "20260516101112139999"


@pytest.fixture
def bench(tmp_path):
    with ShellBench(tmp_path) as bench:
        yield bench


def full_disk(*_args, **_more):
    raise OSError(errno.ENOSPC, "No space left on device")


def refuse(function, fails, error):
    """A function that raises as long as ``fails`` has something in it."""

    def refusing(*args, **more):
        if fails:
            raise error
        return function(*args, **more)

    return refusing


def test_a_full_disk_at_the_start_with_a_request_waiting_keeps_no_batch_from_going_on(bench, monkeypatch):
    bench.begin("abcd", "2", timeout=60.0)
    bench.run(0.5)
    bench.shell.close()
    full = [True]
    monkeypatch.setattr(
        files, "new_temporary", refuse(files.new_temporary, full, OSError(errno.ENOSPC, "No space left"))
    )
    bench.inbox.answer = refuse(bench.inbox.answer, full, OSError(errno.ENOSPC, "No space left"))
    bench.inbox.refuse = refuse(bench.inbox.refuse, full, OSError(errno.ENOSPC, "No space left"))
    bench.inbox.waiting.append(("r", {"do": "start", "spec": spec("ab", "1", jid=OTHER).as_dict()}))
    bench.start()
    bench.run(30)
    full.clear()
    assert bench.end().success is True
    assert OTHER not in bench.shell.live
    assert bench.store.open_jids() == []


@pytest.mark.parametrize("name", ["ended_jids", "open_jids", "open", "sweep", "forget_ended", "show_to_salt"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("a mistake")])
def test_whatever_fails_at_the_start_is_tried_again_and_keeps_nothing_else_from_its_turn(
    bench, monkeypatch, name, error
):
    bench.begin("ab", "1", timeout=60.0)
    bench.shell.close()
    fails = [True]
    monkeypatch.setattr(BatchStore, name, refuse(getattr(BatchStore, name), fails, error))
    bench.start()
    started = bench.ask("start", spec=spec("cd", "2", jid=OTHER, fun="state.apply").as_dict())
    bench.run(1, lambda: started in bench.inbox.replies)
    assert bench.end(jid=OTHER).success is True
    fails.clear()
    assert bench.end(seconds=60).success is True
    assert all(len(minion.begun) == 1 for minion in bench.master.minions.values())


def test_a_journal_that_cannot_be_opened_at_this_moment_is_not_set_aside(bench, monkeypatch):
    bench.begin("ab", "1", timeout=60.0)
    bench.shell.close()
    fails = [True]
    monkeypatch.setattr(
        BatchStore, "open", refuse(BatchStore.open, fails, OSError(errno.EMFILE, "Too many open files"))
    )
    bench.start()
    bench.run(20)
    assert bench.store.journal_path(JID).exists()
    fails.clear()
    assert bench.end(seconds=60).success is True


def test_a_damaged_journal_is_set_aside_and_the_others_go_on(bench):
    bench.begin("ab", "1", timeout=60.0)
    bench.begin("cd", "1", timeout=60.0, jid=OTHER)
    bench.shell.close()
    path = bench.store.journal_path(JID)
    path.write_bytes(b"\0" * 100)
    bench.start()
    assert bench.end(jid=OTHER).success is True
    assert path.with_name(path.name + ".corrupt").exists()


def test_what_a_killed_engine_left_unfinished_is_removed(bench):
    (bench.store.folder / f".{JID}.journal.x").write_bytes(b"half")
    bench.restart()
    assert os.listdir(bench.store.folder) == []


def test_a_batch_that_is_refused_leaves_nothing_that_could_run_later(bench, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_directory", full_disk)
        reply = bench.ask("start", spec=spec("ab", "1", fun="state.apply").as_dict())
        bench.run(1)
    kind, why = bench.inbox.replies[reply]
    assert (kind, "cannot be written down" in why) == ("refuse", True)
    bench.run(60)
    bench.restart()
    bench.run(60)
    assert bench.master.jobs() == []


def test_maintenance_during_the_last_sync_does_not_keep_the_end_from_being_announced(bench):
    with_maintenance = bench.shell._maintain
    synced = Journal.sync

    bench.begin("a", "1")

    def sync(journal):
        synced(journal)
        with_maintenance()

    Journal.sync = sync
    try:
        bench.end()
    finally:
        Journal.sync = synced
    assert bench.bus.kinds() == ["new", "complete"]


def test_a_batch_whose_closing_fails_is_closed_as_soon_as_that_can_be(bench, monkeypatch):
    fails = [True]
    monkeypatch.setattr(BatchStore, "end", refuse(BatchStore.end, fails, OSError(errno.ENOSPC, "No space left")))
    bench.begin("ab", "2")
    bench.run(60)
    assert bench.store.open_jids() == [JID]
    fails.clear()
    bench.end(seconds=10)
    assert bench.bus.kinds() == ["new", "complete"]


def test_a_batch_that_was_closed_but_not_renamed_when_the_engine_died_is_not_left_among_the_live_ones(
    bench, monkeypatch
):
    with monkeypatch.context() as killed:
        killed.setattr(BatchStore, "end", full_disk)
        bench.begin("ab", "2")
        bench.run(3)
        bench.shell.close()
    bench.start()
    bench.end(seconds=10)
    assert (bench.store.open_jids(), bench.store.ended_jids()) == ([], [JID])


def test_one_batch_that_cannot_be_looked_after_harms_no_other_when_events_were_lost(bench, monkeypatch):
    bench.begin("ab", "2", timeout=600.0)
    bench.begin("cd", "2", timeout=600.0, jid=OTHER)
    bench.run(0.5)
    bench.master.minions["c"].seconds = bench.master.minions["d"].seconds = 1.0
    bench.bus.deliver, deliver = lambda *_: None, bench.bus.deliver
    bench.run(5)  # all return, and no event tells of it
    bench.bus.deliver = deliver
    broken = bench.shell.live[JID]
    broken.batch = None
    bench.shell.on_gap()
    bench.run(1)
    assert OTHER in bench.shell.ended
