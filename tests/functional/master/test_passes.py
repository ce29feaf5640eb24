"""Passes: what an engine names in place of a jid, and who may publish under the jid of a batch."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.master.passes import VALID, pass_for, redeem
from tests.leading import leading, lock_of
from tests.unit.batch.bench import Bench

JID = "20260516120000000000"
REFUSED = (None, "")


@pytest.fixture
def opts(tmp_path):
    (tmp_path / ".root_key").write_text("the key of this start of the master")
    return {"cachedir": str(tmp_path), "user": "root", "master_job_cache": "salt_cache", "id": "m"}


@pytest.fixture(params=[False, True], ids=["open", "ended"])
def batch(request, opts):
    """A batch that this master has."""
    Bench("a", jid=JID).keep(BatchStore(opts), ended=request.param)


def test_every_publish_may_use_a_jid_that_is_no_batch(opts):
    assert redeem(opts, JID) == (JID, "")
    assert redeem(opts, 20260516) == (20260516, "")
    assert redeem(opts, "../escape") == ("../escape", ""), "which is refused elsewhere, where all jids are"


def test_only_a_publish_with_a_pass_may_use_the_jid_of_a_batch(opts, batch):
    assert redeem(opts, JID) == REFUSED
    assert redeem(opts, pass_for(opts, JID, "batch_manager")) == (JID, "batch_manager")


@pytest.mark.parametrize("form", [JID.encode(), int(JID)])
def test_the_jid_of_a_batch_is_the_same_in_each_form_that_a_job_cache_takes(opts, batch, form):
    assert redeem(opts, form) == REFUSED


def test_a_pass_cannot_be_made_without_the_master_s_key(opts, batch, tmp_path):
    passed = pass_for(opts, JID, "job_retry")
    jid, origin, epoch, until, seal = passed.split("~")
    forged = [
        f"{jid}~{origin}~{epoch}~{until}~{'0' * 64}",
        f"{jid}~{origin}~{epoch}~{int(until) + 1}~{seal}",
        f"{jid}~batch_manager~{epoch}~{until}~{seal}",
        f"20260516120000000001~{origin}~{epoch}~{until}~{seal}",
        f"{jid}~{origin}~{int(epoch) + 1}~{until}~{seal}",
        passed.upper(),
        passed + "0",
    ]
    assert [redeem(opts, each) for each in forged[:5]] == [REFUSED] * 5
    assert JID not in [redeem(opts, each)[0] for each in forged]
    (tmp_path / ".root_key").write_text("that of the next start")
    assert redeem(opts, passed) == REFUSED
    (tmp_path / ".root_key").unlink()
    assert redeem(opts, passed) == REFUSED


def test_a_pass_is_valid_for_a_short_time(opts, batch, tmp_path):
    """A pass seen on the bus is of no use later: its time is sealed."""
    soon = f"{time.monotonic() + VALID:.0f}"
    assert abs(int(pass_for(opts, JID, "job_retry").split("~")[3]) - int(soon)) <= 1
    assert redeem(opts, pass_for(opts, JID, "job_retry", now=time.monotonic() - VALID - 2)) == REFUSED


def test_with_another_job_cache_the_pass_is_the_jid_itself(opts):
    assert pass_for({**opts, "master_job_cache": "local_cache"}, JID, "job_retry") == JID


def test_an_engine_publishes_as_long_as_it_leads(opts):
    with leading(opts, "batch_manager") as lease:
        passed = pass_for(opts, JID, "batch_manager", lease.epoch)
        assert redeem(opts, passed) == (JID, "batch_manager")
    assert redeem(opts, passed) == (JID, "batch_manager"), "nobody has taken over"
    with leading({**opts, "id": "another"}, "batch_manager"):
        assert redeem(opts, passed) == (None, "batch_manager")


def test_an_engine_whose_lock_was_removed_publishes_nothing(opts):
    with leading(opts, "job_retry") as lease:
        passed = pass_for(opts, JID, "job_retry", lease.epoch)
        lock_of(opts, "job_retry").unlink()
        assert redeem(opts, passed) == (None, "job_retry")
