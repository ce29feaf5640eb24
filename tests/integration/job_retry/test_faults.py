"""Job retry while everything around it fails: each fault is caused, on a real master with real minions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.integration.conftest import ask_runner
from tests.integration.faults import CountedJob, EngineProcess, outlived
from tests.integration.job_retry.desk import retry_master
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def master(salt_factories):
    """A master that does not run the engine itself."""
    with retry_master(salt_factories, engines=[], job_retry={"gather": 0.1, "backoff": 1.0}, timeout=1) as daemon:
        yield daemon


@pytest.fixture
def engine(master, tmp_path):
    process = EngineProcess(master, tmp_path / "engine.log", JOB_RETRY)
    try:
        # From the first cursor on, an engine that starts finds what was published before.
        process.start()
        wait_for(lambda: RetryStore(site_of(master.config)).cursor(), what="the first cursor")
        process.kill()
        yield process
    finally:
        process.kill()


@pytest.fixture
def bert(engine, bert):
    """The minion, away; the queue is emptied again while the engine can still run."""
    return bert


@pytest.fixture
def counted(desk, tmp_path):
    """Publish a job that counts how often it begins: ``counted(name)`` returns its jid and its count."""

    def publish(name, seconds=0.0, tgt="bert", **options):
        job = CountedJob(tmp_path, name, seconds)
        return desk.publish("cmd.run", job.command, tgt=tgt, **options), job

    return publish


#: Points at which the engine is killed, with what is known by then.
DEATHS_WHILE_QUEUEING = [
    "before entry 1",  # it is decided that the job is owed, and nothing is stored
    "after entry 1",
]
DEATHS_WHILE_REPLAYING = [
    "before claim 1",
    "after claim 1",  # claimed, not published
    "after publish 1",  # published, and only the claim is stored
    "after entry 1",  # it is stored how far it has come
    "before removal 1",  # returned, and the entry is still there
]
DEATHS_WHILE_QUEUEING_BY_HAND = [
    "before answer 1",  # the request is taken, and nothing is stored
    "after answer 1",  # all is stored in one transaction
]


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
            assert outlived(asked) in (1, None)
            desk.await_state("bert", jid, "pending")
    bert.start()
    for jid, _ in jobs.values():
        desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert {trap: job.begun() for trap, (_, job) in jobs.items()} == dict.fromkeys(jobs, 1)
