"""
A job runs once on a minion that has the executor, whatever happens to the minion: on every supported release.

The executor comes from the master by way of ``file_roots`` and ``saltutil.sync_executors``, as a minion without pip gets it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import tempfile

import pytest

import saltext.jobs.minion
from saltext.jobs.core.errors import Refused
from tests.integration import warm
from tests.integration.conftest import make_minion, make_proxy
from tests.integration.faults import CountedJob, CutOffJob
from tests.integration.job_retry.desk import Desk, Ear, kill, lines, retry_master, retry_minion
from tests.integration.other_user import OWNER, Minion, give
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


@story
def test_a_job_that_takes_its_own_minion_down_at_once_runs_once(desk, anna, tmp_path):
    kill(anna)
    trace, group = tmp_path / "trace", tmp_path / "group"
    jid = desk.publish("cmd.run", f"echo x >> {trace}; kill -s KILL -- -$(cat {group}); sleep 2", tgt="anna")
    behind = desk.publish("cmd.run", f"echo y >> {trace}", tgt="anna")
    wait_for(lambda: len(desk.queue(state="pending")) == 2, what="both wait")
    with briefly(anna) as process:
        group.write_text(str(process.pid))
        wait_for(lambda: process.poll() is not None, what="it goes down")
    anna.start()
    desk.await_return("anna", behind)
    wait_for(lambda: not desk.queue(state="pending,claimed,sent,running"), what="nothing waits any more")
    assert sorted(trace.read_text().split()) == ["x", "y"]
    assert desk.state("anna", jid) == "held"


def test_a_return_that_was_lost_is_fetched_from_the_record(desk, anna, tmp_path):
    kill(anna)
    job = CutOffJob(tmp_path)
    jid = desk.publish("cmd.run", f"{job.command}; echo all done", tgt="anna")
    desk.await_state("anna", jid, "pending")
    desk.lose_return(anna, jid, job, pathlib.Path(anna.config["cachedir"], "job_once", "anna", jid), b'"value"')
    desk.await_return("anna", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert desk.returned(jid) == {"anna": "all done"}
    assert lines(job.ran) == 1


@contextlib.contextmanager
def briefly(minion):
    """Start a minion, do not wait until it is there, and kill it and all its processes at the end of the block."""
    process = warm.Process(minion.cmdline(f"--pid-file={minion.config['root_dir']}/briefly.pid"))
    try:
        yield process
    finally:
        kill(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_coverage_shows_who_has_the_executor_and_what_the_others_lack(master, desk, anna):
    with retry_minion(master, "bert"):
        found = desk.run("job_retry.coverage", timeout=stretched(10))
        assert "anna" in found["has"]
        assert "sync_executors" in found["lacks"]["bert"]
        for tgt, tgt_type in (("anna,bert", "list"), ("L@anna,bert", "compound"), ("anna or E@b.rt", "compound")):
            found = desk.run("job_retry.coverage", tgt, tgt_type=tgt_type, timeout=stretched(10))
            assert (found["asked"]["minions"], found["asked"]["tgt_type"]) == (2, tgt_type)
            assert (found["has"], list(found["lacks"]), found["silent"]) == (["anna"], ["bert"], [])


# -- other minions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nora(master):
    """A minion that is not root's, and runs one job at a time."""
    options = {"user": OWNER.pw_name, "module_executors": ["job_once", "direct_call"], "process_count_max": 1}
    with give(make_minion(master, "nora", kind=Minion, **options)).started() as daemon:
        yield daemon


@pytest.fixture
def folder_of_all(anna_once):
    """A folder in which the jobs of any minion may write."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=pathlib.Path(anna_once.config["root_dir"]).parent))
    folder.chmod(0o777)
    return folder


def test_a_job_that_waits_for_its_turn_is_not_begun_and_runs_once_even_if_it_is_sent_again(desk, nora, folder_of_all):
    first, second = (CountedJob(folder_of_all, name, gated=True) for name in ("first", "second"))
    records = pathlib.Path(nora.config["cachedir"], "job_once", "nora")
    with Ear(desk.master) as ear:
        jids = [desk.publish("cmd.run", job.command, tgt="nora") for job in (first, second)]
        wait_for(first.begun, what="the first one runs")
        wait_for(lambda: desk.state("nora", jids[1]), what="the engine looks after the second")
        wait_for(lambda: ear.count("salt/job/*/new") > 2, what="it has asked")
        assert [path.exists() for path in map(records.joinpath, jids)] == [True, False]
        assert second.begun() == 0
        # As long as the first one runs the minion answers nothing. Between the two it may: then the second one has never
        # begun, and the engine sends it once more.
        assert [ear.count(f"salt/job/{jid}/new") for jid in jids] == [1, 1]
        desk.publish("cmd.run", second.command, tgt="nora", jid=jids[1])
        behind = desk.publish("test.echo", "behind", tgt="nora")
        for job in (first, second):
            job.open_gate()
        for jid in (*jids, behind):
            desk.await_return("nora", jid)
        wait_for(lambda: not desk.queue(), what="nothing waits any more")
    assert (first.begun(), second.begun()) == (1, 1)


@story
@pytest.mark.slow
def test_a_proxy_runs_a_job_once_and_reports_to_the_engine_what_it_has_begun(master, desk, tmp_path):
    job, cut = CountedJob(tmp_path, "job"), CountedJob(tmp_path, "cut", gated=True)
    petra = make_proxy(master, "petra", module_executors=["job_once", "direct_call"])
    petra.start()
    try:
        ended = desk.publish("cmd.run", f"echo hello; {job.command}", tgt="petra")
        desk.await_return("petra", ended)
        assert desk.run("job_retry.coverage", "petra", timeout=stretched(10))["has"] == ["petra"]
        kill(petra)
        interrupted = desk.publish("cmd.run", cut.command, tgt="petra")
        desk.await_state("petra", interrupted, "pending")
        petra.start()
        desk.await_state("petra", interrupted, "running")
        wait_for(cut.begun, what="it has begun")
        restart(petra, desk)
        desk.await_state("petra", interrupted, "held")
        told = desk.ask(
            "petra", "saltutil.find_cached_job", interrupted
        )  # a proxy of 3008 fails over functions it lacks
        assert told["job_once"]["state"] == "interrupted"
        with Ear(master) as ear:
            desk.publish("cmd.run", f"echo hello; {job.command}", tgt="petra", jid=ended)
            wait_for(lambda: ear.count(f"salt/job/{ended}/ret/petra"), what="it returns again")
        # It runs again only if the engine says so, which it does for a job that it knows to be interrupted.
        cut.open_gate()
        assert desk.run("job_retry.retry", minion="petra", jid=interrupted) == 1
        desk.run("job_retry.replay", minion="petra")
        desk.await_return("petra", interrupted)
    finally:
        kill(petra)
    assert (job.begun(), cut.begun()) == (1, 2)
    assert desk.returned(ended) == {"petra": "hello"}
    assert "interrupted" not in desk.returned(interrupted)["petra"]
