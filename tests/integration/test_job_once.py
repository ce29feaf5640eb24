"""
A job runs once on a minion that has the executor, whatever happens to the minion: on every supported release.

The executor comes from the master by way of ``file_roots`` and ``saltutil.sync_executors``, as a minion without pip gets it.
"""

from __future__ import annotations

import contextlib
import pathlib

import pytest

import saltext.jobs.minion
from saltext.jobs.core.errors import Refused
from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import Desk, Ear, kill, retry_master, retry_minion
from tests.waiting import stretched, wait_for

#: Tests of what depends on the release are stories. The rest is the executor's own: functional tests run on every release.
story = pytest.mark.story

QUICK = {"gather": 0.1, "backoff": 1.0}
EXECUTORS = ["job_once", "direct_call"]


@pytest.fixture(scope="module")
def master(salt_factories):
    roots = {"base": [saltext.jobs.minion.__path__[0]]}
    with retry_master(salt_factories, job_retry=QUICK, timeout=1, file_roots=roots) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def desk(master):
    with contextlib.closing(Desk(master)) as desk:
        desk.await_engine()
        yield desk


def with_executor(master, desk, name, **options):
    """A minion that has got the executor from the master, and has been configured and started anew then."""
    stack = contextlib.ExitStack()
    daemon = stack.enter_context(retry_minion(master, name, **options))
    synced = desk.ask(name, "saltutil.sync_executors")
    assert synced in (["executors.job_once"], []), synced
    kill(daemon)
    path = pathlib.Path(daemon.config_file)
    path.write_text(path.read_text() + f"\nmodule_executors: {EXECUTORS}\n")
    daemon.start()
    return stack, daemon


@pytest.fixture(scope="module")
def anna_once(master, desk):
    stack, daemon = with_executor(master, desk, "anna")
    with stack:
        yield daemon


@pytest.fixture
def anna(anna_once, desk):
    """A minion with the executor, and nothing in the queue."""
    if not anna_once.is_running():
        anna_once.start()
    desk.ask("anna", "test.ping")
    yield anna_once
    for name in {name for name, _ in desk.queue()}:
        with contextlib.suppress(Refused):  # if all of its entries are over
            desk.run("job_retry.cancel", minion=name)
    if desk.queue():
        desk.run("job_retry.purge", state="held,expired,cancelled,dead")


def restart(daemon, desk):
    """kill -9 and start; the minion then remembers nothing of its jobs by itself."""
    kill(daemon)
    daemon.start()
    wait_for(lambda: desk.ask(daemon.id, "test.ping"), what="it is back")


def seen(desk, minion, jid):
    return (desk.ask(minion, "job_once.seen", jid) or {}).get(jid, {})


@story
def test_a_synced_executor_runs_a_job_once_and_returns_again_what_it_returned(desk, anna, tmp_path):
    job = CountedJob(tmp_path, "trace", retcode=3)
    jid = desk.publish("cmd.run", f"echo hello; {job.command}", tgt="anna")
    desk.await_return("anna", jid)
    restart(anna, desk)
    with Ear(desk.master) as ear:
        desk.publish("cmd.run", f"echo hello; {job.command}", tgt="anna", jid=jid)
        wait_for(lambda: ear.count(f"salt/job/{jid}/ret/anna"), what="it returns again")
    assert job.begun() == 1
    told = seen(desk, "anna", jid)
    assert (told["state"], told["return"], told["retcode"], told["fun"]) == ("ended", "hello", 3, "cmd.run")
    assert seen(desk, "anna", "20300101000000000000")["state"] == "never"


@story
def test_a_job_whose_minion_is_killed_while_it_runs_is_not_run_again_and_says_so(desk, anna, tmp_path):
    job = CountedJob(tmp_path, "trace", gated=True)
    jid = desk.publish("cmd.run", job.command, tgt="anna")
    wait_for(job.begun, what="it has begun")
    restart(anna, desk)
    assert seen(desk, "anna", jid)["state"] == "interrupted"
    desk.publish("cmd.run", job.command, tgt="anna", jid=jid)
    desk.await_return("anna", jid)
    assert job.begun() == 1
    assert "was interrupted" in desk.returned(jid)["anna"]


@story
def test_a_minion_acknowledges_what_the_engine_sends_on_every_release(desk, anna, tmp_path):
    kill(anna)
    job = CountedJob(tmp_path, "trace", gated=True)
    jid = desk.publish("cmd.run", job.command, tgt="anna")
    desk.await_state("anna", jid, "pending")
    with Ear(desk.master) as ear:
        anna.start()
        wait_for(lambda: ear.count(f"salt/job/{jid}/start/anna"), what="it says that it has begun")
        desk.await_state("anna", jid, "running")
        wait_for(lambda: ear.count(f"salt/job/{jid}/start/anna") > 1, what="it says so again")
        job.open_gate()
        desk.await_return("anna", jid)
    assert job.begun() == 1


def test_coverage_shows_who_has_the_executor_and_what_the_others_lack(master, desk, anna):
    with retry_minion(master, "bert"):
        found = desk.run("job_retry.coverage", timeout=stretched(10))
        assert "anna" in found["has"]
        assert "sync_executors" in found["lacks"]["bert"]
        for tgt, tgt_type in (("anna,bert", "list"), ("L@anna,bert", "compound"), ("anna or E@b.rt", "compound")):
            found = desk.run("job_retry.coverage", tgt, tgt_type=tgt_type, timeout=stretched(10))
            assert (found["asked"]["minions"], found["asked"]["tgt_type"]) == (2, tgt_type)
            assert (found["has"], list(found["lacks"]), found["silent"]) == (["anna"], ["bert"], [])
