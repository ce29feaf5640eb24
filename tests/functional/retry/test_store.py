"""The retry queue on disk."""

from __future__ import annotations

import collections
import contextlib
import logging
import sqlite3
import types
import zlib

import pytest
import salt.cache
import salt.config
import salt.loader

from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import JOBS, RetryStore
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


def test_entries_of_other_masters_are_left_alone(opts):
    store = RetryStore(opts)
    store.write(changes({"1": snapshot_of("a"), "2": snapshot_of("a", owner="other_master")}))
    assert [jid for jid, _ in store.snapshots("here_master")] == ["1"]


@pytest.mark.parametrize(
    "rubbish", [{"state": "x"}, "text", {"minion": "b"}, {**record_of("a"), "expires_at": float("nan")}]
)
def test_a_corrupt_entry_is_held_with_the_reason_and_harms_no_other(opts, rubbish, caplog):
    store = RetryStore(opts)
    store.write(changes({JID: snapshot_of("a", "b")}, {("b", JID): record_of("b")}))
    salt.cache.Cache(opts).store("job_retry/queue/a", JID, rubbish)
    with caplog.at_level(logging.ERROR):
        states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}
    assert "entry of a" in caplog.text


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

    def read(self, opts):
        """Read the queue until that succeeds, as an engine does."""
        ports = types.SimpleNamespace(store=RetryStore(opts, open_banks=lambda: self))
        for _ in range(20):
            with contextlib.suppress(StateError):
                return read_queue(ports, "here_master")
        raise AssertionError("nothing could be read")


@pytest.mark.parametrize("error", [ConnectionResetError("redis"), sqlite3.OperationalError("locked")])
def test_a_record_that_cannot_be_read_for_a_moment_is_read_again_and_not_set_aside(opts, error):
    RetryStore(opts).write(changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    jobs, entries = Flaky(opts["cachedir"], 3, error).read(opts)
    assert (jobs.keys(), [entry.minion for entry in entries]) == ({JID}, ["a"])
    assert not RetryStore(opts).set_aside()


def test_a_record_that_can_never_be_read_though_others_can_harms_no_other(opts):
    other = "20260516101112131416"
    RetryStore(opts).write(
        changes({jid: snapshot_of("a") for jid in (JID, other)}, {("a", other): record_of("a", other)})
    )
    banks = Flaky(opts["cachedir"], 0, RuntimeError("nobody knows what this driver means"))
    banks.left[JOBS, JID] = 1000
    jobs, entries = banks.read(opts)
    assert jobs.keys() == {other} == {entry.jid for entry in entries}


def test_a_corrupt_snapshot_is_set_aside_and_harms_no_other(opts, caplog):
    store = RetryStore(opts)
    store.write(changes({"1": snapshot_of("a"), "2": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert salt.cache.Cache(opts).list("job_retry/corrupt") == ["job_retry.jobs.1"]
    assert salt.loader.runner(opts)["job_retry.stats"]()["set_aside"] == ["job_retry.jobs.1"]


def test_a_runner_changes_nothing_when_it_reads(opts):
    RetryStore(opts).write(changes({"1": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert list(RetryStore(opts, read_only=True).snapshots()) == []
    assert salt.cache.Cache(opts).fetch("job_retry/jobs", "1") == {"owner": 7}


def test_a_disk_without_room_for_a_record_is_full_and_refuses_no_job(opts):
    store, big = RetryStore(opts), snapshot_of(*(f"minion{number}" for number in range(200)))
    store.write(changes({"1": snapshot_of("a")}))
    with full_disk(most=1000), pytest.raises(StateError):  # which a small record still finds room on
        store.write(changes({JID: big}))
    assert store.write(changes({JID: big})) == store.refused() == {}
    assert store.snapshot(JID) == big


def test_a_value_that_no_driver_can_store_is_refused_on_every_driver(any_store):
    strange = {**snapshot_of("a"), "load": {"arg": [object()]}}
    assert list(any_store.write(changes({"1": strange, JID: snapshot_of("a")}))) == ["1"]
    assert list(dict(any_store.snapshots())) == [JID]
