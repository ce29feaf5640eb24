"""
The data of version 0.2.0 are continued, although that version kept no log.

``written_by_0_2_0`` was written by that version's own code, and ``said.json`` is what that version says of it: see
``write_0_2_0.py``.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import time

import msgpack
import pytest

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions, summary
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.retry.checkpoint import read_checkpoint
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.functional.options import options_in
from tests.functional.retry.records import accept, load_of, returners
from tests.functional.retry.test_shell import Stage
from tests.functional.upgrade.open_batches import go_on_with

LEFT = pathlib.Path(__file__).with_name("written_by_0_2_0")
SAID = json.loads((LEFT / "said.json").read_text())
NOW = SAID["now"]
RUNNING, PAUSED, WAITING, TIMED, STOPPING, ENDED = sorted(SAID["batches"])
OWED, OPEN, CLOSED = (f"2026111914532000000{number}" for number in range(3))


@pytest.fixture
def opts(tmp_path):
    shutil.copytree(LEFT, tmp_path / "cache")
    return options_in(tmp_path, master_job_cache="salt_cache", cache="localfs")


def test_a_batch_is_what_that_version_says_of_it(opts):
    for jid, said in SAID["batches"].items():
        batch = BatchStore(opts).read(jid)
        now = summary(batch, NOW + 100)
        # Estimates are made in another way now, and a batch that waits for its time is not called paused.
        same = said["summary"].keys() - {"eta_seconds", "rate", "paused_reason", "state"}
        assert {name: now[name] for name in same} == {name: said["summary"][name] for name in same}
        found = minions(batch)
        for minion, record in said["minions"].items():
            assert (found[minion]["state"], found[minion]["retcode"]) == (record["state"], record["retcode"])


def test_why_a_batch_is_paused_is_known_by_its_code(opts):
    codes = {
        jid: summary(BatchStore(opts).read(jid), NOW + 100)["paused_by"] for jid in (RUNNING, PAUSED, WAITING, TIMED)
    }
    assert codes == {RUNNING: None, PAUSED: "operator", WAITING: "approval", TIMED: "window"}


def test_an_open_batch_goes_on_and_no_minion_that_may_have_the_job_is_sent_it_again(opts):
    store = BatchStore(opts)
    assert store.open_jids() == [RUNNING, PAUSED, WAITING, TIMED, STOPPING]
    go_on_with(store, SAID)


def test_a_request_made_while_no_engine_ran_is_there(opts):
    ((_, approve),) = Inbox(opts, BATCH_MANAGER).take()
    assert (approve["do"], approve["jid"], approve["stage"]) == ("approve", WAITING, 1)
    ((_, cancel),) = Inbox(opts, JOB_RETRY).take()
    assert (cancel["do"], cancel["minion"], cancel["jid"]) == ("cancel", "d", OWED)


def test_the_queue_has_its_job_and_each_entry_with_what_has_become_of_it(opts):
    store = RetryStore(opts)
    ((jid, snapshot),) = store.snapshots("here_master")
    assert (jid, snapshot["load"]["fun"], snapshot["published_at"]) == (OWED, "state.highstate", NOW)
    found = {entry.minion: entry for entry in store.entries(jid, snapshot)}
    said = dict(SAID["retry"])
    # A claim that was not written to the entry yet counts.
    assert (found["a"].state.value, found["a"].attempts) == ("claimed", 1)
    del said["a"]
    for minion, one in said.items():
        assert {name: getattr(found[minion], name) for name in ("state", "attempts", "reason")} == one
    assert (found["b"].lost, found["c"].tries, found["c"].next_at) == (1, 2, NOW + 60)
    assert found["e"].named
    assert (found["e"].asker.user, found["e"].asker.eauth, found["e"].asker.limited) == ("ann", "pam", True)
    note = store.notes("here_master")[OPEN]
    assert (note.begun, note.settled, note.killed) == ({"a"}, {"b"}, {"c": "ann"})
    assert store.set_aside() == []


def as_if_it_were_now(folder: pathlib.Path) -> None:
    """Move all times in the data, so that entries that live for a week are a minute old."""
    shift = time.time() - 60 - NOW

    def moved(value):
        if isinstance(value, dict):
            return {name: moved(one) for name, one in value.items()}
        if isinstance(value, list):
            return [moved(one) for one in value]
        return value + shift if isinstance(value, float) and abs(value - NOW) < 1e7 else value

    for path in (*folder.rglob("*.p"), folder / "saltext_jobs/job_retry/checkpoint"):
        path.write_bytes(msgpack.packb(moved(msgpack.unpackb(path.read_bytes(), strict_map_key=False))))


@pytest.fixture
def stage(opts):
    as_if_it_were_now(pathlib.Path(opts["cachedir"]))
    (pathlib.Path(opts["pki_dir"]) / "minions").mkdir(parents=True)
    accept(opts, "a", "b", "c", "d", "e", "f")
    made = Stage(opts, JobCache(opts), has_log=True)
    made.start()
    yield made
    made.close()


def test_the_queue_goes_on_after_a_look_at_the_job_cache_since_there_is_no_log(stage):
    assert {stage.state(minion, OWED) for minion in "ce"} == {State.PENDING}
    assert stage.state("b", OWED) in (State.SENT, State.HELD)  # may have begun it; the question to it is on its way
    stage.until(lambda: stage.state("d", OWED) is State.CANCELLED)  # as was asked for while no engine ran


def test_a_minion_that_missed_a_job_published_while_no_engine_ran_is_owed_it(stage):
    stage.until(lambda: stage.state("e", OPEN) is State.PENDING and stage.state("f", OPEN) is State.PENDING)
    assert stage.state("a", OPEN) in (State.RUNNING, State.HELD)  # has begun it
    assert stage.state("b", OPEN) is None  # was settled
    assert stage.state("d", OPEN) is None  # has returned it


def test_a_minion_whose_job_an_operator_killed_does_not_get_it(stage):
    stage.until(lambda: stage.state("f", OPEN) is State.PENDING)
    assert stage.state("c", OPEN) in (None, State.CANCELLED)


def test_from_the_first_publish_on_the_checkpoint_is_a_place_in_the_log(stage):
    folder, jid = site_of(stage.opts).folder(JOB_RETRY), "20261119145330000000"
    returners(stage.opts)["salt_cache.save_load"](jid, load_of(jid=jid), ["a"])
    stage.until(lambda: jid in stage.shell.machine.capture.open)
    stage.take_requests()
    stage.until(lambda: read_checkpoint(folder)["positions"])
