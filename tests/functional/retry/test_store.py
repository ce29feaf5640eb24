"""The retry queue in the database of a site, in each of its forms."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.ledger import queue
from saltext.jobs.core.retry.entry import Key, Killed, Kind, State, Watched
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from saltext.jobs.core.sqlite.tables import SqliteTables
from tests.functional.retry.records import JID, changes, queue_of, record_of, snapshot_of
from tests.functional.site.conftest import form as form
from tests.functional.site.conftest import sites as sites


@pytest.fixture
def stores(sites):
    """The queue as two processes see it."""
    return [RetryStore(site) for site in sites]


def owed(store, **chosen):
    return [(entry.jid, entry.minion) for entry, _ in store.entries(**chosen)]


def queued(*places):
    """The records of jobs that are owed to minions."""
    jids = {jid: snapshot_of() for jid, _ in places}
    return changes(jids, {(minion, jid): record_of(minion, jid) for jid, minion in places})


def test_what_one_process_stores_another_finds(stores):
    places = [("Deploy", "b"), ("deploy", "a"), ("deploy", "A"), ("déploy", "web.example.com")]
    job = Watched(1000.0, {"c"}, {"d"}, {"e": Killed("root", 900.0)}, 900.0, {"c", "d", "e"})
    stores[0].write({**queued(*places), **changes(watched={"deploy": job.as_record()})})
    assert set(owed(stores[1])) == set(places)
    assert owed(stores[1], jid="deploy", minion="a") == [("deploy", "a")]
    assert {minion for _, minion in owed(stores[1], jid="deploy")} == {"a", "A"}
    assert owed(stores[1], minion="b") == [("Deploy", "b")]
    assert {job.load["fun"] for _, job in stores[1].entries()} == {"state.apply"}
    assert stores[1].watched(1e9)["deploy"].as_record() == job.as_record()


def test_what_is_removed_is_gone_and_the_rest_stays(stores, sites):
    stores[0].write(queued(("1", "a"), ("1", "b"), ("2", "a")))
    stores[0].write(changes({"2": None}, {("a", "1"): None, ("a", "2"): None}))
    assert owed(stores[1]) == [("1", "b")]
    assert queue.owed(sites[1], ["1", "2", "3"]) == {"1"}


def test_many_entries_are_each_found_once(stores):
    places = [(f"{number // 7:04}", f"m{number}") for number in range(4500)]
    stores[0].write(queued(*places))
    found = owed(stores[1])
    assert len(found) == 4500
    assert set(found) == set(places)


@pytest.mark.parametrize("record", [{"minion": "a"}, {**record_of("a"), "expires_at": float("nan")}, {"x": object()}])
def test_an_unreadable_entry_is_held_and_harms_no_other(stores, caplog, record):
    stores[0].write(queued((JID, "b")))
    stores[0].write(changes({}, {("a", JID): record}))
    found = {entry.minion: entry for entry, _ in stores[1].entries()}
    assert {name: entry.state for name, entry in found.items()} == {"a": State.HELD, "b": State.PENDING}
    assert "not known whether it was begun" in found["a"].reason
    assert f"The entry of a for job {JID} cannot be read" in caplog.text


@pytest.mark.parametrize("rubbish", [{}, {"load": 1, "published_at": 1.0}, {"load": {}, "published_at": float("inf")}])
def test_an_unreadable_record_of_a_job_harms_no_other(stores, caplog, rubbish):
    stores[0].write({**queued(("1", "a"), ("2", "a")), **changes({"2": rubbish}, watched={"1": rubbish})})
    assert owed(stores[1]) == [("1", "a")]
    assert stores[1].watched(1e9) == {}
    assert "Job 2 cannot be replayed" in caplog.text
    assert "The record of 1 cannot be read" in caplog.text


class Busy(SqliteTables):
    """An engine removes the only entry of a job just after another process has read the entries."""

    def read(self, query, values=()):
        found = super().read(query, values)
        if values[:1] == (Kind.ENTRY,):
            queue_of(self.opts).write(changes({JID: None}, {("a", JID): None}))
        return found


def test_an_entry_that_is_removed_while_another_process_reads_the_queue_is_not_there_and_damages_nothing(opts, caplog):
    queue_of(opts).write(queued((JID, "a")))
    assert (owed(RetryStore(Busy(opts))), caplog.text) == ([], "")


def test_how_a_delivered_job_ended_is_known_for_as_long_as_the_job_is_however_late_it_was_delivered(stores):
    now = time.time()
    ended = {"a": [(now - 60.0, "done", "")], "b": [(now - 7200.0, "done", "")], "c": []}
    stores[0].write({Key(Kind.DONE, JID, name): {"state": "done", "history": each} for name, each in ended.items()})
    stores[0].forget_done(now - 1e11)  # jobs are kept for ever
    assert set(stores[1].done(JID)) == set("abc")
    stores[0].forget_done(now - 3600.0)
    assert list(stores[1].done(JID)) == ["a"]
    stores[0].forget_done(now)
    assert stores[1].done(JID) == {}


def test_a_database_that_cannot_be_used_is_not_taken_for_an_empty_queue(tmp_path):
    (tmp_path / "saltext_jobs").write_text("no directory can be made here")
    store = RetryStore(site_of({"cachedir": str(tmp_path), "id": "a"}))
    with pytest.raises(OSError, match="saltext_jobs"):
        owed(store)
    with pytest.raises(OSError, match="saltext_jobs"):
        store.write(queued(("1", "a")))
