"""Job retry while everything around it fails: each fault is caused, on a real master with real minions."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.site import FileSite
from tests.integration import warm
from tests.integration.conftest import ask_runner
from tests.integration.faults import CountedJob, CutOffJob, outlived
from tests.integration.job_retry.desk import Ear, away, kill, lines, retry_minion
from tests.integration.job_retry.engine_apart import bert as bert
from tests.integration.job_retry.engine_apart import master as master
from tests.integration.job_retry.engine_apart import process as process
from tests.missing import missing
from tests.waiting import Deadline, wait_for


@pytest.fixture
def engine(master, process):
    # From the first checkpoint on, an engine that starts finds what was published before.
    process.start()
    wait_for(lambda: FileSite(master.config).folder(JOB_RETRY).exists("checkpoint"), what="the first checkpoint")
    process.kill()
    return process


@pytest.fixture
def counted(desk, tmp_path):
    """Publish a job that counts how often it begins: ``counted(name)`` returns its jid and its count."""

    def publish(name, seconds=0.0, tgt="bert", **options):
        job = CountedJob(tmp_path, name, seconds)
        return desk.publish("cmd.run", job.command, tgt=tgt, **options), job

    return publish


# -- the engine dies ---------------------------------------------------------------------------------------------------

#: Points at which the engine is killed, with what is known by then.
DEATHS_WHILE_QUEUEING = [
    "before reading 1",  # the job's time is up
    "before question 1",
    "after question 1",
    "before announcement 1",  # it is decided that the job is owed, and nothing is stored
    "before snapshot 1",
    "after snapshot 1",  # the load is stored, the entry is not
    "after entry 1",  # both are
    "after checkpoint 2",  # and what was published so far is not looked at again
]
DEATHS_WHILE_REPLAYING = [
    "before look 1",
    "before question 1",
    "after question 1",
    "before claim 1",
    "after claim 1",  # claimed, not published
    "before announcement 1",
    "before publish 1",
    "after publish 1",  # published, and only the claim is stored
    "before entry 1",
    "after entry 1",  # it is stored how far it has come
    "before entry removal 1",  # returned, and the entry is still there
    "after entry removal 1",  # the load is still there
    "before snapshot removal 1",
    "after snapshot removal 1",
]
#: With what is answered, if the runner still waits for it: the next life of the engine does not know what was stored before.
DEATHS_WHILE_QUEUEING_BY_HAND = {
    "before announcement 1": 1,  # the request is taken, and nothing is stored
    "after snapshot 1": 1,
    "after entry 1": None,
    "before request removal 1": None,  # all is stored, and nothing is answered
    "after request removal 1": 1,  # it is answered
}


def test_an_engine_that_is_killed_at_each_step_of_queueing_queues_each_job_once(desk, engine, bert, counted):
    jobs = {}
    for trap in DEATHS_WHILE_QUEUEING:
        engine.start(trap)
        wait_for(engine.is_running, what="the engine runs")
        jid, jobs[trap] = counted(trap.replace(" ", "-"))
        engine.wait_for_death()
    engine.start()
    desk.await_state("bert", jid, "pending")
    assert desk.run("job_retry.stats")["states"] == {"pending": len(jobs)}
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert {trap: job.begun() for trap, job in jobs.items()} == dict.fromkeys(jobs, 1)


def test_an_engine_that_is_killed_at_each_step_of_replaying_delivers_each_job_once(desk, engine, bert, counted):
    jobs = dict(counted(f"job-{number}") for number in range(len(DEATHS_WHILE_REPLAYING)))
    engine.start()
    wait_for(lambda: set(desk.queue().values()) == {"pending"} and len(desk.queue()) == len(jobs), what="all wait")
    engine.kill()
    bert.start()
    for trap in DEATHS_WHILE_REPLAYING:
        engine.start(trap)
        engine.wait_for_death()
    engine.start()
    # One after the other, and each publish that was lost with its engine backs off.
    wait_for(lambda: not desk.queue(), seconds=300, what=lambda: f"the queue is empty: {desk.run('job_retry.list')}")
    assert all("bert" in desk.returned(jid) for jid in jobs)
    assert [job.begun() for job in jobs.values()] == [1] * len(jobs)


def test_an_engine_that_is_killed_at_each_step_of_queueing_by_hand_answers_each_request_and_queues_each_job_once(
    master, desk, engine, bert, counted
):
    engine.start()
    not_kept = {"metadata": {"job_retry": False}}
    jobs = {trap: counted(trap.replace(" ", "-"), **not_kept) for trap in DEATHS_WHILE_QUEUEING_BY_HAND}
    with ThreadPoolExecutor(1) as pool:
        for trap, (jid, _) in jobs.items():
            engine.kill()
            engine.start(trap)
            asked = pool.submit(ask_runner, master, "job_retry.enqueue", jid, "minions=bert")
            engine.wait_for_death()
            engine.start()
            assert outlived(asked) in (DEATHS_WHILE_QUEUEING_BY_HAND[trap], None)
            desk.await_state("bert", jid, "pending")
    bert.start()
    for jid, _ in jobs.values():
        desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert {trap: job.begun() for trap, (_, job) in jobs.items()} == dict.fromkeys(jobs, 1)


# -- the minion dies ---------------------------------------------------------------------------------------------------


def test_an_engine_that_is_killed_every_few_seconds_delivers_all_the_same(master, desk, engine, bert, counted):
    with retry_minion(master, "anna") as anna:
        kill(anna)
        engine.start()
        jobs = [counted(f"short{number}", tgt="*") for number in range(2)]
        wait_for(lambda: len(desk.queue(state="pending")) == 4, what=lambda: f"all are queued: {desk.queue()}")
        engine.kill()
        bert.start()
        for _ in range(20):
            engine.start()
            life = Deadline(5)
            while desk.queue(minion="bert") and not life.is_over():
                time.sleep(0.1)
            engine.kill()
            if not desk.queue(minion="bert"):
                break
        assert [job.begun() for _, job in jobs] == [1, 1]
        assert set(desk.queue()) == {("anna", jid) for jid, _ in jobs}
        desk.run("job_retry.cancel", minion="anna")


def test_a_minion_killed_before_the_job_reaches_it_uses_up_no_attempt(desk, engine, bert, counted):
    engine.start(stop="before publish 1")
    jid, job = counted("ran")
    desk.await_state("bert", jid, "pending")
    bert.start()
    engine.wait_for_standstill()
    kill(bert)
    engine.thaw()
    reason = "no sign of receipt, and it does not answer"
    wait_for(lambda: desk.run("job_retry.show", "bert", jid)["reason"] == reason, what=reason)
    entry = desk.run("job_retry.show", "bert", jid)
    assert (entry["state"], entry["attempts"], entry["unreceived_tries"]) == ("pending", 0, 1)
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert job.begun() == 1


@pytest.fixture(scope="module")
def cora_once(master):
    """A minion that comes and goes, and keeps what its jobs have returned."""
    with retry_minion(master, "cora", cache_jobs=True) as daemon:
        yield daemon


@pytest.fixture
def cora(cora_once, desk, engine):
    with away(cora_once, desk) as daemon:
        yield daemon


def test_a_job_whose_minion_was_killed_between_its_end_and_its_return_is_held(desk, engine, bert, counted, tmp_path):
    job = CutOffJob(tmp_path)
    engine.start()
    jid = desk.publish("cmd.run", job.command, tgt="bert")
    behind, other = counted("behind")
    desk.await_state("bert", behind, "pending")
    bert.start()
    desk.await_state("bert", jid, "running")
    job.cut_off()
    kill(bert)
    bert.start()
    desk.await_return("bert", behind)
    wait_for(lambda: desk.queue() == {("bert", jid): "held"}, what="only the job that was cut off is left")
    assert desk.run("job_retry.show", "bert", jid)["reason"] == "it was begun and ended without a return"
    assert (lines(job.ran), other.begun()) == (1, 1)
    assert not desk.returned(jid)


def test_a_return_that_the_minion_has_kept_is_fetched_when_it_was_killed_before_it_returned(
    desk, engine, cora, counted, tmp_path
):
    job = CutOffJob(tmp_path)
    engine.start()
    jid = desk.publish("cmd.run", f"{job.command}; echo all done", tgt="cora")
    behind, other = counted("behind", tgt="cora")
    desk.await_state("cora", behind, "pending")
    kept = pathlib.Path(cora.config["cachedir"], "minion_jobs", jid, "return.p")
    desk.lose_return(cora, jid, job, kept, b"all done")
    desk.await_return("cora", behind)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert desk.returned(jid) == {"cora": "all done"}
    assert (lines(job.ran), other.begun()) == (1, 1)


def test_a_job_whose_process_died_runs_again_once_its_minion_takes_it(master, desk, engine, tmp_path):
    """A minion that lives on drops each further publish, since it knows the jid. Dora has a record of the first run, too."""
    name, ran, stop = "dora", tmp_path / "ran", tmp_path / "stop"
    engine.start()
    with retry_minion(master, name, module_executors=["job_once", "direct_call"]) as minion:
        kill(minion)
        command = f"echo $PPID >> {ran}; until [ -e {stop} ]; do sleep 0.2; done"
        jid = desk.publish("cmd.run", command, tgt=name, metadata={"job_retry": {"retry_interrupted": True}})
        desk.await_state(name, jid, "pending")
        minion.start()
        desk.await_state(name, jid, "running")
        wait_for(lambda: lines(ran) == 1, what="the job runs")
        os.kill(int(ran.read_text()), signal.SIGKILL)  # as the kernel does when memory runs out
        stop.touch()
        engine.kill()
        engine.start()  # it asks now, and not a minute after the last time
        wait_for(lambda: show(desk, name, jid)["unreceived_tries"] >= 3, what=lambda: f"it is sent: {desk.queue()}")
        assert lines(ran) == 1
        assert show(desk, name, jid)["attempts"] <= 2
        kill(minion)
        minion.start()
        desk.await_return(name, jid)
        assert lines(ran) == 2


def show(desk, name, jid):
    return desk.run("job_retry.show", name, jid)


STARTED = "salt/minion/bert/start"
ASKED = "salt/job/*/new"
SENT = "salt/job_retry/bert/*/sent"
BEGUN = "the job begins"
#: Seconds. Now and then a minion of Salt 3008 that has just started returns a job 60 s late: it waits that long for the
#: answer to its acknowledgement.
PATIENCE = 90
#: The events right after which a flapping minion is killed.
MOMENTS = 5 * ("salt/auth", STARTED, ASKED) + (SENT, SENT, BEGUN, SENT, BEGUN)


@contextlib.contextmanager
def briefly(minion):
    """Start a minion, do not wait until it is there, and kill it at the end of the block."""
    process = warm.Process(minion.cmdline())
    try:
        yield
    finally:
        kill(process)
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(not compat.HAS_START_EVENT, reason="before Salt 3008 no minion says that it begins a job")
def test_a_minion_that_flaps_twenty_times_in_a_minute_gets_no_job_twice_and_few_publishes(
    desk, master, engine, bert, counted
):
    engine.start()
    jobs = dict(counted(f"job-{number}", seconds=1) for number in range(6))
    wait_for(lambda: len(desk.queue(state="pending")) == len(jobs), what="all wait")
    with Ear(master) as ear:

        def begun():
            return sum(job.begun() for job in jobs.values())

        def await_next(moment):
            count = begun if moment == BEGUN else lambda: ear.count(moment)
            before = count()
            return lambda: wait_for(lambda: count() > before, PATIENCE, moment)

        for moment in MOMENTS:
            first = await_next(moment if moment == "salt/auth" else STARTED)
            with briefly(bert):
                first()
                if moment not in ("salt/auth", STARTED):
                    await_next(moment)()
        # On a busy machine each of the others may have been sent before the minion was killed.
        last, job = counted("last")
        jobs[last] = job
        desk.await_state("bert", last, "pending")
        bert.start()
        wait_for(lambda: set(desk.queue().values()) <= {"held"}, PATIENCE, "nothing waits any more")
        # One question and one publish for each of its lives and each job.
        assert ear.count("salt/job/*/new") <= 2 * (ear.count(STARTED) + len(jobs))
    held = {jid for _, jid in desk.queue()}
    returned = {jid for jid in jobs if desk.returned(jid)}
    assert held ^ returned == set(jobs)
    assert last in returned
    assert {jobs[jid].begun() for jid in returned} == {1}
    assert max(jobs[jid].begun() for jid in held) == 1
    assert all(desk.run("job_retry.show", "bert", jid)["reason"] for jid in held)


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(desk):
    """A file system of 1 MB over the queue. The jobs of other tests, which it hides, may be found again and need space."""
    folder = pathlib.Path(desk.opts["cachedir"]) / "job_retry"
    folder.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(folder)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        missing(f"a small file system cannot be mounted: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def newcomer(master):
    """A minion that is away, and that no other test has published a job to."""
    with retry_minion(master, "newcomer") as daemon:
        kill(daemon)
        yield daemon


def test_a_full_disk_delays_the_queue_and_loses_nothing(desk, small_disk, engine, newcomer, counted):
    engine.start()
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    jid, job = counted("ran", tgt="newcomer")
    wait_for(lambda: "The retry queue cannot be written" in engine.output(), what="the engine complains")
    assert not desk.queue()
    ballast.unlink()
    desk.await_state("newcomer", jid, "pending")
    newcomer.start()
    desk.await_return("newcomer", jid)
    wait_for(lambda: desk.state("newcomer", jid) is None, what="the entry is gone")
    assert job.begun() == 1
