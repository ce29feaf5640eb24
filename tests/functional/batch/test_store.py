"""The rows and files of batches: what a damaged one does to the others, and what Salt 3008 is shown."""

from __future__ import annotations

import datetime
import os
import time

import pytest
import salt.payload

from saltext.jobs.core.batch.facts import Published
from saltext.jobs.core.batch.store import BatchStore, path_of
from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.site import site_of
from tests.database import change_batch
from tests.faults import no_more_files
from tests.unit.batch.bench import Bench

JID = "20260516101112131415"


@pytest.fixture
def opts(tmp_path):
    return {"cachedir": str(tmp_path), "hash_type": "sha256"}


@pytest.fixture
def store(opts):
    return BatchStore(opts)


def test_whatever_a_job_has_in_its_arguments_a_minion_returns_and_a_reason_says_is_kept(store):
    bench = Bench("ab", "2", arg=(datetime.datetime(2026, 5, 16, 10, 11),))
    bench.tell(Published(failure="no \udcff text", certain=True))
    bench.batch.halted = "no \udcff text"
    bench.returns("a", retcode=2**70)
    bench.keep(store)
    assert store.read(JID).members["a"].retcode == 2**70
    assert store.read(JID).spec.arg == (datetime.datetime(2026, 5, 16, 10, 11),)
    assert store.read(JID).halted == "no \udcff text"


@pytest.mark.parametrize("jid", ["none", "../../etc/passwd", "", ".", "a/b", "a\0b"])
def test_a_jid_without_a_batch_reads_as_none(store, jid):
    assert store.read(jid) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"spec": b"\0"},
        {"spec": salt.payload.dumps({})},
        {"body": b""},
        {"body": b"\xc1"},
        {"body": salt.payload.dumps({"created": 1.0})},
        {"minion": b"\0"},
        {"minion": salt.payload.dumps(["late", 0, 0, 0, 0, 0, 0])},
    ],
    ids=str,
)
def test_rows_that_hold_no_batch_are_an_error(store, opts, damage):
    Bench("ab", "2").keep(store)
    change_batch(opts, JID, **damage)
    with pytest.raises(StateError, match=f"batch {JID} in .* cannot be read"):
        store.read(JID)


def test_what_an_earlier_version_has_not_written_of_a_batch_has_its_default(store, opts):
    bench = Bench("ab", "2")
    bench.keep(store)
    known = {name: value for name, value in bench.spec.as_dict().items() if name not in ("batch_wait", "approve_by")}
    change_batch(opts, JID, spec=salt.payload.dumps(known))
    assert store.read(JID).spec == bench.spec


def test_a_batch_that_cannot_be_read_at_this_moment_does_not_count_as_damaged(opts, store):
    Bench("ab", "2").keep(store)
    site_of(opts).database.close()
    with no_more_files(), pytest.raises(OSError, match="cannot be used"):
        store.read(JID)
    assert store.read(JID).spec.jid == JID


def test_ended_batches_are_forgotten_when_they_are_old_enough_and_other_files_of_their_jobs_stay(opts, store):
    for jid in ("1", "2", "3"):
        Bench("ab", "2", jid=jid).keep(store, ended=True)
        files.write_atomic(path_of(opts, jid), salt.payload.dumps({"jid": jid}))
    load = path_of(opts, "3").with_name(".load.p")
    load.write_bytes(b"x")
    for jid in ("1", "3"):
        change_batch(opts, jid, at=time.time() - 2000)
    store.forget(Kind.ENDED, before=time.time() - 1000)
    assert store.jids(*Kind) == ["2"]
    assert not path_of(opts, "1").parent.exists()
    assert os.listdir(load.parent) == [".load.p"]
