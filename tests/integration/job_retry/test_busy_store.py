"""A real master whose SQLite file, with jobs and queue, is kept by another process for longer than a writer waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.sqlite.banks import banks_of
from tests.integration.faults import CountedJob, EngineProcess
from tests.integration.job_retry.desk import retry_master
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

#: Keeps others from writing until its input ends.
HOLD = """
import sqlite3, sys
sql = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
sql.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
sql.execute("ROLLBACK")
"""


@pytest.fixture(scope="module")
def master(salt_factories):
    """A master that does not run the engine itself."""
    with retry_master(salt_factories, cache="sqlite", engines=[], timeout=1) as daemon:
        yield daemon


def test_a_job_that_could_not_be_stored_for_long_is_owed_and_delivered(master, desk, bert, tmp_path):
    # There it is decided that the job is owed, and nothing is stored.
    engine = EngineProcess(master, tmp_path / "engine.log", JOB_RETRY).start(stop="before announcement 1")
    try:
        job = CountedJob(tmp_path, "job")
        jid = desk.publish("cmd.run", job.command, tgt="bert")
        engine.wait_for_standstill()
        words = [sys.executable, "-c", HOLD, banks_of(desk.opts).path]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout.readline() == "held\n"
            engine.thaw()
            in_vain = "The retry queue cannot be written, and is kept in memory until it can be"
            wait_for(lambda: in_vain in engine.output(), seconds=100, what="the engine has waited in vain")
            assert desk.queue() == {}
        desk.await_state("bert", jid, "pending")
        bert.start()
        desk.await_return("bert", jid)
        wait_for(lambda: not desk.queue(), what="nothing is owed any more")
        assert (job.begun(), "cannot be kept" in engine.output()) == (1, False)
    finally:
        engine.kill()
