"""
The engine reads late what the log tells, or never, and replays are paused in the middle of a question: on real masters with
real minions.

Before a kill there are so many other records that the engine does something else before it has read the kill, if it can.
"""

from __future__ import annotations

import math
import time

import pytest
import salt.cache

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.log.records import Returned
from saltext.jobs.core.retry.checkpoint import CHECKPOINT, MARGIN, read_checkpoint
from saltext.jobs.core.site import FileSite, write_msgpack
from tests.database import begin_another_log
from tests.faults import thaw
from tests.integration.faults import freeze_daemon
from tests.integration.job_retry.desk import Ear, kill, lines
from tests.integration.job_retry.engine_apart import bert as bert
from tests.integration.job_retry.engine_apart import master as master
from tests.integration.job_retry.engine_apart import process as process
from tests.waiting import wait_for

#: Records by which a log grows. The engine reads them in some twenty parts.
MANY = 60_000


@pytest.fixture
def engine(process):
    return process.start()


@pytest.fixture
def log(master):
    return FileSite(master.config).log_writer()


def lengthen(log):
    """Append to a log what a master's worker appends when it stores returns of a job of no interest."""
    for number in range(MANY):
        assert log.append(Returned("20200101000000000000", f"minion{number}", "test.ping", 0, True, time.time()))


def assert_killed(desk, jid, ran, runs):
    """A job of bert's has ended by its kill after so many runs. It does not run again when bert gets another job."""
    over = (None, "cancelled", "held")
    wait_for(lambda: desk.state("bert", jid) in over or lines(ran) > runs, what=lambda: f"it is over: {desk.queue()}")
    assert desk.state("bert", jid) == "cancelled"
    later = desk.publish("test.arg", "later", tgt="bert")
    desk.await_return("bert", later)
    assert lines(ran) == runs


def test_an_owed_job_is_not_published_after_its_kill_however_late_the_kill_is_read(desk, engine, bert, log, tmp_path):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo >> {ran}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    engine.kill()
    engine.start(stop="after claim 1")
    bert.start()
    engine.wait_for_standstill()
    lengthen(log)
    desk.publish("saltutil.kill_job", jid, tgt="*")
    engine.thaw()
    assert_killed(desk, jid, ran, runs=0)


def test_an_interrupted_job_is_not_run_again_after_a_kill_of_every_job_however_late_the_kill_is_read(
    desk, engine, bert, log, tmp_path
):
    ran, metadata = tmp_path / "ran", {"job_retry": {"retry_interrupted": True}}
    jid = desk.publish("cmd.run", f"echo >> {ran}; sleep 300", tgt="bert", metadata=metadata)
    desk.await_state("bert", jid, "pending")
    bert.start()
    desk.await_state("bert", jid, "running")
    wait_for(lambda: lines(ran) == 1, what="the job runs")
    engine.kill()
    kill(bert)
    bert.start()
    engine.start(stop="after look 2")  # bert has said that it does not run the job, and there is no return
    engine.wait_for_standstill()
    lengthen(log)
    desk.publish("saltutil.kill_all_jobs", tgt="*")
    engine.thaw()
    assert_killed(desk, jid, ran, runs=1)


def test_the_answer_that_a_minion_runs_a_job_counts_though_replays_were_paused_before_it_came(
    master, desk, engine, bert, tmp_path
):
    ran = tmp_path / "ran"
    bert.start()
    frozen = freeze_daemon(bert)
    jid = desk.publish("cmd.run", f"echo >> {ran}; sleep 300", tgt="bert")
    desk.await_state("bert", jid, "pending")
    engine.kill()
    engine.start(stop="before question 1")
    thaw(*frozen)  # bert gets the operator's own publish now
    wait_for(lambda: lines(ran) == 1, what="the job runs")
    engine.wait_for_standstill()
    frozen = freeze_daemon(bert)
    try:
        with Ear(master) as ear:
            engine.thaw()
            wait_for(lambda: ear.count("salt/job/*/new"), what="bert is asked")
            desk.run("job_retry.pause")
            assert not ear.count("salt/job/*/ret/bert")
            thaw(*frozen)
            wait_for(lambda: ear.count("salt/job/*/ret/bert"), what="bert answers")
    finally:
        thaw(*frozen)
    stored = salt.cache.Cache(desk.opts)
    wait_for(lambda: stored.fetch("job_retry/queue/bert", jid)["acknowledged"], what="the answer counts")
    kill(bert)
    bert.start()
    desk.run("job_retry.resume")
    wait_for(lambda: desk.state("bert", jid) == "held" or lines(ran) > 1, what=lambda: f"it is held: {desk.queue()}")
    assert (lines(ran), desk.state("bert", jid)) == (1, "held")
    assert desk.run("job_retry.show", "bert", jid)["reason"] == "it was begun and ended without a return"


@pytest.mark.slow
def test_no_job_is_forgotten_if_the_log_is_lost_after_a_checkpoint_that_was_written_while_it_was_read(
    master, desk, engine, bert, log, tmp_path
):
    ran, folder = tmp_path / "ran", FileSite(master.config).folder(JOB_RETRY)
    desk.publish("test.ping", tgt="bert")  # the first publish begins the log
    wait_for(lambda: (read_checkpoint(folder) or {}).get("position"), what="a checkpoint that knows the log")
    engine.kill()
    # As if the engine had run for so long that the search of its first start was over.
    write_msgpack(folder, CHECKPOINT, {**read_checkpoint(folder), "search": math.inf})
    lengthen(log)
    jid, at = desk.publish("cmd.run", f"echo >> {ran}", tgt="bert"), time.monotonic()
    wait_for(lambda: time.monotonic() > at + MARGIN + 5, 2 * MARGIN, "a search from a checkpoint of now would miss it")
    engine.start(trap="after checkpoint 1")
    engine.wait_for_death()
    assert jid not in read_checkpoint(folder)["open"]
    begin_another_log(master.config)
    engine.start()
    desk.await_state("bert", jid, "pending")
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert lines(ran) == 1
