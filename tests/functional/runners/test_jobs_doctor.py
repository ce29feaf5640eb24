"""What an operator asks first: what does not work, of all that is configured or has open work."""

from __future__ import annotations

import os
import time

import pytest
import salt.config
import salt.loader
import salt.runner

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.findings import FAULT
from tests.found import said
from tests.functional.retry.records import JID, accept, changes, queue_of, record_of, snapshot_of
from tests.leading import leading, lock_of
from tests.unit.batch.bench import Bench


@pytest.fixture
def opts(opts, tmp_path):
    """A master of whose installation nothing is wrong, and that runs no engine."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "pki" / "minions").mkdir(parents=True)
    places = {"cachedir": str(tmp_path / "cache"), "pki_dir": str(tmp_path / "pki")}
    return {**opts, **places, "cache": "sqlite", "job_retry": True}


def examined(opts, **more):
    return salt.loader.runner({**opts, **more})["jobs_doctor.run"]()


def faults(found):
    told = said(found, FAULT)
    return [f"{it['part']}: {text}" if it["part"] else text for it, text in zip(found["findings"], told, strict=False)]


@pytest.mark.parametrize(("master_job_cache", "told"), [("salt_cache", "works"), ("local_cache", "not configured")])
def test_of_what_is_not_configured_and_has_no_work_nothing_is_said(opts, master_job_cache, told):
    salts_own = {"job_cache": salt.config.DEFAULT_MASTER_OPTS["job_cache"], "postgresql.host": "db"}
    found = examined(opts, job_retry=False, master_job_cache=master_job_cache, **salts_own)
    assert faults(found) == []
    engines = dict.fromkeys(("batch_manager", "job_retry", "job_recorder"), "not configured")
    assert found["parts"] == {"job_cache": told, **engines}


def test_advice_comes_last_and_once_and_leaves_the_exit_status_at_zero(opts):
    engines = [{BATCH_MANAGER: {}}, {JOB_RETRY: {}}]
    with leading(opts, BATCH_MANAGER), leading(opts, JOB_RETRY):
        found = examined(opts, engines=engines)
    assert faults(found) == []
    assert len([finding for finding in said(found) if "another's name" in finding]) == 1
    assert (found["parts"]["batch_manager"], found["parts"]["job_retry"]) == ("works", "works")


def test_a_configuration_that_the_master_has_not_read_and_users_who_may_not_read_the_file_are_advice(opts, tmp_path):
    (tmp_path / "pid").write_text("17")
    os.utime(tmp_path / "pid", (1, 1))
    more = {"pidfile": str(tmp_path / "pid"), "publisher_acl": {"anna": [".*"]}, "master_job_cache": "salt_cache"}
    with leading(opts, BATCH_MANAGER):
        told = " ".join(said(examined(opts, engines=[{BATCH_MANAGER: {}}], **more)))
    assert "was changed after the master had started" in told and "users of `publisher_acl` may not read" in told


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"engines": [{"batch_manger": {}}]}, "`engines:` names 'batch_manger', which is no engine: correct it to"),
        ({"engines": ["job_rety"]}, "`engines:` names 'job_rety'"),
        ({"job_recoder": {"ret": 1}}, "the master's configuration has 'job_recoder', which is no option: correct it"),
        ({"cache": "sqllite"}, "cache is 'sqllite': correct it to sqlite"),
        ({}, "job_retry: the master's configuration has `job_retry:`, but `engines:` does not name job_retry"),
        ({"job_notices": {"url": "http://x"}}, "job_recorder: the master's configuration has `job_notices:`, but"),
        ({"master_job_cache": "salt_cahce"}, "master_job_cache is 'salt_cahce': correct it to salt_cache"),
        ({"engines": [{BATCH_MANAGER: {}}]}, "batch_manager: no batch_manager engine runs"),
        ({"engines": [BATCH_MANAGER], BATCH_MANAGER: {"max_in_flight": 0}}, "batch_manager: the engine does not star"),
    ],
)
def test_what_is_misspelt_or_does_not_run_is_a_fault(opts, more, told):
    found = examined(opts, **more)
    assert any(fault.startswith(told) for fault in faults(found)), found


def test_open_work_without_an_engine_is_a_fault_whatever_is_configured(opts):
    queue_of(opts).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    Bench("abcd", "4", jid=JID).keep(BatchStore(opts))
    found = examined(opts)
    told = faults(found)
    assert not [advice for advice in said(found) if "if it is wanted" in advice], "the faults say more"
    is_open = "batch_manager: batches that have not ended: 1, and no batch_manager engine is configured: add it to "
    assert f"{is_open}`engines:` and restart the master" in told
    assert any(line.startswith("job_retry: jobs that are owed to minions: 1, and no job_retry engine") for line in told)
    parts = [fault.partition(":")[0] for fault in told if fault.startswith(("batch_manager:", "job_retry:"))]
    assert parts == sorted(parts), "the findings come in the order of the parts"


@pytest.mark.parametrize("before", ["localfs", "sqlite"])
def test_open_work_that_was_left_in_another_file_is_a_fault(opts, before):
    Bench("abcd", "4", jid=JID).keep(BatchStore({**opts, "cache": before}))
    queue_of({**opts, "cache": before}).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    told = faults(examined(opts, job_retry=False, cache="sqlite" if before == "localfs" else "localfs"))
    left = ["batches that have not ended: 1", "jobs that are owed to minions: 1"]
    assert [fault.partition(" in ")[0] for fault in told] == left


@pytest.mark.parametrize(
    ("typed", "told"),
    [("batch.list", ": 1 more in "), ("job_retry.list", ": 1 more in "), (f"batch.status {JID}", f"{JID} is in ")],
)
def test_what_was_left_in_another_file_is_said_to_be_there(config, capsys, typed, told):
    function, *words = typed.split()
    before = {**salt.config.master_config(str(config / "master")), "cache": "localfs", "fun": function, "arg": words}
    Bench("abcd", "4", jid=JID).keep(BatchStore(before))
    queue_of(before).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    for cache, times in {"localfs": 0, "sqlite": 1}.items():
        with salt.runner.Runner({**before, "cache": cache}) as runner:
            runner.run()
        assert capsys.readouterr().err.count(told) == times


def test_a_batch_is_not_started_while_the_job_cache_cannot_be_used(opts):
    accept(opts, "a")
    start = salt.loader.runner({**opts, "cache": "sqllite"})["batch.start"]
    with pytest.raises(
        Refused, match=r"^Nothing is started, since the job cache cannot be used; see jobs_doctor.run: .*sqllite"
    ):
        start("a", "test.ping", tgt_type="list")
    for doctor in ("batch.doctor", "job_retry.doctor"):
        assert "no batch is started and no owed job" in str(salt.loader.runner({**opts, "cache": "sqllite"})[doctor]())


def test_an_engine_that_hangs_does_not_work(opts):
    with leading(opts, BATCH_MANAGER):
        os.utime(lock_of(opts, BATCH_MANAGER), (time.time() - 80,) * 2)
        found = examined(opts, engines=[{BATCH_MANAGER: {}}])
    assert found["parts"]["batch_manager"] == "does not work"
    assert any("has not answered for 8" in fault for fault in faults(found))
