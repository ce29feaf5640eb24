"""The retry queue on disk."""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import os
import pathlib
import sqlite3
import types
import zlib

import pytest
import salt.cache
import salt.config
import salt.loader

from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.store import CLAIMS, JOBS, RetryStore
from saltext.jobs.core.retry.verbs import read_queue
from tests.faults import full_disk
from tests.functional.cache_servers import DRIVERS, driver_options
from tests.functional.retry.records import JID, changes, record_of, snapshot_of


@pytest.fixture(params=DRIVERS)
def any_opts(request, opts, tmp_path, cache_servers):
    """A master's options with each of the drivers."""
    (tmp_path / "driver").mkdir()
    tag = zlib.crc32(request.node.name.encode()) % 10**6
    return {**opts, **driver_options(request.param, cache_servers, tmp_path / "driver", tag)}


@pytest.fixture
def any_store(any_opts):
    return RetryStore(any_opts)


def test_stored_records_are_found_by_another_process_on_every_driver(any_store, any_opts):
    names = ("a", "B", "b", "web.example.com")
    any_store.write(changes({JID: snapshot_of(*names)}, {(name, JID): record_of(name) for name in names}))
    again = RetryStore(any_opts)
    found = dict(again.snapshots())
    assert list(found) == [JID]
    assert {entry.minion: entry.state for entry in again.entries(JID, found[JID])} == dict.fromkeys(
        names, State.PENDING
    )


def test_jids_that_look_alike_are_jobs_of_their_own_on_every_driver(any_store):
    jids = ("deploy", "Deploy", "déploy", "_deploy", "a?b=c")
    any_store.write(changes({jid: snapshot_of("a") for jid in jids}, {("a", jid): record_of("a") for jid in jids}))
    any_store.write(changes({"Deploy": None}, {("a", "Deploy"): None}))
    found = dict(any_store.snapshots())
    assert set(found) == {"deploy", "déploy", "_deploy", "a?b=c"}
    assert all([entry.jid for entry in any_store.entries(jid, found[jid])] == [jid] for jid in found)


def test_removed_records_are_gone_on_every_driver(any_store):
    any_store.write(changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    any_store.write(changes({}, {("a", JID): None}))
    assert [entry.minion for entry in any_store.entries(JID, any_store.snapshot(JID))] == ["b"]
    any_store.write(changes({JID: None}, {("b", JID): None}))
    assert list(any_store.snapshots()) == []


def test_a_claim_counts_until_the_entry_says_something_newer(any_store):
    any_store.write(changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    any_store.write(changes(claims={JID: {"a": 200.0}}))

    def states():
        found = any_store.entries(JID, any_store.snapshot(JID))
        return {entry.minion: (entry.state, entry.attempts) for entry in found}

    assert states() == {"a": (State.CLAIMED, 1), "b": (State.PENDING, 0)}
    newer = Entry.from_record("a", JID, record_of("a"))
    newer.move(State.HELD, 300.0, "was begun")
    any_store.write(changes({}, {("a", JID): newer.as_record()}))
    assert states() == {"a": (State.HELD, 0), "b": (State.PENDING, 0)}
    any_store.write(changes({JID: None}, {("a", JID): None, ("b", JID): None}))
    any_store.write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    assert states() == {"a": (State.PENDING, 0)}  # nothing is left of the claim


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells which file it is")
def test_a_claim_is_on_the_disk_when_it_is_written_so_that_a_power_cut_sends_nothing_again(opts, monkeypatch):
    synced, sync = [], os.fsync

    def note(number):
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    RetryStore(opts).write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    assert synced == []  # no wait for what the job cache and the minions can tell again
    RetryStore(opts).write(changes(claims={JID: {"a": 200.0}}))
    assert all(CLAIMS in path for path in synced)
    assert {os.path.isdir(path) for path in synced} == {True, False}  # the file, and its name


def test_entries_of_other_masters_are_left_alone(opts):
    store = RetryStore(opts)
    store.write(changes({"1": snapshot_of("a"), "2": snapshot_of("a", owner="other_master")}))
    assert [jid for jid, _ in store.snapshots("here_master")] == ["1"]


@pytest.mark.parametrize("rubbish", [{"state": "x"}, ["list"], "text", {"minion": "b"}])
def test_a_corrupt_entry_is_held_with_the_reason_and_harms_no_other(opts, rubbish, caplog):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a", "b")}, {("b", JID): record_of("b")}))
    salt.cache.Cache(opts).store("job_retry/queue/a", JID, rubbish)
    with caplog.at_level(logging.ERROR):
        states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}
    assert "entry of a" in caplog.text


@pytest.mark.parametrize("name", ["queued_at", "expires_at", "sent_at", "next_at", "attempts", "lost"])
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_an_entry_with_an_invalid_number_is_held_and_harms_no_other(opts, name, number):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a", "b")}, {("a", JID): {**record_of("a"), name: number}}))
    store.write(changes(entries={("b", JID): record_of("b")}))
    states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}


