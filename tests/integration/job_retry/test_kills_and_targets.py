"""
What must not be delivered, with real daemons: what an operator killed, and what a minion no longer matches.

Of a master that keeps all in one SQLite file, the queue too; and what comes back of such a file that was damaged.
"""

from __future__ import annotations

import os
import pathlib

import pytest

from saltext.jobs.core.sqlite.banks import banks_of
from tests.integration.job_retry.desk import kill, lines, retry_master
from tests.waiting import wait_for


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


def test_a_minion_that_the_target_does_not_match_any_more_does_not_get_the_job(desk, bert, tmp_path):
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
        assert jid in banks_of(desk.opts).keys("job_retry/queue/bert")
        assert not pathlib.Path(desk.opts["cachedir"], "job_retry", "queue").exists()
        bert.start()
        desk.await_state("bert", jid, "dead")
        assert desk.run("job_retry.show", "bert", jid)["reason"] == "it no longer matches the job's target"
        assert lines(ran) == 0
    finally:
        kill(bert)
        grains.unlink()


def test_what_is_recovered_of_the_queue_is_delivered(master, desk, bert, tmp_path):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo >> {ran}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    path = banks_of(desk.opts).path
    kill(master)
    aside = f"{path}.damaged-20260516120000"  # what the master does where it finds damage
    for end in ("-wal", "-shm", ""):
        if os.path.exists(path + end):
            os.rename(path + end, aside + end)
    master.start()
    wait_for(lambda: desk.run("job_retry.list") == [], what="the engine runs, with a new file")
    assert desk.run("job_cache.recover")[aside]["written"] > 0
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="nothing is owed any more")
    assert lines(ran) == 1
