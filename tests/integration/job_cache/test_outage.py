"""A real master whose jobs are in Redis, which goes away and comes back."""

from __future__ import annotations

import pytest

from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.conftest import ask_runner, make_master, minions, salt_cli, salt_run
from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import Desk, kill, make_retry_master
from tests.integration.several import ended
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def test_the_master_goes_on_when_the_server_of_its_job_cache_is_back(salt_factories, cache_servers):
    server = cache_servers("redis")
    master = make_master(salt_factories, engines=[], loop_interval=1, **server.options)
    with master.started(), minions(master, "kept"):
        assert salt_cli(master, "kept", "test.echo", "before").data == "before"
        server.stop()
        salt_cli(master, "kept", "test.echo", "meanwhile")
        assert "Traceback" not in salt_run(master, "jobs.list_jobs").stdout
        assert master.is_running()
        server.start()
        wait_for(lambda: salt_cli(master, "kept", "test.echo", "after").data == "after", what="it publishes again")
        jobs = ask_runner(master, "jobs.list_jobs", "search_function=test.echo")
        said = {job["Arguments"][0] for job in jobs.values()}
        assert {"before", "after"} <= said <= {"before", "meanwhile", "after"}
        assert ask_runner(master, "jobs.lookup_jid", max(jobs)) == {"kept": "after"}


def test_a_batch_waits_for_no_server_of_the_job_cache_and_what_was_owed_is_still_owed_after_its_outage(
    salt_factories, cache_servers, tmp_path
):
    server = cache_servers("redis")
    master = make_retry_master(
        salt_factories, engines=[{BATCH_MANAGER: {}}, {JOB_RETRY: {}}], loop_interval=1, **server.options
    )
    gated, owed = CountedJob(tmp_path, "gated", gated=True), CountedJob(tmp_path, "owed")
    with master.started(), minions(master, "one", "two", "gone") as (_, _, gone):
        desk = Desk(master)
        kill(gone)
        missed = desk.publish("cmd.run", owed.command, tgt="gone")
        desk.await_state("gone", missed, "pending")
        jid = desk.run("batch.start", "one,two", "cmd.run", gated.command, tgt_type="list", batch=1)["jid"]
        wait_for(lambda: gated.begun() == 1, what="the first minion runs the job of the batch")
        server.stop()
        gated.open_gate()
        assert ended(master, jid) == dict.fromkeys(("one", "two"), "completed")
        server.start()
        gone.start()  # Salt starts no minion while it cannot store the minion's data
        wait_for(lambda: not desk.queue(), what="the job that was owed is delivered")
        assert (gated.begun(), owed.begun()) == (2, 1)
        desk.close()
