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


@pytest.mark.parametrize(
    ("changed", "records"),
    [
        (None, []),
        *(({}, [record]) for record in (["Fact", 1.0], ["Returned", "late", "a", 0], ["Probed", 1.0, 5])),
        *((change, []) for change in ({"created": "late"}, {"spec": {}}, {"inflight": {"flights": {"a": []}}})),
    ],
)
def test_a_journal_that_holds_no_batch_is_an_error(store, changed, records):
    bench, journal = Bench("ab", "2"), store.new_journal(JID)
    journal.rewrite({"some": "thing"} if changed is None else {**bench.first, **changed})
    for record in records:
        journal.append(record)
    journal.sync()
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


@pytest.mark.parametrize(
    ("content", "jids"), [(b"", []), (b"\xc1", []), ({"a": 1}, []), (["../x", 3, "1"], ["1"])], ids=str
)
def test_what_is_damaged_or_invalid_in_the_index_of_salts_own_manager_is_passed_over(store, opts, content, jids):
    index = pathlib.Path(opts["cachedir"], "batch_active.p")
    index.write_bytes(content if isinstance(content, bytes) else salt.payload.dumps(content))
    assert store.native_jids() == jids


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


def test_ended_batches_are_forgotten_when_they_are_old_enough_and_other_files_of_their_jobs_stay(opts, store):
    for jid in ("1", "2", "3"):
        write(store, Bench("ab", "2"), jid)
        store.write_native(jid, {"jid": jid})
        store.end(jid)
    load = store.native_path("3").with_name(".load.p")
    load.write_bytes(b"x")
    for jid in ("1", "3"):
        age(opts, BATCH_MANAGER, journal_name(jid, ended=True), 2000)
    store.forget_ended(before=time.time() - 1000)
    assert store.ended_jids() == ["2"]
    assert not store.native_path("1").parent.exists()
    assert os.listdir(load.parent) == [".load.p"]
