"""The files of batches: what a damaged one does to the others, and what Salt 3008 is shown."""

from __future__ import annotations

import os
import pathlib

import pytest
import salt.payload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch import summary as batch_summary
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.errors import StateError
from tests.batches import journal_path
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
    journal = Journal(journal_path(store, jid))
    journal.rewrite(bench.first)
    for record in bench.journal:
        journal.append(record)
    return journal


def test_a_batch_is_read_as_it_is_at_this_moment(store):
    bench = Bench("abcd", "2")
    journal = write(store, bench)
    assert len(store.read(JID).flights) == 2
    bench.sent()
    bench.returns("a")
    for record in bench.journal[1:]:
        journal.append(record)
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
    "record", [["Fact", 1.0], ["Returned"], "text", ["Returned", "late", "a", 0], ["Probed", 1.0, 5]]
)
def test_a_journal_with_an_invalid_record_is_an_error(store, record):
    write(store, Bench("ab", "2")).append(record)
    with pytest.raises(StateError, match="does not hold a batch"):
        store.read(JID)


def test_a_journal_without_a_batch_is_an_error(store):
    Journal(journal_path(store, JID)).rewrite({"some": "thing"})
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
    Journal(journal_path(store, JID)).rewrite({**Bench("ab", "2").first, **nonsense})
    with pytest.raises(StateError, match="does not hold a batch"):
        store.read(JID)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_however_a_journal_is_damaged_it_reads_as_an_error_or_as_the_batch_at_an_earlier_moment(store, data):
    bench = Bench("abcd", "2")
    bench.sent()
    bench.returns("a", retcode=2)
    bench.sent()
    bench.returns("b")
    write(store, bench).close()
    write(store, Bench("ab", "2"), "3").close()
    path = journal_path(store, JID)
    content = bytearray(path.read_bytes())
    first = data.draw(st.integers(0, len(content) - 1), "first byte")
    last = data.draw(st.integers(first, len(content)), "behind the last byte")
    how = data.draw(st.sampled_from(["cut", "zeroed", "flipped", "doubled", "removed"]), "how")
    piece = content[first:last]
    content[first : len(content) if how == "cut" else last] = {
        "cut": b"",
        "zeroed": bytes(len(piece)),
        "flipped": bytes(byte ^ 0xFF for byte in piece),
        "doubled": piece + piece,
        "removed": b"",
    }[how]
    path.write_bytes(bytes(content))
    try:
        batch = store.read(JID)
    except StateError as exc:
        assert str(path) in str(exc)
    else:
        assert batch_summary.summary(batch, bench.now)["total"] == len(batch_summary.minions(batch)) == 4
    assert len(store.read("3").flights) == 2
    assert store.open_jids() == [JID, "3"]


def test_a_journal_that_cannot_be_read_at_this_moment_does_not_count_as_damaged(store):
    write(store, Bench("ab", "2"))
    with no_more_files():
        with pytest.raises(OSError, match="Too many open files"):
            store.open(JID)
        with pytest.raises(StateError, match="cannot be read"):
            store.read(JID)
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


def test_ended_batches_are_forgotten_when_they_are_old_enough(store):
    for jid in ("1", "2"):
        write(store, Bench("ab", "2"), jid)
        store.write_native(jid, {"jid": jid})
        store.end(jid)
    os.utime(journal_path(store, "1", ended=True), (1000, 1000))
    store.forget_ended(before=2000)
    assert store.ended_jids() == ["2"]
    assert not store.native_path("1").parent.exists()


def test_other_files_in_the_directory_of_a_job_stay_when_its_batch_is_forgotten(store):
    write(store, Bench("ab", "2"), "1")
    store.write_native("1", {"jid": "1"})
    load = store.native_path("1").with_name(".load.p")
    load.write_bytes(b"x")
    store.end("1")
    os.utime(journal_path(store, "1", ended=True), (1000, 1000))
    store.forget_ended(before=2000)
    assert os.listdir(load.parent) == [".load.p"]
