"""
A job runs once on a minion that has the executor, whatever happens to the minion: on every supported release.

The executor comes from the master by way of ``file_roots`` and ``saltutil.sync_executors``, as a minion without pip gets it.
"""

from __future__ import annotations

import contextlib
import pathlib

import pytest

import saltext.jobs.minion
from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import Desk, Ear, kill, retry_master, retry_minion
from tests.waiting import wait_for

pytestmark = pytest.mark.story

QUICK = {"settle": 0.1, "gather": 0.1, "cooldown": 0.3, "backoff": 1.0}
EXECUTORS = ["job_once", "direct_call"]


@pytest.fixture(scope="module")
def master(salt_factories):
    roots = [saltext.jobs.minion.__path__[0]]
    with retry_master(salt_factories, job_retry=QUICK, timeout=1, file_roots={"base": roots}) as daemon:
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


def test_a_job_of_several_functions_and_one_that_returns_nothing_run_once_too(desk, anna, tmp_path):
    trace = tmp_path / "trace"
    several = (["cmd.run", "test.echo"], [[f"echo x >> {trace}"], ["two"]])
    jid = desk.client.run_job("anna", several[0], several[1], listen=False)["jid"]
    nothing = desk.publish("test.raise_exception", "CommandExecutionError", "on purpose", tgt="anna")
    for each in (jid, nothing):
        desk.await_return("anna", each)
    first = desk.returned(jid), desk.returned(nothing)
    restart(anna, desk)
    with Ear(desk.master) as ear:
        desk.client.run_job("anna", several[0], several[1], jid=jid, listen=False)
        desk.publish("test.raise_exception", "CommandExecutionError", "on purpose", tgt="anna", jid=nothing)
        for each in (jid, nothing):
            wait_for(lambda each=each: ear.count(f"salt/job/{each}/ret/anna"), what="it returns again")
    assert trace.read_text() == "x\n"
    assert (desk.returned(jid), desk.returned(nothing)) == first


def test_a_job_whose_minion_is_killed_while_it_runs_is_not_run_again_and_says_so(desk, anna, tmp_path):
    job = CountedJob(tmp_path, "trace", gated=True)
    jid = desk.publish("cmd.run", job.command, tgt="anna")
    wait_for(job.begun, what="it has begun")
    assert seen(desk, "anna", jid)["state"] == "begun"
    restart(anna, desk)
    assert seen(desk, "anna", jid)["state"] == "interrupted"
    desk.publish("cmd.run", job.command, tgt="anna", jid=jid)
    desk.await_return("anna", jid)
    assert job.begun() == 1
    assert "was interrupted" in desk.returned(jid)["anna"]
    assert f"salt 'anna' job_once.forget {jid}" in desk.returned(jid)["anna"]


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