def test_a_claim_with_an_invalid_time_does_not_count(opts):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}, {JID: {"a": float("inf")}}))
    assert [entry.state for entry in store.entries(JID, store.snapshot(JID))] == [State.PENDING]


def test_a_snapshot_with_an_invalid_time_is_set_aside_and_harms_no_other(opts):
    store = RetryStore(opts)
    store.write(changes({"1": {**snapshot_of("a"), "published_at": float("nan")}, "2": snapshot_of("a")}))
    assert [jid for jid, _ in store.snapshots()] == ["2"]


def test_a_file_that_cannot_be_decoded_is_held_with_the_reason(opts):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    (pathlib.Path(opts["cachedir"]) / "job_retry/queue/a" / f"{JID}.p").write_bytes(b"\xc1\xff garbage")
    states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}


class Flaky(LocalBanks):
    """Banks whose records can be read only after so many failures."""

    def __init__(self, cachedir, times, error):
        super().__init__(cachedir)
        self.left, self.error = collections.defaultdict(lambda: times), error

    def fetch(self, bank, key, default=None):
        self.left[bank, key] -= 1
        if self.left[bank, key] >= 0:
            raise self.error
        return super().fetch(bank, key, default)


def read_as_an_engine_does(store, times):
    """Read the queue until that succeeds. Returns what was found, and how often it was tried."""
    ports = types.SimpleNamespace(store=store)
    for tried in range(times):
        try:
            return *read_queue(ports, "here_master"), store.notes("here_master"), tried
        except StateError:
            continue
    raise AssertionError(f"nothing could be read in {times} tries")


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("redis"), OSError(errno.EMFILE, "too many files"), sqlite3.OperationalError("locked")],
)
def test_a_record_that_cannot_be_read_for_a_moment_is_read_again_and_not_set_aside(opts, error):
    note = Note(1e10, {"b"})
    owned = {("here_master", JID): note.as_record()}
    RetryStore(opts).write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}, notes=owned))
    RetryStore(opts).write(changes(claims={JID: {"a": 1e9}}))
    banks = Flaky(opts["cachedir"], 3, error)
    jobs, entries, notes, _ = read_as_an_engine_does(RetryStore(opts, open_banks=lambda: banks), 20)
    assert jobs.keys() == notes.keys() == {JID}
    assert [(entry.minion, entry.sent_at) for entry in entries] == [("a", 1e9)]
    assert not RetryStore(opts).set_aside()


def test_a_record_that_can_never_be_read_though_others_can_harms_no_other(opts):
    other = "20260516101112131416"
    RetryStore(opts).write(
        changes({jid: snapshot_of("a") for jid in (JID, other)}, {("a", other): record_of("a", other)})
    )
    banks = Flaky(opts["cachedir"], 0, RuntimeError("nobody knows what this driver means"))
    banks.left[JOBS, JID] = 1000
    jobs, entries, *_ = read_as_an_engine_does(RetryStore(opts, open_banks=lambda: banks), 20)
    assert jobs.keys() == {other} == {entry.jid for entry in entries}


class Ending(LocalBanks):
    """Banks that take so many changes and no more."""

    def __init__(self, cachedir, most):
        super().__init__(cachedir)
        self.most = most

    def _counts(self):
        self.most -= 1
        if self.most < 0:
            raise ConnectionError("the server is gone")

    def store(self, *args):
        self._counts()
        super().store(*args)

    def flush(self, *args):
        self._counts()
        super().flush(*args)


@pytest.mark.parametrize("most", range(4))
@pytest.mark.parametrize("comes", [True, False])
def test_wherever_a_write_ends_an_entry_that_comes_or_goes_or_its_note_is_there(opts, most, comes):
    entry, note = {("a", JID): record_of("a")}, {("here_master", JID): Note(1e10, {"a"}).as_record()}
    before, after = (changes(notes=note), changes(entries=entry, notes=dict.fromkeys(note)))
    if not comes:
        before, after = (changes(entries=entry), changes(entries=dict.fromkeys(entry), notes=note))
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a")}))
    store.write(before)
    with contextlib.suppress(StateError):
        RetryStore(opts, open_banks=lambda: Ending(opts["cachedir"], most)).write(after)
    entries = list(store.entries(JID, store.snapshot(JID)))
    assert entries or store.notes("here_master")


