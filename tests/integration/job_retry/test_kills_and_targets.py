"""
What must not be delivered, with real daemons: jobs that an operator killed, and jobs whose target no longer matches.

The master keeps everything in one SQLite file, the queue too. Entries of a damaged file come back.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from saltext.jobs.core.sqlite.banks import banks_of
from tests.integration.job_retry.desk import kill, lines, retry_master
from tests.waiting import SOON, stretched, wait_for

#: Overwrites the page by which each record is found.
DAMAGE = """
import os, sqlite3, sys
sql = sqlite3.connect(sys.argv[1])
sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
((page,),) = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_records_1'")
((size,),) = sql.execute("PRAGMA page_size")
sql.close()
with open(sys.argv[1], "r+b") as stream:
    stream.seek((page - 1) * size)
    stream.write(os.urandom(size))
"""


@pytest.fixture(scope="module")
def master(salt_factories):
    with retry_master(salt_factories, cache="sqlite") as daemon:
        yield daemon


def test_a_job_that_an_operator_killed_is_not_run_again_when_its_minion_restarts(desk, bert, tmp_path):
    ran = tmp_path / "ran"
    bert.start()
    jid = desk.publish("cmd.run", f"echo >> {ran}; sleep 300", tgt="bert")
    wait_for(lambda: lines(ran) == 1, what="the job runs")
    desk.publish("saltutil.kill_job", jid, tgt="*")
    desk.await_state("bert", jid, "cancelled")
    assert desk.run("job_retry.show", "bert", jid)["reason"].startswith("killed by ")
    kill(bert)
    bert.start()
    later = desk.publish("test.arg", "later", tgt="bert")
    desk.await_return("bert", later)
    assert (lines(ran), desk.state("bert", jid)) == (1, "cancelled")


def test_a_minion_that_no_longer_matches_the_target_does_not_get_the_job(desk, bert, tmp_path):
    ran, grains = tmp_path / "ran", pathlib.Path(bert.config["conf_file"]).parent / "grains"
    grains.write_text("role: web\n")
    bert.start()
    wait_for(lambda: desk.ask("bert", "grains.get", "role") == "web", what="bert is a web server")
    desk.ask("bert", "saltutil.refresh_grains")
    kill(bert)
    grains.write_text("role: db\n")
    try:
        jid = desk.publish("cmd.run", f"echo >> {ran}", tgt="role:web", tgt_type="grain")
        desk.await_state("bert", jid, "pending")
        bert.start()
        desk.await_state("bert", jid, "dead")
        assert desk.run("job_retry.show", "bert", jid)["reason"] == "it no longer matches the job's target"
        assert lines(ran) == 0
    finally:
        kill(bert)
        grains.unlink()


def await_the_end(desk, jid):
    """
    Wait until a job of bert's is done, and nothing is owed. After a damage the job cache is searched. This may find jobs of
    other tests again: one that was killed, and one whose target bert no longer matches.
    """

    def is_over():
        queue = desk.queue()
        return ("bert", jid) not in queue and set(queue.values()) <= {"cancelled", "dead"}

    wait_for(is_over, what=lambda: f"nothing is owed any more: {desk.queue()}")


def test_owed_jobs_outlive_a_damaged_file_and_are_delivered_without_an_operator(desk, bert, tmp_path):
    """The engine has them in its memory, and writes them into the new file."""
    kill(bert)
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo >> {ran}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    banks = banks_of(desk.opts)
    before = set(banks.damaged())
    subprocess.run([sys.executable, "-c", DAMAGE, banks.path], check=True, timeout=stretched(SOON))
    wait_for(lambda: set(banks.damaged()) - before, what="somebody has met the damage")
    wait_for(lambda: ("bert", jid) in desk.queue(), what="the engine has written it again")
    bert.start()
    desk.await_return("bert", jid)
    await_the_end(desk, jid)
    assert lines(ran) == 1
