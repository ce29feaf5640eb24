"""
The data of version 0.1.0 on the disk are carried over whole.

``written_by_0_1_0`` was written by that version's own code, and ``said.json`` is what that version says of it: see
``write_0_1_0.py``.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.state import FORMAT
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions, summary
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RECORDER, JOB_RETRY
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.formats import FIELD
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.recorder.carry_over import carry_over
from saltext.jobs.core.recorder.choice import digest
from saltext.jobs.core.recorder.files import Aside, Progress, Seen
from saltext.jobs.core.recorder.record import unpacked
from saltext.jobs.core.recorder.spool import Reader, Spool
from saltext.jobs.core.retry.checkpoint import PAUSED, read_checkpoint
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import FileSite, site_of
from saltext.jobs.core.store.publication import Publication
from tests.batches import journal_path
from tests.functional.options import options_in
from tests.functional.upgrade.open_batches import go_on_with

LEFT = pathlib.Path(__file__).with_name("written_by_0_1_0")
SAID = json.loads((LEFT / "said.json").read_text())
NOW = SAID["now"]
OWED, DONE = "20261118110641000000", "20261118110641000001"


@pytest.fixture
def opts(tmp_path):
    shutil.copytree(LEFT, tmp_path / "cache")
    return options_in(tmp_path, master_job_cache="salt_cache")


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jid", SAID["batches"])
def test_a_batch_is_what_that_version_says_of_it(opts, jid):
    batch = BatchStore(opts).read(jid)
    said = SAID["batches"][jid]
    now = summary(batch, NOW + 100)
    # The time left is now estimated in another way, and only when an estimate makes sense.
    same = said["summary"].keys() - {"eta_seconds"}
    assert {name: now[name] for name in same} == {name: said["summary"][name] for name in same}
    told = {"state", "retcode"}  # that version told when an active minion was last seen to run
    for minion, record in minions(batch).items():
        before = said["minions"][minion]
        assert {name: record[name] for name in told} == {name: before[name] for name in told}
        assert record.get("seen", record["since"]) >= before["since"]
    assert minions(batch).keys() == said["minions"].keys()


def test_an_open_batch_goes_on_and_sends_to_no_minion_that_may_have_the_job(opts):
    store = BatchStore(opts)
    assert store.open_jids() == sorted(jid for jid, said in SAID["batches"].items() if not said["summary"]["finished"])
    go_on_with(store, SAID)


def test_a_batch_that_is_written_anew_has_its_format_in_it(opts):
    store = BatchStore(opts)
    path = journal_path(store, store.open_jids()[0])
    assert FIELD not in Journal(path).read().snapshot
    batch, opened = store.open(store.open_jids()[0])
    opened.rewrite(batch.snapshot())
    opened.close()
    assert Journal(path).read().snapshot[FIELD] == FORMAT
    assert Batch.restore(Journal(path).read().snapshot).snapshot() == batch.snapshot()


def test_a_request_made_while_no_engine_ran_is_there(opts):
    ((_, stop),) = Inbox(opts, BATCH_MANAGER).take()
    assert (stop["do"], stop["jid"]) == ("stop", min(SAID["batches"]))
    ((_, cancel),) = Inbox(opts, JOB_RETRY).take()
    assert (cancel["do"], cancel["minion"], cancel["jid"]) == ("cancel", "a", OWED)


# -- the retry queue ---------------------------------------------------------------------------------------------------


def test_the_queue_has_its_job_and_each_entry_with_what_has_become_of_it(opts):
    store = RetryStore(opts)
    ((jid, snapshot),) = store.snapshots("here_master")
    assert (jid, snapshot["load"]["fun"], snapshot["published_at"]) == (OWED, "test.ping", NOW)
    found = {entry.minion: entry for entry in store.entries(jid, snapshot)}
    said = dict(SAID["retry"])
    # A claim that was not written to the entry yet counts.
    assert (found["a"].state.value, found["a"].attempts) == ("claimed", 1)
    del said["a"]
    as_said = {
        name: {"state": one.state.value, "attempts": one.attempts, "reason": one.reason} for name, one in found.items()
    }
    assert {name: as_said[name] for name in said} == said
    assert found["b"].lost == 1
    assert store.set_aside() == []


def test_the_queue_begins_where_it_ended_and_stays_paused(opts):
    folder = site_of(opts).folder(JOB_RETRY)
    assert read_checkpoint(folder)["at"] == NOW
    assert folder.exists(PAUSED)
    assert RetryStore(opts).last_beat("here_master") == NOW


# -- the job cache -----------------------------------------------------------------------------------------------------


def test_jobs_are_published_by_this_master_and_have_their_returns(opts):
    cache, said = JobCache(opts), SAID["job_cache"]
    assert set(cache.published_since(0.0)) == {OWED, DONE}
    publication = cache.publication(DONE)
    assert isinstance(publication, Publication) and publication.added == {"e"}
    load = cache.published_load(DONE)
    assert publication.vouches_for(load)
    assert (load["fun"], load["Minions"]) == ("test.ping", said["minions"])
    assert cache.returned(DONE, said["minions"]) == dict.fromkeys(said["returned"], 0)


# -- the recorder ------------------------------------------------------------------------------------------------------


def test_undelivered_records_are_in_the_spool_and_delivered_ones_are_not_delivered_again(opts):
    folder = FileSite(opts).path(JOB_RECORDER)
    carry_over(folder)
    spool = Spool(folder / "spool", 1 << 20)
    found = Reader(spool, spool.first).read(100, 1 << 20)
    spool.close()
    assert [unpacked(payload).minion for _, payload in found] == ["", "a", "b", "c"]
    progress = Progress(folder / "returners" / "pgjsonb" / "progress", 0, 4)
    progress.close()
    assert progress.done == set(SAID["recorder"]["done"])
    known = Seen(folder / "seen", 86400.0).load()
    assert all(digest(DONE, minion) in known for minion in ("", "a", "b", "c"))


def test_a_refused_record_is_kept_with_the_reason_and_can_be_delivered_again(opts, caplog):
    folder = FileSite(opts).path(JOB_RECORDER)
    carry_over(folder)
    carry_over(folder)  # as after a crash
    aside = Aside(folder / "returners" / "pgjsonb" / "aside", 1 << 20)
    records = [unpacked(aside.payload(name)) for name in aside.names()]
    assert [record.minion for record in records] == SAID["recorder"]["set_aside"]
    assert {record.body["return"] for record in records} == {"\xe9\u4e16"}
    about = [aside.about(name) for name in aside.names()]
    assert [one["reason"] for one in about] == ["ValueError: it is too long", "ValueError: it is too odd"]
    assert [one["minion"] for one in about] == SAID["recorder"]["set_aside"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