def test_a_corrupt_snapshot_is_set_aside_and_harms_no_other(opts, caplog):
    store = RetryStore(opts)
    store.write(changes({"1": snapshot_of("a"), "2": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert salt.cache.Cache(opts).list("job_retry/corrupt") == ["job_retry.jobs.1"]
    assert salt.loader.runner(opts)["job_retry.stats"]()["set_aside"] == ["job_retry.jobs.1"]


@pytest.mark.parametrize("rubbish", [["list"], "text", 7, {"owner": 7}, {"minions": None}])
def test_a_corrupt_snapshot_that_is_asked_for_by_its_jid_is_set_aside_and_counts_as_missing(opts, rubbish, caplog):
    salt.cache.Cache(opts).store("job_retry/jobs", JID, rubbish)
    with caplog.at_level(logging.ERROR):
        assert RetryStore(opts).snapshot(JID) == {}
    assert JID in caplog.text
    assert len(RetryStore(opts).set_aside()) == 1


def test_a_runner_changes_nothing_when_it_reads(opts):
    RetryStore(opts).write(changes({"1": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert list(RetryStore(opts, read_only=True).snapshots()) == []
    assert salt.cache.Cache(opts).fetch("job_retry/jobs", "1") == {"owner": 7}


def test_files_are_for_the_masters_user_only(opts):
    RetryStore(opts).write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    found = list((pathlib.Path(opts["cachedir"]) / "job_retry").rglob("*.p"))
    assert len(found) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)


def test_a_removed_queue_leaves_no_directory(opts):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    store.write(changes({JID: None}, {("a", JID): None}))
    assert not (pathlib.Path(opts["cachedir"]) / "job_retry/queue/a").exists()


def test_a_store_that_is_away_is_reported_as_such(opts):
    store = RetryStore({**opts, "cache": "redis", "cache.redis.host": "127.0.0.1", "cache.redis.port": 1})
    with pytest.raises(StateError):
        list(store.snapshots())


def test_notes_are_found_by_another_process_on_every_driver(any_store, any_opts):
    note = Note(1e10, {"a", "b"}, {"c"})
    any_store.write(changes(notes={("here_master", JID): note.as_record(), ("there_master", JID): note.as_record()}))
    found = RetryStore(any_opts).notes("here_master")
    assert {jid: one.as_record() for jid, one in found.items()} == {JID: note.as_record()}
    assert any_store.notes("other_master") == {}
    any_store.write(changes(notes={("here_master", JID): None}))
    assert any_store.notes("here_master") == {}
    assert set(any_store.notes("there_master")) == {JID}


@pytest.mark.parametrize("rubbish", [{"begun": []}, "text", {"until": "x"}])
def test_a_corrupt_note_harms_no_other(opts, rubbish, caplog):
    store = RetryStore(opts)
    store.write(changes(notes={("here_master", JID): Note(1e10, {"a"}).as_record()}))
    salt.cache.Cache(opts).store("job_retry/notes/here_master", "1", rubbish)
    assert list(store.notes("here_master")) == [JID]
    assert "set aside" in caplog.text


def test_a_job_with_a_value_that_the_driver_refuses_keeps_no_other_from_being_stored(opts):
    store, long = RetryStore(opts), "9" * 254
    both = changes(
        {long: snapshot_of("a"), JID: snapshot_of("a")}, {("a", long): record_of("a", long), ("a", JID): record_of("a")}
    )
    assert list(store.write(both)) == [long]
    assert [entry.jid for entry in store.entries(JID, store.snapshot(JID))] == [JID]


def test_a_disk_without_room_for_a_record_is_full_and_refuses_no_job(opts):
    store, big = RetryStore(opts), snapshot_of(*(f"minion{number}" for number in range(200)))
    store.write(changes({"1": snapshot_of("a")}))
    with full_disk(most=1000), pytest.raises(StateError):  # which a small record still finds room on
        store.write(changes({JID: big}))
    assert store.write(changes({JID: big})) == store.refused() == {}
    assert store.snapshot(JID) == big


def test_an_obstacle_to_one_record_keeps_no_other_from_being_written(opts):
    store = RetryStore(opts)
    (pathlib.Path(opts["cachedir"]) / JOBS / f"{JID}.p").mkdir(parents=True)
    other = "20260516101112131416"
    refused = store.write(changes({JID: snapshot_of("a"), other: snapshot_of("a")}))
    assert refused.keys() == {JID}
    assert dict(store.snapshots()).keys() == {other}


def test_a_record_that_others_hold_in_postgresql_is_written_once_they_let_go(opts, cache_servers, tmp_path):
    (tmp_path / "driver").mkdir()
    settings = {**driver_options("postgresql", cache_servers, tmp_path / "driver", 909), "postgresql.timeout": 1}
    store = RetryStore({**opts, **settings})
    store.write(changes({JID: snapshot_of("a")}))
    import psycopg  # an extra

    place = {"host": "127.0.0.1", "port": settings["postgresql.port"], "user": settings["postgresql.user"]}
    with psycopg.connect(**place, dbname=settings["postgresql.db"]) as other:
        other.execute("SELECT 1 FROM salt_cache WHERE key = %s FOR UPDATE", (JID,))
        with pytest.raises(StateError, match="look at its load, its locks"):
            store.write(changes({JID: snapshot_of("a", "b")}))
    assert store.write(changes({JID: snapshot_of("a", "b")})) == store.refused() == {}
    assert store.snapshot(JID)["minions"] == ["a", "b"]


def test_a_value_that_no_driver_can_store_is_refused_on_every_driver(any_store):
    strange = {**snapshot_of("a"), "load": {"arg": [object()]}}
    assert list(any_store.write(changes({"1": strange, JID: snapshot_of("a")}))) == ["1"]
    assert list(dict(any_store.snapshots())) == [JID]
