"""Job retry on a real master with real minions that come and go."""

from __future__ import annotations

import pathlib

import psutil
import pytest

from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import kill, lines, retry_minion
from tests.waiting import stretched, wait_for


@pytest.fixture(scope="module")
def anna(master):
    """A minion that is always there."""
    with retry_minion(master, "anna") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def bert_once(anna, bert_once):
    return bert_once


@pytest.mark.story
def test_a_job_that_was_begun_and_interrupted_is_held_until_an_operator_decides(desk, bert, tmp_path):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo x >> {ran}; sleep 25", tgt="bert")
    behind = desk.publish("cmd.run", f"echo behind >> {tmp_path}/behind", tgt="bert")
    desk.await_state("bert", behind, "pending")
    bert.start()
    desk.await_state("bert", jid, "running")
    kill(bert)
    bert.start()
    desk.await_state("bert", jid, "held")
    desk.await_return("bert", behind)
    assert lines(ran) == 1
    assert desk.run("job_retry.show", "bert", jid)["history"][-1]["reason"] == "it was begun and ended without a return"


def is_held_or_has_returned(desk, minion, jid):
    """A minion may keep a return until the master, or the minion itself, is back."""
    wait_for(lambda: desk.returned(jid) or desk.state(minion, jid) == "held", what="it has returned, or is held")
    if not desk.returned(jid):
        assert "without a return" in desk.run("job_retry.show", minion, jid)["history"][-1]["reason"]
        desk.run("job_retry.purge", state="held")


@pytest.mark.story
def test_a_job_that_ran_while_its_minion_was_stopped_runs_no_second_time_and_says_so(desk, bert, tmp_path):
    job = CountedJob(tmp_path, "ran", gated=True)
    jid = desk.publish("cmd.run", job.command, tgt="bert")
    desk.await_state("bert", jid, "pending")
    bert.start()
    desk.await_state("bert", jid, "running")
    minion = psutil.Process(bert.pid)
    minion.terminate()
    # Salt 3008 ends its jobs. Salt 3006 waits for them; then systemd kills it, and leaves its jobs be (KillMode=process).
    if psutil.wait_procs([minion], stretched(10))[1]:
        minion.kill()
    bert.terminate()
    job.open_gate()
    bert.start()
    is_held_or_has_returned(desk, "bert", jid)
    assert job.begun() == 1


@pytest.mark.story
def test_a_job_whose_return_found_no_master_runs_no_second_time_and_says_so(desk, master, tmp_path):
    impatient = {"return_retry_tries": 1, "request_channel_timeout": 3, "request_channel_tries": 1}
    with retry_minion(master, "carl", **impatient) as carl:
        job = CountedJob(tmp_path, "ran", gated=True)
        jid = desk.publish("cmd.run", job.command, tgt="carl")
        wait_for(job.begun, what="it has begun")
        kill(master)
        job.open_gate()
        work = pathlib.Path(carl.config["cachedir"], "proc", jid)
        wait_for(lambda: not work.exists(), what="the minion has given up the return")
        master.start()
        desk.await_engine()
        is_held_or_has_returned(desk, "carl", jid)
        assert job.begun() == 1


def test_a_kill_of_the_master_loses_nothing(desk, master, anna, bert, tmp_path):
    ran = tmp_path / "ran"
    queued = desk.publish("cmd.run", f"echo queued >> {ran}", tgt="bert")
    desk.await_state("bert", queued, "pending")
    fresh = desk.publish("cmd.run", f"echo fresh >> {ran}", tgt="bert")
    kill(master)
    master.start()
    desk.await_engine()
    desk.await_state("bert", fresh, "pending")
    bert.start()
    desk.await_return("bert", queued)
    desk.await_return("bert", fresh)
    assert ran.read_text().split() == ["queued", "fresh"]
