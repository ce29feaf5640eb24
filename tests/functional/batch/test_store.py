"""The files of batches: what a damaged one does to the others, and what Salt 3008 is shown."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import time

import pytest
import salt.payload

from saltext.jobs.core.batch.store import BatchStore, journal_name
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import StateError
from tests.database import age
from tests.faults import no_more_files
from tests.unit.batch.bench import Bench

JID = "20260516101112131415"


@pytest.fixture
def opts(tmp_path):
    return {"cachedir": str(tmp_path), "hash_type": "sha256"}


@pytest.fixture
def store(opts):
    return BatchStore(opts)


def write(store, bench, jid=JID):
    journal = store.new_journal(jid)
    journal.rewrite(bench.first)
    for record in bench.journal:
        journal.append(record)
    journal.sync()
    return journal


def test_a_batch_is_read_as_it_is_at_this_moment(store):
    bench = Bench("abcd", "2")
    journal = write(store, bench)
    assert len(store.read(JID).flights) == 2
    bench.sent()
    bench.returns("a")
    for record in bench.journal[1:]:
        journal.append(record)
    journal.sync()
    assert store.read(JID).snapshot() == bench.batch.snapshot()


def test_an_ended_batch_is_found_too(store):
    write(store, Bench("ab", "2"))
    store.end(JID)
    assert (store.open_jids(), store.ended_jids()) == ([], [JID])
    assert store.read(JID).spec.jid == JID


@pytest.mark.parametrize("jid", ["none", "../../etc/passwd", "", ".", "a/b", "a\0b"])
def test_a_jid_without_a_batch_reads_as_none(store, jid):
    assert store.read(jid) is None
    assert store.read_native(jid) is None


@pytest.mark.parametrize("record", [["Fact", 1.0], ["Returned"], ["Returned", "late", "a", 0], ["Probed", 1.0, 5]])
def test_a_journal_with_an_invalid_record_is_an_error(store, record):
    journal = write(store, Bench("ab", "2"))
    journal.append(record)
    journal.sync()
    with pytest.raises(StateError, match="does not hold a batch"):
        store.read(JID)


def test_a_journal_without_a_batch_is_an_error(store):
    store.new_journal(JID).rewrite({"some": "thing"})
    with pytest.raises(StateError, match="does not hold a batch"):
        store.read(JID)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"created": "late"},
        {"last_progress": None},
        {"spec": {}},
        {"record": 7},
        {"inflight": {"flights": {"a": []}}},
        {"waiting": 5},
    ],
)
def test_a_journal_whose_snapshot_has_a_field_of_a_wrong_type_is_an_error(store, nonsense):
    store.new_journal(JID).rewrite({**Bench("ab", "2").first, **nonsense})
    with pytest.raises(StateError, match="does not hold a batch"):
        store.read(JID)


def test_a_journal_that_cannot_be_read_at_this_moment_does_not_count_as_damaged(store):
    write(store, Bench("ab", "2"))

    def read():
        with pytest.raises(OSError, match="cannot be used"):
            store.open(JID)
        with pytest.raises(StateError, match="cannot be read"):
            store.read(JID)
        return True

    with no_more_files(), concurrent.futures.ThreadPoolExecutor() as pool:  # a new thread has to open the database
        assert pool.submit(read).result()
    assert store.open(JID)[0].spec.jid == JID


@pytest.mark.parametrize("content", [b"", b"\xc1", salt.payload.dumps({"a": 1})])
def test_a_damaged_index_of_salts_own_manager_counts_as_empty(store, opts, content):
    pathlib.Path(opts["cachedir"], "batch_active.p").write_bytes(content)
    assert store.native_jids() == []


def test_invalid_jids_in_the_index_of_salts_own_manager_are_passed_over(store, opts):
    pathlib.Path(opts["cachedir"], "batch_active.p").write_bytes(salt.payload.dumps(["../x", 3, "1"]))
    assert store.native_jids() == ["1"]


def test_native_batches_are_listed_latest_first_and_broken_ones_and_ours_left_out(store):
    write(store, Bench("ab", "2"), "5")
    for number, jid in enumerate(["1", "2", "3", "4", "5"]):
        store.write_native(jid, {"jid": jid, "driver": "engine" if jid == "4" else "master"})
        os.utime(store.native_path(jid), (number, number))
    store.native_path("2").write_bytes(b"\xc1")
    assert [state["jid"] for state in store.native_states(5)] == ["3", "1"]
    assert [state["jid"] for state in store.native_states(1)] == ["3"]


def test_the_state_file_of_a_batch_of_ours_is_never_read_whatever_is_in_it(store):
    write(store, Bench("ab", "2"), "1")
    write(store, Bench("ab", "2"), "2")
    store.end("2")
    for jid in ("1", "2"):
        store.write_native(jid, {"jid": jid, "driver": "cli"})
        assert store.read_native(jid) is None
    store.write_native("3", {"jid": "3", "driver": "cli"})
    assert store.read_native("3")["driver"] == "cli"


def test_ended_batches_are_forgotten_when_they_are_old_enough(opts, store):
    for jid in ("1", "2"):
        write(store, Bench("ab", "2"), jid)
        store.write_native(jid, {"jid": jid})
        store.end(jid)
    age(opts, BATCH_MANAGER, journal_name("1", ended=True), 2000)
    store.forget_ended(before=time.time() - 1000)
    assert store.ended_jids() == ["2"]
    assert not store.native_path("1").parent.exists()


def test_other_files_in_the_directory_of_a_job_stay_when_its_batch_is_forgotten(opts, store):
    write(store, Bench("ab", "2"), "1")
    store.write_native("1", {"jid": "1"})
    load = store.native_path("1").with_name(".load.p")
    load.write_bytes(b"x")
    store.end("1")
    age(opts, BATCH_MANAGER, journal_name("1", ended=True), 2000)
    store.forget_ended(before=time.time() - 1000)
    assert os.listdir(load.parent) == [".load.p"]
